"""The journal's SQLite file: its schema, and what is read from and written to it. Every function may raise
sqlite3.Error; the caller owns transactions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypervisor.model import Event, EventType, NodeIdentity, ObjectKind, ObjectReference

SCHEMA_VERSION = 2

# An event's fields are stored as name, value, name, value... joined by U+001F, which no name or value keeps.
_SEPARATOR = "\x1f"

# Reason, the object's kind, namespace, name and UID, and the topic.
SeriesKey = tuple[str, str, str, str, str, str]

_COLUMNS = "type, reason, kind, namespace, name, object_uid, message, fields, first_at, last_at, count, simulated"
_SCHEMA = f"""
CREATE TABLE events (
    epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    {_COLUMNS.replace(",", " NOT NULL,")} NOT NULL,
    PRIMARY KEY (epoch, sequence)
) WITHOUT ROWID;
CREATE TABLE acknowledged (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, sequence INTEGER NOT NULL);
"""
# Repeats that were not told yet. topic: what else than reason and object makes two events different. With a rowid, for
# the check of some SQLite versions finds NULLs that are not there in a table without one whose last column is a key's.
_PENDING = f"""
CREATE TABLE repeats (
    {_COLUMNS.replace(",", " NOT NULL,")} NOT NULL, topic TEXT NOT NULL,
    PRIMARY KEY (reason, kind, namespace, name, object_uid, topic)
);
"""
# The first version knew no topics.
_FROM_FIRST = f"{_PENDING}INSERT INTO repeats SELECT {_COLUMNS}, '' FROM pending;DROP TABLE pending;"  # noqa: S608 - fixed


def connect(path: Path) -> sqlite3.Connection:
    """Open or make the file. Raises sqlite3.DatabaseError when it is damaged or of another version."""
    # The journal's own lock orders the threads; autocommit, so that transactions are only those that are written.
    database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA cache_size=-256")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            database.executescript(f"BEGIN;{_SCHEMA}{_PENDING}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        elif version == 1:
            database.executescript(f"BEGIN;{_FROM_FIRST}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        elif version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"version {version} of the journal is not known; {SCHEMA_VERSION} is")
        if (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)
    except sqlite3.Error:
        database.close()
        raise
    return database


def put_aside(path: Path) -> None:
    """Rename a file that can't be used, over the one that was put aside before. Raises OSError."""
    path.replace(path.with_name(path.name + ".damaged"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All that the block writes, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # After some errors, a full disk among them, SQLite has rolled back already.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def insert(database: sqlite3.Connection, event: Event) -> None:
    """Add one event."""
    database.execute(
        f"INSERT INTO events (epoch, sequence, {_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608 - fixed
        (event.epoch, event.sequence, *_values(event)),
    )


def read(database: sqlite3.Connection, identity: NodeIdentity, after: tuple[int, int], limit: int) -> list[Event]:
    """Events after (epoch, sequence), oldest first."""
    found = database.execute(
        f"SELECT {_COLUMNS}, epoch, sequence FROM events"  # noqa: S608 - fixed
        " WHERE (epoch, sequence) > (?, ?) ORDER BY epoch, sequence LIMIT ?",
        (*after, limit),
    )
    return [_event(identity, row, row[-2], row[-1]) for row in found]


def count_after(database: sqlite3.Connection, after: tuple[int, int]) -> int:
    """How many events after (epoch, sequence) are in the file."""
    found = database.execute("SELECT count(*) FROM events WHERE (epoch, sequence) > (?, ?)", after)
    return int(found.fetchone()[0])


def last_sequence(database: sqlite3.Connection) -> int:
    """The greatest sequence in the file, 0 when it is empty."""
    return int(database.execute("SELECT coalesce(max(sequence), 0) FROM events").fetchone()[0])


def remove_oldest(database: sqlite3.Connection, count: int) -> None:
    """Forget this many of the oldest events."""
    database.execute(
        "DELETE FROM events WHERE (epoch, sequence) IN"
        " (SELECT epoch, sequence FROM events ORDER BY epoch, sequence LIMIT ?)",
        (count,),
    )


def put_pending(database: sqlite3.Connection, key: tuple[str, ...], event: Event | None) -> None:
    """Keep the repeats of a series that were not told yet."""
    if event is None:
        remove_pending(database, key)
        return
    database.execute(
        f"INSERT OR REPLACE INTO repeats ({_COLUMNS}, topic) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608 - fixed
        (*_values(event), key[-1]),
    )


def remove_pending(database: sqlite3.Connection, key: tuple[str, ...]) -> None:
    """Forget the repeats of a series, because they are told."""
    database.execute(
        "DELETE FROM repeats WHERE reason = ? AND kind = ? AND namespace = ? AND name = ? AND object_uid = ?"
        " AND topic = ?",
        key,
    )


def pending(database: sqlite3.Connection, identity: NodeIdentity) -> list[tuple[SeriesKey, Event]]:
    """Repeats that were not told before the daemon ended, each with the key of its series."""
    found = database.execute(f"SELECT {_COLUMNS}, topic FROM repeats")  # noqa: S608 - fixed
    events = [(_event(identity, row, 0, 0), row[-1]) for row in found]
    return [(series_key(event, topic), event) for event, topic in events]


def series_key(event: Event, topic: str) -> SeriesKey:
    """What two events have in common that are told as one."""
    regarding = event.regarding
    return (event.reason, regarding.kind.value, regarding.namespace, regarding.name, regarding.uid, topic)


def acknowledged(database: sqlite3.Connection) -> tuple[int, int]:
    """(epoch, sequence) up to which the aggregator has stored; (0, 0) when nothing."""
    row = database.execute("SELECT epoch, sequence FROM acknowledged").fetchone()
    return (row[0], row[1]) if row else (0, 0)


def put_acknowledged(database: sqlite3.Connection, epoch: int, sequence: int) -> None:
    """Remember up to where the aggregator has stored."""
    database.execute("INSERT OR REPLACE INTO acknowledged VALUES (1, ?, ?)", (epoch, sequence))


def _values(event: Event) -> tuple[object, ...]:
    regarding = event.regarding
    return (
        event.type.value,
        event.reason,
        regarding.kind.value,
        regarding.namespace,
        regarding.name,
        regarding.uid,
        event.message,
        _packed(event.fields),
        event.first_at,
        event.last_at,
        event.count,
        int(event.simulated),
    )


def _packed(fields: Iterable[tuple[str, str]]) -> str:
    return _SEPARATOR.join(part.replace(_SEPARATOR, " ") for pair in fields for part in pair)


def _event(identity: NodeIdentity, row: tuple[Any, ...], epoch: int, sequence: int) -> Event:
    kind, reason, object_kind, namespace, name, object_uid, message, fields, first_at, last_at, count, simulated = row[
        :12
    ]
    parts = fields.split(_SEPARATOR) if fields else []
    return Event(
        node_uid=identity.uid,
        node_name=identity.name,
        epoch=epoch,
        sequence=sequence,
        type=EventType(kind),
        reason=reason,
        regarding=ObjectReference(kind=ObjectKind(object_kind), name=name, uid=object_uid, namespace=namespace),
        message=message,
        fields=tuple(zip(parts[::2], parts[1::2], strict=True)),
        first_at=first_at,
        last_at=last_at,
        count=count,
        simulated=bool(simulated),
    )
