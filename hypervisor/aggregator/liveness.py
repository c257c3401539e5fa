"""Who has not been heard of: a wheel of deadlines instead of a timer a node.

Hearing of a node only sets a time on its record. The wheel looks at a node when its deadline comes; if it was heard of
meanwhile, it goes back in at its new deadline. A look costs nothing that grows with the number of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import NodeRecord
from hypervisor.aggregator.registry import Registry
from hypervisor.v1 import cluster_pb2


class LivenessWheel:
    """Deadlines of all nodes, in slots of one tick. Only the loop's tasks call it."""

    def __init__(
        self,
        registry: Registry,
        *,
        late_after: float,
        lost_after: float,
        monotonic: Callable[[], float],
        tick_seconds: float = 0.25,
    ) -> None:
        self._registry = registry
        self._late_after = late_after
        self._lost_after = lost_after
        self._monotonic = monotonic
        self._tick_seconds = tick_seconds
        self._slots: dict[int, set[str]] = {}
        self._placed: dict[str, int] = {}
        self._hand = self._slot(monotonic())

    def watch(self, node: NodeRecord) -> None:
        """Begin to look after a node; again after a change that brings its deadline forward."""
        self._place(node, node.last_seen_at + self._late_after)

    def heard(self, node: NodeRecord) -> None:
        """Something came from the node."""
        now = self._monotonic()
        silent, node.last_seen_at = now - node.last_seen_at, now
        if node.liveness != cluster_pb2.LIVENESS_FRESH:
            self._registry.set_liveness(node, cluster_pb2.LIVENESS_FRESH, silent_seconds=silent)
            self.watch(node)

    def step(self) -> None:
        """Look at the nodes whose deadline has come."""
        now = self._monotonic()
        current = self._slot(now)
        while self._hand < current:
            self._hand += 1
            for uid in self._slots.pop(self._hand, set()):
                del self._placed[uid]
                node = self._registry.nodes.get(uid)
                if node is not None:
                    self._look(node, now)

    async def run(self) -> None:
        """Look for ever. Cancelling it changes nothing."""
        while True:
            await asyncio.sleep(self._tick_seconds)
            self.step()

    def _look(self, node: NodeRecord, now: float) -> None:
        silent = now - node.last_seen_at
        stage = derive.liveness(silent, late_after=self._late_after, lost_after=self._lost_after)
        if stage > node.liveness:
            # Only hearing of a node makes it fresher.
            self._registry.set_liveness(node, stage, silent_seconds=silent)
        if stage == cluster_pb2.LIVENESS_FRESH:
            self._place(node, node.last_seen_at + self._late_after)
        elif stage == cluster_pb2.LIVENESS_LATE:
            self._place(node, node.last_seen_at + self._lost_after)

    def _place(self, node: NodeRecord, deadline: float) -> None:
        # The slot after, so that the deadline has passed when the hand comes.
        slot = max(self._slot(deadline) + 1, self._hand + 1)
        previous = self._placed.pop(node.uid, None)
        if previous is not None:
            self._slots[previous].discard(node.uid)
        self._placed[node.uid] = slot
        self._slots.setdefault(slot, set()).add(node.uid)

    def _slot(self, at: float) -> int:
        return int(at / self._tick_seconds)
