"""Schema of the SQLite store, as a list of migrations: each is applied once, in order, in its own transaction.

A migration that has been released is never changed; a new one is added at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (
    uid TEXT PRIMARY KEY, name TEXT NOT NULL, boot_id TEXT NOT NULL, simulated INTEGER NOT NULL,
    liveness INTEGER NOT NULL, last_seen_wall REAL NOT NULL, version INTEGER NOT NULL, detail BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE gpus (
    name TEXT PRIMARY KEY, node_uid TEXT NOT NULL, gpu_index INTEGER NOT NULL, model TEXT NOT NULL,
    vendor TEXT NOT NULL, used_by TEXT NOT NULL, phase TEXT NOT NULL, health INTEGER NOT NULL,
    isolation INTEGER NOT NULL, allocatable INTEGER NOT NULL, simulated INTEGER NOT NULL, tflops REAL,
    vram_bytes INTEGER, available_tflops REAL, available_vram_bytes INTEGER, missing_since REAL,
    version INTEGER NOT NULL, detail BLOB NOT NULL
);
CREATE TABLE tombstones (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX tombstones_by_version ON tombstones (version);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, node_uid TEXT NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    node_name TEXT NOT NULL, type INTEGER NOT NULL, reason TEXT NOT NULL, kind TEXT NOT NULL,
    namespace TEXT NOT NULL, name TEXT NOT NULL, object_uid TEXT NOT NULL, message TEXT NOT NULL,
    fields BLOB NOT NULL, first_at REAL NOT NULL, last_at REAL NOT NULL, repeats INTEGER NOT NULL,
    simulated INTEGER NOT NULL, received_at REAL NOT NULL
);
CREATE UNIQUE INDEX events_by_origin ON events (node_uid, epoch, sequence);
CREATE INDEX events_by_object ON events (name COLLATE NOCASE, number);
CREATE TABLE positions (
    node_uid TEXT PRIMARY KEY, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL
) WITHOUT ROWID;
"""

_SHARES = """
ALTER TABLE gpus ADD COLUMN apps BLOB NOT NULL DEFAULT x'';
"""

# (what it does, statements)
MIGRATIONS: Sequence[tuple[str, str]] = (
    ("nodes, gpus, events", _FIRST),
    ("who holds shares of a GPU", _SHARES),
)


class NewerSchemaError(sqlite3.DatabaseError):
    """A file that a newer program has written."""


def migrate(database: sqlite3.Connection, *, now: float) -> None:
    """Bring the file to the newest schema. Raises sqlite3.Error, also for a file of a newer version, which it leaves.

    now: wall time in seconds, for the record of what was applied when.
    """
    database.execute(
        "CREATE TABLE IF NOT EXISTS migrations"
        " (version INTEGER PRIMARY KEY, description TEXT NOT NULL, applied_at REAL NOT NULL)"
    )
    applied = int(database.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()[0])
    if applied > len(MIGRATIONS):
        raise NewerSchemaError(f"its schema is version {applied}, and this program knows {len(MIGRATIONS)}")
    for version, (description, statements) in enumerate(MIGRATIONS[applied:], start=applied + 1):
        # The values are ours, and executescript takes no parameters.
        record = f"INSERT INTO migrations VALUES ({version}, '{description}', {now});"  # noqa: S608
        try:
            database.executescript(f"BEGIN IMMEDIATE;{statements}{record}COMMIT;")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
