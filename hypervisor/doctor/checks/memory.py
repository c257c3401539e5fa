"""Memory of the GPUs: whether the sources agree, what is left for grants, and whether promises can be kept."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, not_applicable, passed, warned
from hypervisor.doctor.memory_sources import deviations_of, gib
from hypervisor.doctor.subject import NodeSubject

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
        return passed(f"largest free part {gib(largest)}, {gib(free)} in all")
    return warned(
        [f"{gib(free)} are free in all, and no card has more than {gib(largest)} of {gib(whole)}"],
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
                f"GPU {gpu.index}: limits of {gib(limits)} on {gib(gpu.vram_bytes)},"
                f" {gib(gpu.memory_used_bytes)} in use"
            )
    if not tight:
        return passed("no card is full below the limits that were promised")
    return warned(
        tight,
        "limits above requests sum up to more than the card has, and it is full now: allocations fail below their"
        " limit",
        "for workloads that must reach their limit, set the VRAM request to the limit",
    )


CHECKS = (sources_agree, promises)
SCHEDULING_CHECKS = (fragmentation,)
