"""The SQLite store: columns, one writer thread, one transaction a commit.

WAL with synchronous=FULL: what is acknowledged to a node is on disk, also after a power cut; with a few commits a
second the fsync costs nothing that is felt.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypervisor.aggregator.sqlite_schema import NewerSchemaError, migrate
from hypervisor.aggregator.store import (
    PRUNE_AT_ONCE,
    Batch,
    EventQuery,
    EventRow,
    GpuRow,
    NodeRow,
    Stored,
    StoredEvent,
    StoreError,
)
from hypervisor.metrics.family import Families

# Versions are given out before they are durable. A start begins above this many more than the last durable one, so
# that none is given out twice with different content.
_VERSION_RESERVE = 1_000_000


def _insert(table: str, row: type[tuple[object, ...]], verb: str = "REPLACE") -> str:
    fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
    return f"INSERT OR {verb} INTO {table} ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})"  # noqa: S608


_PUT_NODE = _insert("nodes", NodeRow)
_PUT_GPU = _insert("gpus", GpuRow)
_PUT_EVENT = (
    f"INSERT OR IGNORE INTO events (number, {', '.join(EventRow._fields)})"  # noqa: S608 - names of ours
    f" VALUES (?, {', '.join('?' * len(EventRow._fields))})"
)
_SELECT_EVENTS = f"SELECT number, {', '.join(EventRow._fields)} FROM events WHERE number > ?"  # noqa: S608


class SqliteStore:
    """The store in one file (and its -wal and -shm). A transaction takes whatever there is."""

    objects_at_once: int | None = None
    events_at_once: int | None = None

    def __init__(self, path: Path, *, tombstone_limit: int) -> None:
        """Raises StoreError when the file can't be opened, is damaged, or comes from a newer version."""
        self._path = path
        self._tombstone_limit = tombstone_limit
        self._writer = self._connect()
        self._reader: sqlite3.Connection | None = None
        self._reader_lock = threading.Lock()
        self._next_event = 1
        self._reserved = 0
        try:
            migrate(self._writer, now=time.time())
        except sqlite3.Error as error:
            self._writer.close()
            raise self._error("can't use", error) from error

    def load(self) -> Stored:
        """Reads everything, and reserves the versions of this life."""
        with self._guard("can't read"):
            meta = dict(self._writer.execute("SELECT key, value FROM meta"))
            store_id = meta.get("store_id") or uuid.uuid4().hex
            start = int(meta.get("starts", 0)) + 1
            durable = int(meta.get("version", 0))
            reserved = int(meta.get("reserved_version", 0))
            last_event = int(self._writer.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()[0])
            # Numbers only grow, also when retention has removed the last event.
            last_event = max(last_event, int(meta.get("last_event", 0)))
            self._next_event = last_event + 1
            nodes = [NodeRow._make(row) for row in self._select("nodes", NodeRow, "name")]
            gpus = [GpuRow._make(row) for row in self._select("gpus", GpuRow, "version")]
            tombstones = list(self._writer.execute("SELECT name, version FROM tombstones ORDER BY version"))
            positions = {
                uid: (epoch, sequence)
                for uid, epoch, sequence in self._writer.execute("SELECT node_uid, epoch, sequence FROM positions")
            }
            version = max(durable, reserved)
            with self._transaction():
                self._put_meta("store_id", store_id)
                self._put_meta("starts", start)
                self._reserve(version)
        return Stored(
            store_id=store_id,
            start=start,
            version=version,
            resumable=(int(meta.get("tombstones_from", 0)), durable),
            nodes=nodes,
            gpus=gpus,
            tombstones=tombstones,
            event_positions=positions,
            last_event=last_event,
        )

    def commit(self, batch: Batch) -> Sequence[StoredEvent]:
        """One transaction. After an error nothing of the batch is stored, and it may be tried again."""
        stored: list[StoredEvent] = []
        number = self._next_event
        write = self._writer
        with self._guard("can't write"), self._transaction():
            write.executemany("DELETE FROM nodes WHERE uid = ?", [(uid,) for uid, _ in batch.removed_nodes])
            write.executemany(_PUT_NODE, batch.nodes)
            write.executemany(_PUT_GPU, batch.gpus)
            if batch.gpus:
                write.executemany("DELETE FROM tombstones WHERE name = ?", [(row.name,) for row in batch.gpus])
            if batch.removed_gpus:
                write.executemany("DELETE FROM gpus WHERE name = ?", [(name,) for name, _ in batch.removed_gpus])
                write.executemany("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", batch.removed_gpus)
                self._trim_tombstones()
            for row in batch.events:
                if write.execute(_PUT_EVENT, (number, *row)).rowcount == 1:
                    stored.append(StoredEvent(number, row))
                    number += 1
            self._put_positions(batch.events)
            self._put_meta("version", batch.version)
            if batch.version + _VERSION_RESERVE // 2 > self._reserved:
                self._reserve(batch.version)
        self._next_event = number
        return stored

    def prune(self, *, oldest_received_at: float, keep: int) -> int:
        """Removes a slice, so that a commit never waits long."""
        with self._guard("can't prune"), self._transaction():
            removed = self._writer.execute(
                "DELETE FROM events WHERE number IN (SELECT number FROM events"
                " WHERE received_at < ? OR number <= ? ORDER BY number LIMIT ?)",
                (oldest_received_at, self._next_event - 1 - keep, PRUNE_AT_ONCE),
            ).rowcount
            if removed:
                self._put_meta("last_event", self._next_event - 1)
        return int(removed)

    def read_events(self, query: EventQuery) -> Sequence[StoredEvent]:
        """Reads through a connection of its own, beside the writer."""
        conditions: list[str] = []
        values: list[object] = [query.after]
        for column, wanted in (
            ("kind", query.kind),
            ("namespace", query.namespace),
            ("name", query.name),
            ("object_uid", query.object_uid),
            ("node_name", query.node_name),
        ):
            if wanted:
                conditions.append(f" AND {column} = ? COLLATE NOCASE")
                values.append(wanted)
        if query.type:
            conditions.append(" AND type = ?")
            values.append(query.type)
        statement = f"{_SELECT_EVENTS}{''.join(conditions)} ORDER BY number LIMIT ?"
        with self._guard("can't read events of"), self._reader_lock:
            if self._reader is None:
                self._reader = self._connect()
            found = self._reader.execute(statement, (*values, query.limit)).fetchall()
        return [StoredEvent(row[0], EventRow(*row[1:])) for row in found]

    def collect(self, made: Families) -> None:
        """The size of its files."""
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                size += self._path.with_name(self._path.name + suffix).stat().st_size
        made.gauge("aggregator_store_bytes", "Size of the store's file and its log", size)

    def close(self) -> None:
        """Closes both connections; SQLite folds the log into the file."""
        with self._reader_lock:
            if self._reader is not None:
                self._reader.close()
        self._writer.close()

    # --- inside

    def _connect(self) -> sqlite3.Connection:
        try:
            # One thread at a time uses a connection; which one is the executor's choice.
            connection = sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._error("can't open", error) from error
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            connection.close()
            raise self._error("can't open", error) from error
        return connection

    def _select(self, table: str, row: type[tuple[object, ...]], order: str) -> Iterator[tuple[object, ...]]:
        fields: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
        return iter(self._writer.execute(f"SELECT {', '.join(fields)} FROM {table} ORDER BY {order}"))  # noqa: S608

    def _put_positions(self, events: Sequence[EventRow]) -> None:
        last: dict[str, tuple[int, int]] = {}
        for row in events:
            last[row.node_uid] = max(last.get(row.node_uid, (0, 0)), (row.epoch, row.sequence))
        self._writer.executemany(
            "INSERT INTO positions VALUES (?1, ?2, ?3) ON CONFLICT (node_uid) DO UPDATE SET epoch = ?2, sequence = ?3"
            " WHERE (?2, ?3) > (epoch, sequence)",
            [(uid, epoch, sequence) for uid, (epoch, sequence) in last.items()],
        )

    def _trim_tombstones(self) -> None:
        surplus = self._writer.execute("SELECT count(*) FROM tombstones").fetchone()[0] - self._tombstone_limit
        if surplus <= 0:
            return
        last = self._writer.execute(
            "SELECT version FROM tombstones ORDER BY version LIMIT 1 OFFSET ?", (surplus - 1,)
        ).fetchone()[0]
        self._writer.execute("DELETE FROM tombstones WHERE version <= ?", (last,))
        self._put_meta("tombstones_from", last)

    def _reserve(self, version: int) -> None:
        self._reserved = version + _VERSION_RESERVE
        self._put_meta("reserved_version", self._reserved)

    def _put_meta(self, key: str, value: object) -> None:
        self._writer.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        reserved = self._reserved
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            self._reserved = reserved
            # After some errors, a full disk among them, SQLite has rolled back already.
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            # The latter: a text that stands in the place of a number.
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> StoreError:
        remedy = "check that its directory exists, is writable and has space"
        if isinstance(error, NewerSchemaError):
            remedy = "run the newer program, or name another file with --store"
        elif not isinstance(error, sqlite3.OperationalError):
            remedy = "move it away to begin with an empty store; nodes report anew, events are lost"
        return StoreError(f"{what} the store {self._path}: {error}; {remedy}")
