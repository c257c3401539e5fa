"""The state of the node: one writer, immutable snapshots, and only the latest matters.

A consumer that is slow skips snapshots; it never misses the last. All methods are for the trio main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import trio

from hypervisor.model import (
    Allocation,
    AllocationUsage,
    Condition,
    Inventory,
    NodeIdentity,
    NodeSnapshot,
    Revision,
    Worker,
)
from hypervisor.node.conditions import node_conditions
from hypervisor.node.derive import NEVER, Ratios, derive_gpus, settle
from hypervisor.node.revisions import Revisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a snapshot is made of. foreign: by GPU UUID, bytes of processes of no allocation, None where that can't be
    said. conditions are the daemon's own; those of the driver come with the inventory.
    used_by: by GPU UUID, who else has the card."""

    inventory: Inventory
    ratios: Ratios
    foreign: Mapping[str, int | None]
    allocations: tuple[Allocation, ...] = ()
    usages: tuple[AllocationUsage, ...] = ()
    workers: tuple[Worker, ...] = ()
    conditions: tuple[Condition, ...] = ()
    used_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatistics:
    """Counters of the state's feed: updates that changed something and that did not, and who listens now."""

    published_total: int
    unchanged_total: int
    waiting: int
    subscribers: int


class NodeState:
    """Holds the current snapshot. Only update() changes it."""

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        version: str,
        started_at: float,
        labels: tuple[tuple[str, str], ...] = (),
        revisions: Revisions,
        parts: Parts,
        wall_clock: Callable[[], float],
    ) -> None:
        self._revisions = revisions
        self._wall_clock = wall_clock
        self._changed = trio.Event()
        self._subscribers: dict[object, Callable[[NodeSnapshot], None]] = {}
        self._published = self._unchanged = self._waiting = 0
        empty = NodeSnapshot(
            identity=identity,
            revision=NEVER,
            version=version,
            system=parts.inventory.system,
            started_at=started_at,
            conditions=(),
            gpus=(),
            allocations=(),
            usages=(),
            workers=(),
            simulated=parts.inventory.simulated,
            labels=labels,
        )
        self._parts = parts
        self._snapshot = self._publish(compose(parts, empty, now=wall_clock()))

    @property
    def snapshot(self) -> NodeSnapshot:
        """The latest."""
        return self._snapshot

    @property
    def parts(self) -> Parts:
        """What the latest was made of; an update replaces the parts that changed."""
        return self._parts

    def next_revision(self) -> Revision:
        """A revision above all that were handed out, for an object that is about to change."""
        return self._revisions.next()

    def update(self, parts: Parts) -> bool:
        """Derive and publish a snapshot of these parts; False when it says what the last one said."""
        self._parts = parts
        draft = compose(parts, self._snapshot, now=self._wall_clock())
        if draft == self._snapshot:
            self._unchanged += 1
            return False
        self._snapshot = self._publish(draft)
        self._changed.set()
        self._changed = trio.Event()
        for callback in tuple(self._subscribers.values()):
            callback(self._snapshot)
        return True

    async def wait(self, after: Revision) -> NodeSnapshot:
        """The latest snapshot, as soon as its revision is above after. Cancelling changes nothing."""
        await trio.lowlevel.checkpoint()
        while self._snapshot.revision <= after:
            self._waiting += 1
            try:
                await self._changed.wait()
            finally:
                self._waiting -= 1
        return self._snapshot

    def subscribe(self, callback: Callable[[NodeSnapshot], None]) -> Callable[[], None]:
        """Call back with each snapshot, from update(); it must be quick and must not raise. Returns how to end it."""
        key = object()
        self._subscribers[key] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    def statistics(self) -> StateStatistics:
        """Counters since the start of the daemon."""
        return StateStatistics(
            published_total=self._published,
            unchanged_total=self._unchanged,
            waiting=self._waiting,
            subscribers=len(self._subscribers),
        )

    def _publish(self, draft: NodeSnapshot) -> NodeSnapshot:
        revision = self._revisions.next()
        gpus = tuple(replace(gpu, revision=revision) if gpu.revision == NEVER else gpu for gpu in draft.gpus)
        self._published += 1
        return replace(draft, revision=revision, gpus=gpus)


def compose(parts: Parts, previous: NodeSnapshot, *, now: float) -> NodeSnapshot:
    """The snapshot of these parts, with the revision of the one before; GPUs that changed have NEVER. Pure."""
    inventory = parts.inventory
    return replace(
        previous,
        system=inventory.system,
        conditions=settle(node_conditions(inventory, parts.conditions), previous.conditions, now),
        gpus=derive_gpus(
            inventory,
            parts.allocations,
            foreign=parts.foreign,
            ratios=parts.ratios,
            previous={gpu.identity.uuid: gpu for gpu in previous.gpus},
            now=now,
            used_by=parts.used_by,
        ),
        allocations=tuple(sorted(parts.allocations, key=lambda allocation: allocation.spec.allocation_id)),
        usages=tuple(sorted(parts.usages, key=lambda usage: usage.allocation_id)),
        workers=tuple(sorted(parts.workers, key=lambda worker: worker.worker_id)),
        simulated=inventory.simulated,
    )
