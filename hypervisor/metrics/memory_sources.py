"""How far the sources of a card's memory are apart: NVML, the nameplate, the parts that use it, its MIG devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from hypervisor.gpu import GpuReaderStatistics
from hypervisor.gpu.memory_sources import deviation
from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.model import Gpu, NodeSnapshot


def collect(view: MetricsView) -> Iterable[Metric]:
    """By uuid and pair; a pair of which one is not known has no series."""
    statistics = view.statistics.get("gpu_reader")
    plates = statistics.nameplate_bytes if isinstance(statistics, GpuReaderStatistics) else {}
    held = _held(view.snapshot)
    families = Families()
    for gpu in view.snapshot.gpus:
        uuid, total = gpu.identity.uuid, gpu.vram_bytes.value
        plate = plates.get(uuid)
        _add(families, uuid, "nameplate_nvml", None if plate is None or total is None else deviation(plate, total))
        _add(families, uuid, "used_parts", _parts(gpu, held.get(uuid, 0)))
    for uuid, (total, instances) in _divided(view.snapshot, plates).items():
        # Instances together have less than their card, for it keeps some; more than it they can't have.
        _add(families, uuid, "card_instances", max(0.0, instances - total) / total)
    yield from families.families()


def _add(families: Families, uuid: str, pair: str, ratio: float | None) -> None:
    text = "Difference of two sources of one amount of memory; above 0.15 it needs an explanation"
    families.gauge("memory_source_deviation_ratio", text, ratio, uuid=uuid, pair=pair)


def _held(snapshot: NodeSnapshot) -> dict[str, int | None]:
    """Bytes that the workloads of each device hold by their own account, None where one of them does not tell."""
    held: dict[str, int | None] = {}
    for usage in snapshot.usages:
        for device in usage.devices:
            before, reserved = held.get(device.gpu_uuid, 0), device.reserved_bytes.value
            overhead = device.overhead_bytes.value or 0
            held[device.gpu_uuid] = None if before is None or reserved is None else before + reserved + overhead
    return held


def _parts(gpu: Gpu, held: int | None) -> float | None:
    used, foreign, total = gpu.readings.memory_used_bytes, gpu.unattributed_bytes, gpu.vram_bytes.value
    if used.value is None or used.stale or foreign.value is None or held is None or not total:
        return None
    return deviation(used.value, foreign.value + held, of=total)


def _divided(snapshot: NodeSnapshot, plates: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Of each divided card the bytes by its nameplate, and of its instances together."""
    found: dict[str, tuple[int, int]] = {}
    for gpu in snapshot.gpus:
        partition = gpu.identity.partition
        if partition is None or partition.parent_uuid not in plates:
            continue
        total, so_far = found.get(partition.parent_uuid, (plates[partition.parent_uuid], 0))
        found[partition.parent_uuid] = (total, so_far + (gpu.vram_bytes.value or 0))
    return found
