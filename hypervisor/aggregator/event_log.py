"""Events on their way from report streams to the store, and from there to those who watch.

What a node sent waits here until it is committed; then it is acknowledged, and the last few thousand are kept for
watchers, so that a thousand of them cost no queries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypervisor.aggregator.store import EventRow, StoredEvent

RECENT_EVENTS = 10_000
# Beyond this many events that wait for the disk, streams are not read further: back-pressure, not loss.
WAITING_EVENTS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogStatistics:
    """waiting: received and not yet on disk."""

    waiting: int
    received_total: int
    stored_total: int
    duplicates_total: int
    refused_total: int
    last_number: int


class EventLog:
    """Only the loop's tasks call it."""

    def __init__(self, *, last_number: int) -> None:
        self._waiting: list[EventRow] = []
        self._recent: deque[StoredEvent] = deque(maxlen=RECENT_EVENTS)
        self.last_number = last_number
        # All events with a greater number are in _recent, as far as it reaches.
        self._recent_from = last_number
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._received = self._stored = self._refused = self._duplicates = 0

    def add(self, rows: Iterable[EventRow]) -> None:
        """Events as they came, duplicates included."""
        before = len(self._waiting)
        self._waiting.extend(rows)
        self._received += len(self._waiting) - before
        if len(self._waiting) > WAITING_EVENTS:
            self._room.clear()

    def refuse(self, count: int) -> None:
        """Count events that could not be taken."""
        self._refused += count

    async def room(self) -> None:
        """Wait until more may be added. Cancelling it changes nothing."""
        await self._room.wait()

    @property
    def waiting(self) -> int:
        """How many wait, those that are being committed not among them."""
        return len(self._waiting)

    def take(self, most: int | None = None) -> Sequence[EventRow]:
        """The first so many that wait, None: all, for a commit; to be given back when that fails."""
        if most is None:
            taken, self._waiting = self._waiting, []
        else:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken

    def give_back(self, rows: Sequence[EventRow]) -> None:
        """What was taken and could not be committed."""
        self._waiting[:0] = rows

    def committed(self, taken: int, stored: Sequence[StoredEvent]) -> None:
        """A commit has written these; the rest of what was taken was known already."""
        self._stored += len(stored)
        self._duplicates += taken - len(stored)
        if len(self._waiting) <= WAITING_EVENTS:
            self._room.set()
        if not stored:
            return
        for event in stored:
            if len(self._recent) == RECENT_EVENTS:
                self._recent_from = self._recent[0].number
            self._recent.append(event)
        self.last_number = stored[-1].number
        self._changed.set()
        self._changed = asyncio.Event()

    def recent(self, after: int) -> Sequence[StoredEvent] | None:
        """Events after a number, or None when they reach back further than memory does."""
        if after < self._recent_from:
            return None
        if after >= self.last_number:
            return ()
        # Numbers in the store have no gaps, so the place follows from the number.
        skip = max(0, after + 1 - self._recent[0].number)
        return [self._recent[index] for index in range(skip, len(self._recent))]

    async def wait(self, after: int) -> None:
        """Wait until there is an event after this number. Cancelling it changes nothing."""
        while self.last_number <= after:
            await self._changed.wait()

    def statistics(self) -> EventLogStatistics:
        """Counters since the start."""
        return EventLogStatistics(
            waiting=len(self._waiting),
            received_total=self._received,
            stored_total=self._stored,
            duplicates_total=self._duplicates,
            refused_total=self._refused,
            last_number=self.last_number,
        )
