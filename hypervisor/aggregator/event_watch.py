"""One watch of events: from memory as long as that reaches, else from the store.

A watcher is a number in the order of arrival, and never a queue. Numbers have no gaps, so that one that falls behind
what is kept learns that it has missed something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from hypervisor.aggregator import rows
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.store import EventQuery, EventRow, StoredEvent
from hypervisor.v1 import cluster_pb2

EVENTS_AT_ONCE = 500
# So many events that the filter leaves out are passed over before the watcher is told how far it is.
PASSED_OVER = 1_000

Read = Callable[[EventQuery], Awaitable[Sequence[StoredEvent]]]


class EventWatch:
    """Only the loop's tasks call it.

    read: events of the store; raises Refusal. wanted: what is asked for; its after and limit are not looked at.
    closing: set when all watches shall end.
    """

    def __init__(self, log: EventLog, read: Read, *, store_id: str, wanted: EventQuery, closing: asyncio.Event) -> None:
        self._log = log
        self._read = read
        self._store_id = store_id
        self._wanted = wanted
        self._closing = closing

    async def messages(
        self, *, resume_after: int | None, resume_store: str, only_new: bool
    ) -> AsyncIterator[cluster_pb2.ClusterWatchEventsResponse]:
        """Where it begins, then events in the order of arrival, until we close. Cancelling it changes nothing.

        resume_after: None to begin anew, with all that is kept unless only_new.
        """
        reset = resume_after is not None and (resume_store != self._store_id or resume_after > self._log.last_number)
        if reset:
            after = 0
        elif resume_after is not None:
            after = resume_after
            reset = await self._lost_after(after)
        else:
            after = self._log.last_number if only_new else 0
        yield self._told(after, reset=reset)
        # Who begins with what is kept has missed nothing of it.
        anew = reset or (after == 0 and resume_after is None)
        told = after
        while not self._closing.is_set():
            found, after_found, from_store = await self._next(after)
            if from_store and not anew and await self._lost_after(after):
                yield self._told(after, reset=True)
            anew = False
            if after_found == after:
                await self._wait(after)
                continue
            after = after_found
            for stored in found:
                if matches(self._wanted, stored.row):
                    told = stored.number
                    yield cluster_pb2.ClusterWatchEventsResponse(
                        event=rows.event_message(stored.row), number=told, store_id=self._store_id
                    )
            if after - told >= PASSED_OVER:
                told = after
                yield self._told(told)

    # --- inside

    async def _next(self, after: int) -> tuple[Sequence[StoredEvent], int, bool]:
        """Events behind a number, up to which one that is all, and whether they come from the store."""
        recent = self._log.recent(after)
        if recent is not None:
            return recent, recent[-1].number if recent else after, False
        # All up to here is in the store, and so in what is read below.
        last = self._log.last_number
        found = await self._read(self._wanted._replace(after=after, limit=EVENTS_AT_ONCE))
        reached = max([after, *(stored.number for stored in found[-1:])])
        # What a filter leaves out is passed over.
        return found, max(reached, last) if len(found) < EVENTS_AT_ONCE else reached, True

    async def _lost_after(self, after: int) -> bool:
        """Whether some events behind this number are no longer kept."""
        if self._log.recent(after) is not None:
            return False
        oldest = await self._read(EventQuery(after=after, limit=1))
        # None at all, though there were some: all of them are gone.
        return not oldest or oldest[0].number > after + 1

    def _told(self, number: int, *, reset: bool = False) -> cluster_pb2.ClusterWatchEventsResponse:
        return cluster_pb2.ClusterWatchEventsResponse(number=number, store_id=self._store_id, reset=reset)

    async def _wait(self, after: int) -> None:
        """Until there is an event after this one, or we close."""
        waiting = asyncio.ensure_future(self._log.wait(after))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((waiting, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            closing.cancel()


def matches(query: EventQuery, row: EventRow) -> bool:
    """The same as the store's own selection, for events that are in memory."""
    return (
        (not query.type or query.type == row.type)
        and _same(query.kind, row.kind)
        and _same(query.namespace, row.namespace)
        and _same(query.name, row.name)
        and _same(query.object_uid, row.object_uid)
        and _same(query.node_name, row.node_name)
    )


def _same(wanted: str, found: str) -> bool:
    return not wanted or wanted.lower() == found.lower()
