"""What can be granted of each GPU, and what has been."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.model import Gpu


def collect(view: MetricsView) -> Iterable[Metric]:
    """Capacity, requests and the rest, by uuid, and how the rest is scattered over the node."""
    families = Families()
    for gpu in view.snapshot.gpus:
        _gpu(families, gpu)
    for resource, free in (
        ("tflops", [(gpu, gpu.available_tflops.value) for gpu in view.snapshot.gpus]),
        ("memory", [(gpu, gpu.available_vram_bytes.value) for gpu in view.snapshot.gpus]),
    ):
        families.gauge(
            "fragmentation_ratio",
            "Share of what is free on the node that lies on cards already in use and can't be had as a whole card",
            fragmentation(free),
            resource=resource,
        )
    yield from families.families()


def fragmentation(free: Sequence[tuple[Gpu, float | None]]) -> float | None:
    """0 when all that is free are whole cards, 1 when none is; None when nothing is free or nothing is known."""
    known = [(gpu, amount) for gpu, amount in free if amount is not None and gpu.allocatable]
    total = sum(amount for _, amount in known)
    if not total:
        return None
    return sum(amount for gpu, amount in known if gpu.allocation_ids or gpu.unattributed_bytes.value) / total


def _gpu(families: Families, gpu: Gpu) -> None:
    uuid = gpu.identity.uuid
    known = gpu.tflops.value is not None
    families.gauge("capacity_tflops", "Dense FP16 TFLOPS of the GPU", gpu.tflops.value, uuid=uuid)
    families.gauge("capacity_memory_bytes", "VRAM that can be granted", gpu.vram_bytes.value, uuid=uuid)
    families.gauge("allocated_tflops", "Sum of the requests", gpu.requested_tflops if known else None, uuid=uuid)
    families.gauge("allocated_memory_bytes", "Sum of the requests", gpu.requested_vram_bytes, uuid=uuid)
    families.gauge("available_tflops", "Capacity times ratio, less the requests", gpu.available_tflops.value, uuid=uuid)
    families.gauge(
        "available_memory_bytes",
        "Capacity times ratio, less the requests and what processes of no allocation hold",
        gpu.available_vram_bytes.value,
        uuid=uuid,
    )
    families.gauge(
        "pod_gpu_unattributed_memory_bytes",
        "VRAM held by processes of no allocation",
        gpu.unattributed_bytes.value,
        uuid=uuid,
    )
