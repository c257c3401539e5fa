"""ListEvents and WatchEvents: events from the journal; lives on the asyncio loop, reads the journal in trio.

A watcher is a position in the journal, and never a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from hypervisor.model import Event, EventType, ObjectKind
from hypervisor.rpc.asyncio_host import AsyncioHost
from hypervisor.rpc.convert import event_to_proto
from hypervisor.rpc.interfaces import EventSource
from hypervisor.rpc.statistics import FeedCounters, FeedStatistics
from hypervisor.v1 import node_pb2

BATCH = 256
MAX_WATCHERS = 2000
_BATCHES_A_PAGE = 64  # events that one call looks through for those that match: 16384
Position = tuple[int, int]
_BEGIN: Position = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are wanted; None and "" match everything."""

    kind: ObjectKind | None = None
    namespace: str = ""
    name: str = ""
    uid: str = ""
    type: EventType | None = None

    def matches(self, event: Event) -> bool:
        about = event.regarding
        return (
            (self.kind is None or about.kind is self.kind)
            and self.namespace in ("", about.namespace)
            and self.name.lower() in ("", about.name.lower())  # UUIDs are written in both cases
            and self.uid in ("", about.uid)
            and self.type in (None, event.type)
        )


class EventFeed:
    """Shows the journal to any number of watchers. Built in trio; wake() is called in trio, all else on the loop."""

    def __init__(self, host: AsyncioHost, events: EventSource, *, max_watchers: int = MAX_WATCHERS) -> None:
        self._host = host
        self._events = events
        self._max_watchers = max_watchers
        self._counters = FeedCounters()
        self._end = _end_of(events)
        self._waking = False
        self._changed: asyncio.Event | None = None
        self._closed = False

    def subscribe(self) -> Callable[[], None]:
        """Begin to follow the journal; returns what ends it."""
        return self._events.subscribe(self._wake_from_trio)

    def close(self) -> None:
        """End all streams with status OK."""
        self._closed = True
        self._wake()

    def statistics(self) -> FeedStatistics:
        return self._counters.statistics()

    async def read(self, after: Position, limit: int) -> tuple[Sequence[Event], int]:
        """Events behind a position, and how many of those behind it are lost."""
        return await self._host.call_trio(self._read, after, limit)

    async def page(self, after: Position, size: int, wanted: EventFilter) -> tuple[list[Event], Position | None, int]:
        """Up to size events that match, the position behind the last one looked at (None: the end), and the loss."""
        found: list[Event] = []
        lost = 0
        for _ in range(_BATCHES_A_PAGE):
            events, missing = await self.read(after, BATCH)
            lost = lost or missing
            for event in events:
                after = (event.epoch, event.sequence)
                if wanted.matches(event):
                    found.append(event)
                    if len(found) == size:
                        return found, after, lost
            if len(events) < BATCH:
                return found, None, lost
        return found, after, lost

    async def watch(
        self, after: Position, wanted: EventFilter, *, only_new: bool
    ) -> AsyncIterator[node_pb2.WatchEventsResponse]:
        """Events behind a position, then each new one, until the feed is closed."""
        if only_new:
            after = self._end
        with self._counters.watcher(self._max_watchers):
            while not self._closed:
                changed = self._next_change()  # taken before the journal is read, so that nothing is slept through
                events, lost = await self.read(after, BATCH)
                for event in events:
                    after = (event.epoch, event.sequence)
                    if wanted.matches(event):
                        self._counters.messages += 1
                        yield node_pb2.WatchEventsResponse(event=event_to_proto(event), lost_before=lost)
                        lost = 0
                if lost:
                    yield node_pb2.WatchEventsResponse(lost_before=lost)
                if len(events) < BATCH:
                    await changed.wait()

    async def _read(self, after: Position, limit: int) -> tuple[Sequence[Event], int]:
        # Who begins at the oldest event that is kept has asked for none before it.
        lost = self._events.lost_before(after) if after != _BEGIN else 0
        return tuple(self._events.read(after, limit)), lost

    def _wake_from_trio(self, event: Event) -> None:
        self._end = max(self._end, (event.epoch, event.sequence))
        self._counters.published += 1
        if not self._waking:  # cleared on the loop before watchers look, so that none is missed
            self._waking = True
            self._host.post(self._wake)

    def _wake(self) -> None:
        self._waking = False
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _next_change(self) -> asyncio.Event:
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed


def _end_of(events: EventSource) -> Position:
    """The position behind the newest event."""
    position = _BEGIN
    while found := events.read(position, 1000):
        position = (found[-1].epoch, found[-1].sequence)
    return position
