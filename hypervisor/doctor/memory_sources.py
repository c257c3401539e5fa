"""Memory of a GPU as several sources have it, and where they differ too much; pure but for the model catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.doctor.facts import GpuFacts, GrantFacts, NodeFacts
from hypervisor.gpu.catalogue import Card, Catalogue, Rating
from hypervisor.gpu.memory_sources import MOST_DEVIATION, deviation

_GIBIBYTE = 2**30


def deviations_of(gpu: GpuFacts, node: NodeFacts) -> list[str]:
    """Pairs of sources of one GPU that differ by more than 15 %, as sentences."""
    found = []
    plate = _nameplate(gpu)
    if plate is not None and gpu.vram_bytes is not None:
        found += _deviation(gpu, "total memory", {"nameplate": plate, "NVML": gpu.vram_bytes})
    parts = _parts(gpu, node)
    used = gpu.memory_used_bytes
    # Of the card and not of the smaller figure: some MiB against none are no deviation.
    if parts is not None and used is not None and deviation(parts, used, of=gpu.vram_bytes) > MOST_DEVIATION:
        found.append(f"GPU {gpu.index}: used memory is {gib(used)} by NVML and {gib(parts)} by its parts")
    instances = [each for each in node.gpus if each.parent_uuid == gpu.uuid]
    if instances and gpu.vram_bytes:
        total = sum(each.vram_bytes or 0 for each in instances)
        if total > gpu.vram_bytes * (1 + MOST_DEVIATION):
            found.append(f"GPU {gpu.index}: MIG devices of {gib(total)} on {gib(gpu.vram_bytes)}")
    return found


def _deviation(gpu: GpuFacts, what: str, sources: dict[str, int]) -> list[str]:
    (first, one), (second, other) = sources.items()
    if deviation(one, other) <= MOST_DEVIATION:
        return []
    return [f"GPU {gpu.index}: {what} is {gib(one)} by {first} and {gib(other)} by {second}"]


def _nameplate(gpu: GpuFacts) -> int | None:
    if not gpu.model or gpu.parent_uuid:
        return None
    rating: Rating = Catalogue.load().rate(
        Card(name=gpu.model, pci_identifier=gpu.pci_device_id, memory_bytes=gpu.vram_bytes), now=0.0
    )
    return rating.model.vram_bytes if rating.model else None


def _parts(gpu: GpuFacts, node: NodeFacts) -> int | None:
    """What allocations and processes of no allocation hold; None when not all of it is known."""
    if gpu.unattributed_bytes is None:
        return None
    held = gpu.unattributed_bytes
    for grant in _grants(node, gpu.uuid):
        if grant.reserved_bytes is None:
            return None
        held += grant.reserved_bytes + (grant.overhead_bytes or 0)
    return held


def _grants(node: NodeFacts, uuid: str) -> Iterable[GrantFacts]:
    return (grant for each in node.allocations for grant in each.grants if grant.gpu_uuid == uuid)


def gib(count: int) -> str:
    return f"{count / _GIBIBYTE:.1f} GiB"
