from __future__ import annotations

import pytest

from hypervisor.gpu import topology, wire
from hypervisor.gpu.topology import Place
from hypervisor.gpu.wire import Answer, NvLink, PeerFacts
from hypervisor.model.topology import PcieLevel

LOST: Answer[int] = Answer(None, 15)


def nvlink(number: int, remote: str = "", kind: int = 0, *, active: bool = True, version: int = 6) -> NvLink:
    return NvLink(number, Answer(active), Answer(version), Answer(kind), Answer(remote or None, 0 if remote else 3))


def place(
    slot: str,
    *,
    peers: dict[str, PeerFacts] | None = None,
    nvlinks: list[NvLink] | None = None,
    node: int | None = 0,
    known: bool = True,
) -> Place:
    surveyed = wire.Surveyed(Answer([1]), Answer([1]), nvlinks or [], list((peers or {}).values())) if known else None
    return Place(
        slot=slot, uuid=f"GPU-{slot}", numa_node=node, cpu_affinity="0", surveyed=surveyed, why="" if known else "lost"
    )


def peer(slot: str, ancestor: int | None, *, access: int = 0, nvlink_status: int = 5) -> PeerFacts:
    answer: Answer[int] = LOST if ancestor is None else Answer(ancestor)
    return PeerFacts(slot, answer, Answer(access), Answer(access), Answer(nvlink_status))


@pytest.mark.parametrize(
    ("ancestor", "level", "tier"),
    [
        (0, PcieLevel.INTERNAL, 0),
        (10, PcieLevel.PIX, 1),
        (20, PcieLevel.PXB, 1),
        (30, PcieLevel.PHB, 1),
        (40, PcieLevel.NODE, 1),
        (50, PcieLevel.SYS, 2),
    ],
)
def test_tiers_by_common_ancestor(ancestor: int, level: PcieLevel, tier: int) -> None:
    link = topology.link(place("a", peers={"b": peer("b", ancestor)}), place("b", peers={"a": peer("a", ancestor)}))
    assert (link.pcie_level, link.tier, link.unknown_reason) == (level, tier, "")
    assert link.peer_access is True


@pytest.mark.parametrize(
    ("nodes", "tier"), [((0, 0), 1), ((0, 1), 2), ((None, 0), 3), ((0, None), 3), ((None, None), 3)]
)
def test_tiers_by_numa_node_where_the_ancestor_is_unknown(nodes: tuple[int | None, int | None], tier: int) -> None:
    link = topology.link(place("a", known=False, node=nodes[0]), place("b", node=nodes[1]))
    assert link.tier == tier
    assert "lost" in link.unknown_reason


def test_direct_nvlinks_count_those_to_this_peer() -> None:
    links = [nvlink(0, "b"), nvlink(1, "b"), nvlink(2, "c"), nvlink(3, "b", active=False)]
    link = topology.link(place("a", nvlinks=links, peers={"b": peer("b", 50)}), place("b"))
    assert (link.tier, link.nvlink_count, link.nvlink_switched, link.nvlink_version) == (0, 2, False, "4.0")
    assert link.bandwidth_bytes_per_second == 50_000_000_000


def test_direct_nvlinks_are_seen_from_the_other_side_too() -> None:
    link = topology.link(place("a", known=False), place("b", nvlinks=[nvlink(0, "a")]))
    assert (link.tier, link.nvlink_count) == (0, 1)


def test_links_to_switches_join_all_that_have_them() -> None:
    switched = [nvlink(number, f"switch{number}", kind=2) for number in range(18)]
    fewer = [*switched[:17], nvlink(17, "switch17", kind=2, active=False)]
    link = topology.link(place("a", nvlinks=switched), place("b", nvlinks=fewer))
    assert (link.tier, link.nvlink_count, link.nvlink_switched) == (0, 17, True)
    alone = topology.link(place("a", nvlinks=switched), place("c", peers={"a": peer("a", 40)}))
    assert (alone.tier, alone.nvlink_count) == (1, 0)


def test_peer_access_over_nvlink_is_tier_0_when_the_links_themselves_say_nothing() -> None:
    link = topology.link(place("a", peers={"b": peer("b", 50, nvlink_status=0)}), place("b"))
    assert (link.tier, link.nvlink_count, link.bandwidth_bytes_per_second) == (0, 0, None)


def test_no_peer_access() -> None:
    link = topology.link(place("a", peers={"b": peer("b", 50, access=1)}), place("b"))
    assert link.peer_access is False


def test_one_lost_gpu_does_not_void_the_matrix() -> None:
    slots = ("a", "b", "c", "d")

    def peers(slot: str) -> dict[str, PeerFacts]:
        return {
            other: PeerFacts(other, LOST, LOST, LOST, LOST) if "b" in (slot, other) else peer(other, 20)
            for other in slots
            if other != slot
        }

    found = topology.topologies([place(slot, peers=peers(slot), node=None, known=slot != "b") for slot in slots])
    assert set(found) == {f"GPU-{slot}" for slot in slots}
    for mine in found.values():
        assert len(mine.links) == 3
        for link in mine.links:
            lost = "GPU-b" in (mine.gpu_uuid, link.peer_uuid)
            assert link.tier == (3 if lost else 1)
            assert bool(link.unknown_reason) == lost
