"""WatchNode: the state of the node to any number of watchers, latest-wins; lives on the asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypervisor.model import NodeSnapshot, Revision
from hypervisor.rpc.convert import Moment, revision_to_proto
from hypervisor.rpc.convert.state import delta_parts, snapshot_parts
from hypervisor.rpc.history import History
from hypervisor.rpc.statistics import FeedCounters, FeedStatistics
from hypervisor.v1 import node_pb2

HEARTBEAT_SECONDS = 5.0
MAX_WATCHERS = 2000


class NodeFeed:
    """One state in, many watchers out. A slow watcher skips states; it never misses the last one or a deletion."""

    def __init__(
        self,
        snapshot: NodeSnapshot,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        max_watchers: int = MAX_WATCHERS,
        tombstones: int = 4096,
    ) -> None:
        self._history = History(snapshot, tombstones=tombstones)
        self._heartbeat_seconds = heartbeat_seconds
        self._max_watchers = max_watchers
        self._counters = FeedCounters()
        self._changed = asyncio.Event()
        self._closed = False
        # Most watchers have seen the same revision, so that what the last one got fits the next.
        self._ready: tuple[Revision | None, Revision, list[node_pb2.WatchNodeResponse]] | None = None

    def publish(self, snapshot: NodeSnapshot) -> None:
        """Show a new state to all watchers."""
        self._history.advance(snapshot)
        self._counters.published += 1
        self._wake()

    def close(self) -> None:
        """End all streams with status OK."""
        self._closed = True
        self._wake()

    def statistics(self) -> FeedStatistics:
        return self._counters.statistics(self._history.tombstones)

    async def watch(self, resume_after: Revision | None) -> AsyncIterator[node_pb2.WatchNodeResponse]:
        """The messages for one watcher, until the feed is closed. Cancellation ends it at any point.

        A state too large for one message comes in several, and only the last of them has a revision.
        """
        with self._counters.watcher(self._max_watchers):
            seen, begun = resume_after, False
            deadline = self._now() + self._heartbeat_seconds
            closed = self._closed
            while not closed:
                # Both taken before the state is looked at, so that no change is slept through, and none is missed that
                # came together with the end.
                changed, closed = self._changed, self._closed
                messages, state = self._messages_after(seen)
                if not messages and not begun:
                    messages = [self._heartbeat(state)]
                for message in messages:
                    self._counters.messages += 1
                    yield message
                if messages:
                    deadline = self._now() + self._heartbeat_seconds
                seen, begun = state, True
                if closed:
                    return
                try:
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()
                except TimeoutError:
                    self._counters.heartbeats += 1
                    yield self._heartbeat(seen)
                    deadline = self._now() + self._heartbeat_seconds

    def _messages_after(self, seen: Revision | None) -> tuple[list[node_pb2.WatchNodeResponse], Revision]:
        """What a watcher lacks that has seen a revision (None: nothing), and the revision that this leads to."""
        now = self._history.snapshot.revision
        if self._ready is None or self._ready[:2] != (seen, now):
            self._ready = (seen, now, self._make(seen))
        messages = self._ready[2]
        if messages and messages[0].HasField("reset"):
            self._counters.resets += 1
        elif messages and seen is not None and now.revision - seen.revision > 1:
            self._counters.coalesced += now.revision - seen.revision - 1
        return messages, now

    def _make(self, seen: Revision | None) -> list[node_pb2.WatchNodeResponse]:
        snapshot, moment = self._history.snapshot, Moment.now()
        delta = self._history.since(seen) if seen is not None else None
        if delta is None:
            reset, rest = snapshot_parts(snapshot, moment)
            messages = [node_pb2.WatchNodeResponse(reset=reset)]
        elif delta.empty:
            return []
        else:
            messages, rest = [], delta_parts(delta, snapshot, moment)
        messages.extend(node_pb2.WatchNodeResponse(delta=part) for part in rest)
        messages[-1].revision.CopyFrom(revision_to_proto(snapshot.revision))
        return messages

    def _heartbeat(self, revision: Revision) -> node_pb2.WatchNodeResponse:
        return node_pb2.WatchNodeResponse(revision=revision_to_proto(revision), heartbeat=node_pb2.Heartbeat())

    def _wake(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
