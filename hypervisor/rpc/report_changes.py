"""What of a change must be reported at once, and what may wait for the next heartbeat. Pure."""

from __future__ import annotations

from dataclasses import replace

from hypervisor.model import Gpu, NodeSnapshot
from hypervisor.model.delta import Delta


def without_use(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The state as it is reported: what allocations use of their share is the node's own to tell."""
    return replace(snapshot, usages=())


def is_urgent(delta: Delta, old: NodeSnapshot) -> bool:
    """Whether a fact has changed since the old state; readings alone can wait."""
    if delta.node or delta.allocations or delta.workers:
        return True
    if delta.removed_gpu_uuids or delta.removed_allocation_ids or delta.removed_worker_ids:
        return True
    before = {gpu.identity.uuid: gpu for gpu in old.gpus}
    for gpu in delta.gpus:
        was = before.get(gpu.identity.uuid)
        if was is None or _facts(was) != _facts(gpu):
            return True
    return False


def _facts(gpu: Gpu) -> tuple[object, ...]:
    """All of a GPU but readings, revision and when its figures were read."""
    return (
        gpu.identity,
        *(
            (figure.value, figure.source, figure.stale, figure.absent_reason)
            for figure in (
                gpu.tflops,
                gpu.vram_bytes,
                gpu.available_tflops,
                gpu.available_vram_bytes,
                gpu.unattributed_bytes,
            )
        ),
        gpu.topology,
        gpu.health,
        gpu.conditions,
        gpu.active_isolation,
        gpu.used_by,
        gpu.allocation_ids,
        gpu.requested_share_ppm,
        gpu.requested_tflops,
        gpu.requested_vram_bytes,
        gpu.tflops_ratio,
        gpu.vram_ratio,
        gpu.allocatable,
    )
