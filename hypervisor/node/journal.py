"""The node's journal of events: bounded, on disk, and never in the daemon's way.

It is an SQLite file in WAL mode and not an append file of our own, because what is asked of it is a ring with an
index: read from any (epoch, sequence) on, forget the oldest, and put an event and the end of its series on disk as one
change. SQLite does that, survives kill -9 at any write, and finds a torn page by itself. synchronous=NORMAL keeps
fsync off the caller's path; a power cut may then lose the last events, whose names are not given again because each
start of the daemon has a new epoch.

Repeats: the first event of a reason about an object, and of a number where it is an Xid, is told at once. Further ones
within the window are counted on disk and told as one event, with their count and the last one's numbers, when the
window ends, at the next start or at close. The sum of the counts is therefore the number of times it happened. Events
are never changed after they were told.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from hypervisor.model import Event, EventType, NodeIdentity, ObjectReference
from hypervisor.node import journal_rows as rows

log = structlog.get_logger("journal")

OVERFLOW_EVENTS = 1_000
SERIES_LIMIT = 4_096
_TRIM_EVERY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """How the journal fares. kept counts events that can be read; in_memory those of them that are not on disk."""

    kept: int
    in_memory: int
    emitted_total: int
    repeats_total: int
    dropped_total: int
    write_failures_total: int
    failed_reason: str
    unacknowledged: int


@dataclass(slots=True)
class _Series:
    """An open series. pending is the sum of the repeats that were not told yet, as the event they will become."""

    told_at: float
    pending: Event | None = None


# Fields by which events of one reason about one object differ: errors of two numbers are not the same error again.
_TOPIC_FIELDS = ("xid", "sxid", "check")


class Journal:
    """The journal of one life of the daemon. All methods may be called from any thread; callbacks run in emit's."""

    def __init__(
        self,
        path: Path,
        *,
        identity: NodeIdentity,
        epoch: int,
        capacity: int,
        window_seconds: float,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._path = path
        self._identity = identity
        self._epoch = epoch
        self._capacity = capacity
        self._window = window_seconds
        self._monotonic = monotonic
        self._wall = wall
        # Short critical sections only: a query of the API reads from another thread than the one that emits.
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._overflow: deque[Event] = deque()
        self._series: OrderedDict[rows.SeriesKey, _Series] = OrderedDict()
        self._subscribers: dict[int, Callable[[Event], None]] = {}
        self._next_subscriber = 0
        self._sequence = 0
        self._kept = 0
        self._emitted = self._repeats = self._dropped = self._failures = 0
        self._failed_reason = ""
        self._acknowledged = (0, 0)
        self.simulated = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        identity: NodeIdentity,
        epoch: int,
        capacity: int = 10_000,
        window_seconds: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> Journal:
        """The journal in `directory`/events.db. Never fails: what can't be opened is reported by failed_reason.

        A file that is damaged or of another version is put aside under its name with .damaged, and a new one begun.
        """
        journal = cls(
            directory / "events.db",
            identity=identity,
            epoch=epoch,
            capacity=capacity,
            window_seconds=window_seconds,
            monotonic=monotonic,
            wall=wall,
        )
        with journal._lock:
            journal._try_open()
            journal._tell_repeats_of_the_life_before()
        return journal

    @property
    def failed_reason(self) -> str:
        """Why events are not reaching the disk, for the condition JournalFailed; "" when they are."""
        return self._failed_reason

    def emit(self, event_type: EventType, reason: str, regarding: ObjectReference, message: str, **fields: str) -> None:
        """Tell that something has happened. Returns at once and never raises for the disk's sake."""
        now, wall = self._monotonic(), self._wall()
        event = Event(
            node_uid=self._identity.uid,
            node_name=self._identity.name,
            epoch=self._epoch,
            sequence=0,
            type=event_type,
            reason=reason,
            regarding=regarding,
            message=_storable(message),
            fields=tuple(sorted((name, _storable(str(value))) for name, value in fields.items())),
            first_at=wall,
            last_at=wall,
            simulated=self.simulated,
        )
        with self._lock:
            told = self._tell_due(now)
            key = _series_key(event)
            series = self._series.get(key)
            if series is None:
                told += self._make_room(now)
                self._series[key] = _Series(told_at=now)
                told.append(self._append(event, key))
            else:
                self._repeats += 1
                series.pending = _merged(series.pending, event)
                self._write(lambda database: rows.put_pending(database, key, series.pending))
        self._publish(told)

    def step(self) -> None:
        """Tell the repeats whose window has ended, and bring to disk what could not be written before."""
        with self._lock:
            if self._overflow or self._failed_reason:
                self._write(lambda _: None)
            told = self._tell_due(self._monotonic())
        self._publish(told)

    def resize(self, capacity: int) -> None:
        """Keep this many events from now on."""
        with self._lock:
            self._capacity = capacity

    def read(self, after: tuple[int, int], limit: int) -> Sequence[Event]:
        """Up to `limit` events after (epoch, sequence), oldest first; (0, 0) begins at the oldest that is kept."""
        with self._lock:
            found: list[Event] = []
            if self._database is not None:
                try:
                    found = rows.read(self._database, self._identity, after, limit)
                except sqlite3.Error as error:
                    self._note_failure(error)
            found += [event for event in self._overflow if (event.epoch, event.sequence) > after]
            return found[:limit]

    def lost_before(self, after: tuple[int, int]) -> int:
        """How many events after (epoch, sequence) are no longer kept."""
        oldest = self.read((0, 0), 1)
        if not oldest or (oldest[0].epoch, oldest[0].sequence) <= after:
            return 0
        return max(0, oldest[0].sequence - 1 - after[1])

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with each event that is told from now on, in the emitting thread; returns how to end it."""
        with self._lock:
            number = self._next_subscriber
            self._next_subscriber += 1
            self._subscribers[number] = callback

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(number, None)

        return unsubscribe

    @property
    def acknowledged(self) -> tuple[int, int]:
        """(epoch, sequence) of the last event that the aggregator has stored."""
        return self._acknowledged

    def acknowledge(self, epoch: int, sequence: int) -> None:
        """Remember, over restarts, that the aggregator has stored all events up to this one."""
        with self._lock:
            if (epoch, sequence) <= self._acknowledged:
                return
            self._acknowledged = (epoch, sequence)
            self._write(lambda database: rows.put_acknowledged(database, epoch, sequence))

    def statistics(self) -> JournalStatistics:
        """Counters since the start, and how much is kept."""
        with self._lock:
            unacknowledged = 0
            if self._database is not None:
                with contextlib.suppress(sqlite3.Error):
                    unacknowledged = rows.count_after(self._database, self._acknowledged)
            in_memory = len(self._overflow)
            return JournalStatistics(
                kept=self._kept + in_memory,
                in_memory=in_memory,
                emitted_total=self._emitted,
                repeats_total=self._repeats,
                dropped_total=self._dropped,
                write_failures_total=self._failures,
                failed_reason=self._failed_reason,
                unacknowledged=unacknowledged + in_memory,
            )

    def close(self) -> None:
        """Tell the pending repeats and close the file. The journal can't be used afterwards."""
        with self._lock:
            told = [self._tell_pending(key, series) for key, series in self._series.items() if series.pending]
            self._series.clear()
        self._publish(told)
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    # --- series

    def _tell_due(self, now: float) -> list[Event]:
        """Ends the windows that are over. The order of _series is that of told_at, so only its head is looked at."""
        told: list[Event] = []
        while self._series:
            key, series = next(iter(self._series.items()))
            if now - series.told_at < self._window:
                break
            if series.pending is None:
                del self._series[key]
            else:
                told.append(self._tell_pending(key, series))
                series.told_at = now
                self._series.move_to_end(key)
        return told

    def _make_room(self, now: float) -> list[Event]:
        """Ends the oldest series when there are too many, so that a flood of names can't fill the memory."""
        if len(self._series) < SERIES_LIMIT:
            return []
        key, series = self._series.popitem(last=False)
        return [self._tell_pending(key, series)] if series.pending else []

    def _tell_pending(self, key: rows.SeriesKey, series: _Series) -> Event:
        assert series.pending is not None
        event, series.pending = series.pending, None
        return self._append(event, key)

    def _tell_repeats_of_the_life_before(self) -> None:
        if self._database is None:
            return
        for key, pending in rows.pending(self._database, self._identity):
            self._append(replace(pending, epoch=self._epoch), key)

    # --- the disk

    def _append(self, event: Event, key: rows.SeriesKey) -> Event:
        """Names the event and puts it on disk, in one change with the end of the repeats that it tells of."""
        self._sequence += 1
        event = replace(event, sequence=self._sequence)
        self._emitted += event.count

        def insert(database: sqlite3.Connection) -> None:
            rows.insert(database, event)
            rows.remove_pending(database, key)

        if self._write(insert):
            self._kept += 1
            self._trim()
        else:
            self._overflow.append(event)
            if len(self._overflow) > OVERFLOW_EVENTS:
                self._overflow.popleft()
                self._dropped += 1
        return event

    def _write(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """Runs a change, after what is waiting in memory, as one transaction; False when the disk refuses."""
        if self._database is None and not self._try_open():
            return False
        assert self._database is not None
        try:
            with rows.transaction(self._database):
                for waiting in self._overflow:
                    rows.insert(self._database, waiting)
                change(self._database)
        except sqlite3.Error as error:
            self._note_failure(error)
            return False
        self._kept += len(self._overflow)
        self._overflow.clear()
        if self._failed_reason:
            log.info("the journal reaches the disk again", path=str(self._path))
            self._failed_reason = ""
        return True

    def _trim(self) -> None:
        surplus = self._kept - self._capacity
        if surplus < min(_TRIM_EVERY, max(1, self._capacity // 10)):
            return
        if self._write(lambda database: rows.remove_oldest(database, surplus)):
            self._kept -= surplus

    def _try_open(self) -> bool:
        """Opens the file and learns where it stands; puts a damaged one aside."""
        try:
            database = rows.connect(self._path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                self._note_failure(error)
                return False
            log.warning("the journal is damaged and a new one is begun", path=str(self._path), error=str(error))
            try:
                rows.put_aside(self._path)
                database = rows.connect(self._path)
            except (OSError, sqlite3.Error) as second:
                self._note_failure(second)
                return False
        except OSError as error:
            self._note_failure(error)
            return False
        try:
            # What was told from memory while the file could not be opened keeps its names.
            self._sequence = max(self._sequence, rows.last_sequence(database))
            self._kept = rows.count_after(database, (0, 0))
            self._acknowledged = max(self._acknowledged, rows.acknowledged(database))
        except sqlite3.Error as error:
            database.close()
            self._note_failure(error)
            return False
        self._database = database
        return True

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if not self._failed_reason:
            log.warning("events are kept in memory, because the journal can't be written", error=str(error))
        self._failed_reason = f"events can't be written to {self._path}: {error}"

    def _publish(self, told: Sequence[Event]) -> None:
        """Outside the lock, so that a subscriber may call the journal."""
        for event in told:
            for callback in tuple(self._subscribers.values()):
                callback(event)


def _storable(text: str) -> str:
    """File names that are no UTF-8 come as lone surrogates, which neither SQLite nor protobuf takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _series_key(event: Event) -> rows.SeriesKey:
    fields = dict(event.fields)
    return rows.series_key(event, " ".join(fields[name] for name in _TOPIC_FIELDS if name in fields))


def _merged(pending: Event | None, event: Event) -> Event:
    if pending is None:
        return event
    return replace(event, first_at=pending.first_at, count=pending.count + 1)
