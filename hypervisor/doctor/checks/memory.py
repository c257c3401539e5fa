"""Memory of the GPUs: whether the sources agree, what is left for grants, and whether promises can be kept."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.doctor.check import Outcome, Stage, check, not_applicable, passed, warned
from hypervisor.doctor.facts import GpuFacts, GrantFacts, NodeFacts
from hypervisor.doctor.subject import NodeSubject
from hypervisor.gpu.catalogue import Card, Catalogue, Rating

DEVIATION = 0.15
_GIBIBYTE = 2**30
_NEARLY_FULL = 0.95
# Half of what is free lies in pieces that are smaller than half a card.
_FRAGMENTED = 0.5


@check(
    "memory.sources-agree",
    stage=Stage.HYPERVISOR,
    looks_at="total memory by NVML and by nameplate; used memory by NVML and by the sum of its parts",
    source="article 5.3: a deviation above 15 %; nvidia-stack.md 7.3",
)
def sources_agree(subject: NodeSubject) -> Outcome:
    """Do all sources give the same memory, within 15 %?"""
    if subject.facts is None or not subject.facts.gpus:
        return not_applicable(subject.unanswered)
    deviations = [told for gpu in subject.facts.gpus for told in deviations_of(gpu, subject.facts)]
    if not deviations:
        return passed("no two sources differ by more than 15 %")
    return warned(
        deviations,
        "one of the sources is wrong: a reading that failed, a card in a reduced-memory mode (Xid 168), or memory that"
        " nobody accounts for",
        "compare with 'nvidia-smi -q -d MEMORY'; processes that hold memory without an allocation are listed there too",
    )


@check(
    "memory.fragmentation",
    stage=Stage.SCHEDULING,
    looks_at="available memory of each GPU",
    source="article 4.2, whose limits.memory bounds host memory only; nvidia-stack.md 7.3",
)
def fragmentation(subject: NodeSubject) -> Outcome:
    """Could a workload that needs what is free on average get it on one card?"""
    if not subject.has_daemon or subject.facts is None:
        return not_applicable(subject.unanswered)
    cards = [gpu for gpu in subject.facts.gpus if gpu.available_vram_bytes is not None and gpu.allocatable]
    free = sum(gpu.available_vram_bytes or 0 for gpu in cards)
    if len(cards) < 2 or free == 0:
        return not_applicable("there is one card at most, or nothing free")
    largest = max(gpu.available_vram_bytes or 0 for gpu in cards)
    whole = min(gpu.vram_bytes or 0 for gpu in cards)
    if free < whole or largest >= whole * (1 - _FRAGMENTED):
        return passed(f"largest free part {_gib(largest)}, {_gib(free)} in all")
    return warned(
        [f"{_gib(free)} are free in all, and no card has more than {_gib(largest)} of {_gib(whole)}"],
        "what is free lies in pieces: a workload stays pending although the sum would do",
        "move small workloads together (release and grant anew), or ask for smaller shares; a host-memory limit on the"
        " container does not bound VRAM",
    )


@check(
    "memory.promises",
    stage=Stage.HYPERVISOR,
    looks_at="limits of all allocations on a card, its memory and its use",
    source="handbook: CUDA out of memory below the limit while the card is full",
)
def promises(subject: NodeSubject) -> Outcome:
    """Can every workload reach its limit?"""
    if not subject.has_daemon or subject.facts is None:
        return not_applicable(subject.unanswered)
    tight = []
    for gpu in subject.facts.gpus:
        grants = [grant for each in subject.facts.allocations for grant in each.grants if grant.gpu_uuid == gpu.uuid]
        limits = sum(grant.limit_vram_bytes or gpu.vram_bytes or 0 for grant in grants)
        if not gpu.vram_bytes or gpu.memory_used_bytes is None or limits <= gpu.vram_bytes:
            continue
        if gpu.memory_used_bytes >= gpu.vram_bytes * _NEARLY_FULL:
            tight.append(
                f"GPU {gpu.index}: limits of {_gib(limits)} on {_gib(gpu.vram_bytes)},"
                f" {_gib(gpu.memory_used_bytes)} in use"
            )
    if not tight:
        return passed("no card is full below the limits that were promised")
    return warned(
        tight,
        "limits above requests sum up to more than the card has, and it is full now: allocations fail below their"
        " limit",
        "for workloads that must reach their limit, set the VRAM request to the limit",
    )


def deviations_of(gpu: GpuFacts, node: NodeFacts) -> list[str]:
    """Pairs of sources of one GPU that differ by more than 15 %, as sentences."""
    found = []
    plate = _nameplate(gpu)
    if plate is not None and gpu.vram_bytes is not None:
        found += _deviation(gpu, "total memory", {"nameplate": plate, "NVML": gpu.vram_bytes})
    parts = _parts(gpu, node)
    used = gpu.memory_used_bytes
    # Of the card and not of the smaller figure: some MiB against none are no deviation.
    if parts is not None and used is not None and abs(parts - used) > DEVIATION * (gpu.vram_bytes or used):
        found.append(f"GPU {gpu.index}: used memory is {_gib(used)} by NVML and {_gib(parts)} by its parts")
    instances = [each for each in node.gpus if each.parent_uuid == gpu.uuid]
    if instances and gpu.vram_bytes:
        total = sum(each.vram_bytes or 0 for each in instances)
        if total > gpu.vram_bytes * (1 + DEVIATION):
            found.append(f"GPU {gpu.index}: MIG devices of {_gib(total)} on {_gib(gpu.vram_bytes)}")
    return found


def _deviation(gpu: GpuFacts, what: str, sources: dict[str, int]) -> list[str]:
    (first, one), (second, other) = sources.items()
    if abs(one - other) <= DEVIATION * max(one, other):
        return []
    return [f"GPU {gpu.index}: {what} is {_gib(one)} by {first} and {_gib(other)} by {second}"]


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


def _gib(count: int) -> str:
    return f"{count / _GIBIBYTE:.1f} GiB"


CHECKS = (sources_agree, promises)
SCHEDULING_CHECKS = (fragmentation,)
