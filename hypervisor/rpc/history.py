"""What changed since which revision, within a bounded window; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from hypervisor.model import NodeSnapshot, Revision
from hypervisor.model.delta import Delta, diff

T = TypeVar("T")


class History:
    """The last state, the revision at which each object last changed, and the newest tombstones.

    A watcher needs no queue and no set of its own: the revision that it has seen says what it lacks. Deletions are
    never lost: when a tombstone has to go, revisions before it can't be resumed from any more.
    """

    def __init__(self, snapshot: NodeSnapshot, *, tombstones: int = 4096) -> None:
        self._snapshot = snapshot
        self._bound = tombstones
        self._floor = snapshot.revision
        self._node_changed_at = snapshot.revision
        self._gpus: dict[str, Revision] = {}
        self._allocations: dict[str, Revision] = {}
        self._workers: dict[str, Revision] = {}
        # Kind and id of what is gone -> the revision at which it went; the oldest first.
        self._tombstones: OrderedDict[tuple[str, str], Revision] = OrderedDict()

    @property
    def snapshot(self) -> NodeSnapshot:
        return self._snapshot

    @property
    def tombstones(self) -> int:
        """Deletions that are remembered."""
        return len(self._tombstones)

    def advance(self, snapshot: NodeSnapshot) -> None:
        """Take over a new state. One that is not newer than the last is only put in its place."""
        at = snapshot.revision
        if at > self._snapshot.revision:
            delta = diff(self._snapshot, snapshot)
            if delta.node:
                self._node_changed_at = at
            self._record("gpu", self._gpus, (gpu.identity.uuid for gpu in delta.gpus), delta.removed_gpu_uuids, at)
            self._record(
                "allocation",
                self._allocations,
                (allocation.spec.allocation_id for allocation in delta.allocations),
                delta.removed_allocation_ids,
                at,
            )
            self._record(
                "worker",
                self._workers,
                (worker.worker_id for worker in delta.workers),
                delta.removed_worker_ids,
                at,
            )
        self._snapshot = snapshot

    def since(self, after: Revision) -> Delta | None:
        """What has changed after a revision; None when that can't be said any more, or not of this history."""
        now = self._snapshot.revision
        if after.epoch != now.epoch or not self._floor <= after <= now:
            return None
        return Delta(
            base=after,
            revision=now,
            node=self._node_changed_at > after,
            gpus=_newer(((gpu.identity.uuid, gpu) for gpu in self._snapshot.gpus), self._gpus, after),
            allocations=_newer(
                ((allocation.spec.allocation_id, allocation) for allocation in self._snapshot.allocations),
                self._allocations,
                after,
            ),
            workers=_newer(((worker.worker_id, worker) for worker in self._snapshot.workers), self._workers, after),
            removed_gpu_uuids=self._gone("gpu", after),
            removed_allocation_ids=self._gone("allocation", after),
            removed_worker_ids=self._gone("worker", after),
        )

    def _record(
        self, kind: str, changed_at: dict[str, Revision], changed: Iterable[str], removed: Iterable[str], at: Revision
    ) -> None:
        for key in changed:
            changed_at[key] = at
            self._tombstones.pop((kind, key), None)
        for key in removed:
            changed_at.pop(key, None)
            self._tombstones[kind, key] = at
            self._tombstones.move_to_end((kind, key))
        while len(self._tombstones) > self._bound:
            _, self._floor = self._tombstones.popitem(last=False)

    def _gone(self, kind: str, after: Revision) -> tuple[str, ...]:
        found = []
        for (of, key), at in reversed(self._tombstones.items()):
            if at <= after:
                break
            if of == kind:
                found.append(key)
        return tuple(reversed(found))


def _newer(objects: Iterable[tuple[str, T]], changed_at: Mapping[str, Revision], after: Revision) -> tuple[T, ...]:
    """Objects that changed after a revision; those without an entry are as they were at the beginning."""
    return tuple(found for key, found in objects if (at := changed_at.get(key)) is not None and at > after)
