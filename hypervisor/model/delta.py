"""What differs between two states of a node; pure, and what watchers and reports are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hypervisor.model.allocation import Allocation
from hypervisor.model.figure import Figure
from hypervisor.model.gpu import Gpu
from hypervisor.model.revision import Revision
from hypervisor.model.snapshot import NodeSnapshot
from hypervisor.model.usage import AllocationUsage, DeviceUsage, Pacing
from hypervisor.model.worker import Worker

Changing = TypeVar("Changing", Gpu, Worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The way from one state to another: whole objects that are new or changed, and tombstones.

    node says whether anything but the objects changed: versions, conditions, the sums over the GPUs. An allocation
    counts as changed when its use has changed too.
    """

    base: Revision
    revision: Revision
    node: bool
    gpus: tuple[Gpu, ...]
    allocations: tuple[Allocation, ...]
    workers: tuple[Worker, ...]
    removed_gpu_uuids: tuple[str, ...]
    removed_allocation_ids: tuple[str, ...]
    removed_worker_ids: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """True when nothing changed but the revision."""
        return not (
            self.node
            or self.gpus
            or self.allocations
            or self.workers
            or self.removed_gpu_uuids
            or self.removed_allocation_ids
            or self.removed_worker_ids
        )


def diff(old: NodeSnapshot, new: NodeSnapshot) -> Delta:
    """What changed from old to new. An object has changed when its revision has, an allocation also with its use."""
    old_gpus = {gpu.identity.uuid: gpu for gpu in old.gpus}
    old_workers = {worker.worker_id: worker for worker in old.workers}
    old_allocations = {allocation.spec.allocation_id: allocation for allocation in old.allocations}
    old_usages = {usage.allocation_id: usage for usage in old.usages}
    new_usages = {usage.allocation_id: usage for usage in new.usages}
    return Delta(
        base=old.revision,
        revision=new.revision,
        node=_node_changed(old, new),
        gpus=_changed(old_gpus, ((gpu.identity.uuid, gpu) for gpu in new.gpus)),
        allocations=tuple(
            allocation
            for allocation in new.allocations
            if _allocation_changed(old_allocations, old_usages, new_usages, allocation)
        ),
        workers=_changed(old_workers, ((worker.worker_id, worker) for worker in new.workers)),
        removed_gpu_uuids=_removed(old_gpus, (gpu.identity.uuid for gpu in new.gpus)),
        removed_allocation_ids=_removed(
            old_allocations, (allocation.spec.allocation_id for allocation in new.allocations)
        ),
        removed_worker_ids=_removed(old_workers, (worker.worker_id for worker in new.workers)),
    )


def _changed(old: Mapping[str, Changing], new: Iterable[tuple[str, Changing]]) -> tuple[Changing, ...]:
    return tuple(item for key, item in new if (before := old.get(key)) is None or before.revision != item.revision)


def _removed(old: Iterable[str], remaining: Iterable[str]) -> tuple[str, ...]:
    kept = frozenset(remaining)
    return tuple(key for key in old if key not in kept)


def _allocation_changed(
    old: Mapping[str, Allocation],
    old_usages: Mapping[str, AllocationUsage],
    new_usages: Mapping[str, AllocationUsage],
    allocation: Allocation,
) -> bool:
    key = allocation.spec.allocation_id
    before = old.get(key)
    if before is None or before.revision != allocation.revision or before.uid != allocation.uid:
        return True
    return not _same_usage(old_usages.get(key), new_usages.get(key))


def _same_usage(old: AllocationUsage | None, new: AllocationUsage | None) -> bool:
    """Whether two usages say the same; that the figures were read again is no change."""
    if old is new:
        return True
    if old is None or new is None:
        return False
    return (
        old.enforcement == new.enforcement
        and old.tampering == new.tampering
        and old.processes == new.processes
        and tuple(map(_device_values, old.devices)) == tuple(map(_device_values, new.devices))
    )


def _device_values(device: DeviceUsage) -> tuple[object, ...]:
    return (
        device.gpu_uuid,
        device.over,
        _said(device.reserved_bytes),
        _said(device.overhead_bytes),
        _said(device.busy_ratio),
        _said(device.throttled_seconds_total),
        _said(device.launches_total),
        _said(device.denials_total),
        _pacing_said(device.pacing),
    )


def _pacing_said(pacing: Pacing | None) -> object:
    if pacing is None:
        return None
    figures = (_said(pacing.achieved_ratio), _said(pacing.balance_seconds))
    return (*figures, pacing.correction, pacing.correction_frozen, pacing.lent_ratio, pacing.costs)


def _said(figure: Figure[int] | Figure[float]) -> tuple[object, ...]:
    return (figure.value, figure.source, figure.stale, figure.absent_reason)


def _node_changed(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    return (
        (old.identity, old.version, old.system, old.started_at, old.simulated, old.conditions)
        != (new.identity, new.version, new.system, new.started_at, new.simulated, new.conditions)
    ) or _capacities(old) != _capacities(new)


def _capacities(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """What the node's sums are made of."""
    return tuple((gpu.identity.uuid, _said(gpu.tflops), _said(gpu.vram_bytes)) for gpu in snapshot.gpus)
