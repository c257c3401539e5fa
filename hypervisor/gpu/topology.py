"""From what two GPUs and their links say, to tiers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypervisor.gpu import wire
from hypervisor.gpu.codes import words
from hypervisor.model.topology import GpuTopology, PcieLevel, TopologyLink

PCIE_LEVELS = {
    0: PcieLevel.INTERNAL,
    10: PcieLevel.PIX,
    20: PcieLevel.PXB,
    30: PcieLevel.PHB,
    40: PcieLevel.NODE,
    50: PcieLevel.SYS,
}
# NVML's enum of link generations: name, and nominal bytes a second of one link in one direction.
NVLINK_VERSIONS = {
    1: ("1.0", 20_000_000_000),
    2: ("2.0", 25_000_000_000),
    3: ("2.2", 25_000_000_000),
    4: ("3.0", 25_000_000_000),
    5: ("3.1", 25_000_000_000),
    6: ("4.0", 25_000_000_000),
    7: ("5.0", 50_000_000_000),
    8: ("6.0", 100_000_000_000),
}
REMOTE_SWITCH = 2

TIER_NVLINK, TIER_SAME_NODE, TIER_OTHER_NODE, TIER_UNKNOWN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One GPU in the machine, as surveyed. surveyed is None where it could not be; then why says so."""

    slot: str
    uuid: str
    numa_node: int | None
    cpu_affinity: str
    surveyed: wire.Surveyed | None
    why: str = ""


def topologies(places: Sequence[Place]) -> dict[str, GpuTopology]:
    """Topology of each GPU by UUID. A GPU that could not be surveyed costs its own links only."""
    found = {}
    for place in places:
        links = tuple(link(place, peer) for peer in places if peer.slot != place.slot)
        found[place.uuid] = GpuTopology(
            gpu_uuid=place.uuid, numa_node=place.numa_node, cpu_affinity=place.cpu_affinity, links=links
        )
    return found


def link(place: Place, peer: Place) -> TopologyLink:
    """The way from one GPU to another; what one side does not say is taken from the other."""
    there = _peer_facts(place, peer.slot)
    back = _peer_facts(peer, place.slot)
    level = _level(there) or _level(back)
    count, switched, version = nvlinks_between(place, peer)
    name, speed = NVLINK_VERSIONS.get(version, ("", 0)) if count else ("", 0)
    linked = count > 0 or _is_ok(there, "nvlink_status") or _is_ok(back, "nvlink_status")
    tier = tier_of(linked=linked, level=level, nodes=(place.numa_node, peer.numa_node))
    return TopologyLink(
        peer_uuid=peer.uuid,
        tier=tier,
        pcie_level=level,
        nvlink_count=count,
        nvlink_switched=switched,
        nvlink_version=name,
        bandwidth_bytes_per_second=count * speed or None,
        peer_access=_access(there) if _access(there) is not None else _access(back),
        unknown_reason=_unknown(place, peer, there) if level is None else "",
    )


def tier_of(*, linked: bool, level: PcieLevel | None, nodes: tuple[int | None, int | None]) -> int:
    """0 NVLink or same board, 1 same NUMA node, 2 across NUMA nodes, 3 unknown."""
    if linked or level is PcieLevel.INTERNAL:
        return TIER_NVLINK
    if level is not None:
        return TIER_OTHER_NODE if level is PcieLevel.SYS else TIER_SAME_NODE
    first, second = nodes
    if first is None or second is None:
        return TIER_UNKNOWN
    return TIER_SAME_NODE if first == second else TIER_OTHER_NODE


def nvlinks_between(place: Place, peer: Place) -> tuple[int, bool, int]:
    """Active NVLinks of the pair, whether they go through switches, and their generation.

    On machines with NVSwitch the far end is a switch, or can't be told: all GPUs with such links reach each other.
    """
    mine, theirs = _active_links(place), _active_links(peer)
    direct = [each for each in mine if each.remote_bus_id.value == peer.slot]
    direct = direct or [each for each in theirs if each.remote_bus_id.value == place.slot]
    if direct:
        return len(direct), False, _oldest(direct)
    my_switched = [each for each in mine if each.remote_kind.value == REMOTE_SWITCH]
    their_switched = [each for each in theirs if each.remote_kind.value == REMOTE_SWITCH]
    if my_switched and their_switched:
        fewer = min(my_switched, their_switched, key=len)
        return len(fewer), True, _oldest(fewer)
    return 0, False, 0


def _oldest(links: Sequence[wire.NvLink]) -> int:
    return min((each.version.value for each in links if each.version.value), default=0)


def _active_links(place: Place) -> list[wire.NvLink]:
    return [each for each in place.surveyed.nvlinks if each.active.value] if place.surveyed else []


def _peer_facts(place: Place, slot: str) -> wire.PeerFacts | None:
    if place.surveyed is None:
        return None
    return next((peer for peer in place.surveyed.peers if peer.slot == slot), None)


def _level(facts: wire.PeerFacts | None) -> PcieLevel | None:
    return PCIE_LEVELS.get(facts.ancestor.value) if facts and facts.ancestor.value is not None else None


def _is_ok(facts: wire.PeerFacts | None, name: str) -> bool:
    return facts is not None and getattr(facts, name).value == 0


def _access(facts: wire.PeerFacts | None) -> bool | None:
    if facts is None or facts.read_status.value is None or facts.write_status.value is None:
        return None
    return facts.read_status.value == 0 and facts.write_status.value == 0


def _unknown(place: Place, peer: Place, facts: wire.PeerFacts | None) -> str:
    for side in (place, peer):
        if side.surveyed is None:
            return f"{side.uuid}: {side.why}"
    if facts is None:
        return f"{peer.uuid} was not attached when {place.uuid} was surveyed"
    if facts.ancestor.value is not None:
        return f"the driver gave level {facts.ancestor.value}, which is none"
    return words(facts.ancestor.code)
