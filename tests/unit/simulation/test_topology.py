"""Links and pairs, worked out from a few words."""

from __future__ import annotations

import pytest

from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.profiles import load_profile

READ, WRITE, NVLINK, ATOMICS, PROP = range(5)


def h100s(count: int, nvlink: str):
    text = (
        'version: 1\ndriver: {version: "580.65.06", cuda: 13000}\n'
        f"gpus: [{{count: {count}, profile: h100-sxm-80gb}}]\nnvlink: {nvlink}\n"
    )
    return parse_machine(text, "m.yaml", profile="m")


def test_behind_switches_every_link_ends_at_a_switch() -> None:
    spec = load_profile("h100-sxm-80gb")
    for gpu in spec.gpus:
        assert [link.active for link in gpu.links] == [1] * 18
        assert {link.remote_type for link in gpu.links} == {2}
        assert len({link.remote_bus_id for link in gpu.links}) == 4
        assert gpu.fabric_state == 3
    assert all(status == 0 for row in spec.topology.p2p_status[NVLINK] for status in row)


@pytest.mark.parametrize(
    ("count", "nvlink"), [(4, "{topology: mesh, links_per_gpu: 6}"), (4, "{topology: pairs, links_per_gpu: 4}")]
)
def test_each_direct_link_has_two_ends_that_name_each_other(count: int, nvlink: str) -> None:
    gpus = h100s(count, nvlink).gpus
    by_bus = {gpu.bus_id: gpu for gpu in gpus}
    ends = 0
    for gpu in gpus:
        for number, link in enumerate(gpu.links):
            if not link.active:
                continue
            peer = by_bus[link.remote_bus_id]
            back = peer.links[link.remote_link]
            assert peer is not gpu
            assert (back.remote_bus_id, back.remote_link) == (gpu.bus_id, number)
            ends += 1
    assert ends == {"mesh": 4 * 6, "pairs": 4 * 4}["mesh" if "mesh" in nvlink else "pairs"]


def test_a_link_that_is_down_is_down_at_both_ends() -> None:
    gpus = h100s(2, "{topology: pairs, links_per_gpu: 2, inactive: [{gpu: 0, links: [1]}]}").gpus
    assert [[link.active for link in gpu.links[:2]] for gpu in gpus] == [[1, 0], [1, 0]]


def test_pairs_reach_only_their_partner_over_nvlink() -> None:
    status = h100s(4, "{topology: pairs, links_per_gpu: 4}").topology.p2p_status
    assert [[code == 0 for code in row] for row in status[NVLINK]] == [
        [True, True, False, False],
        [True, True, False, False],
        [False, False, True, True],
        [False, False, True, True],
    ]
    assert all(code == 0 for row in status[READ] for code in row)  # over PCIe


def test_levels_follow_switches_nodes_and_names() -> None:
    a100 = load_profile("a100-sxm-80gb").topology.ancestor
    assert a100[0] == (0, 20, 40, 40, 50, 50, 50, 50)
    assert load_profile("l40s").topology.ancestor[5] == (50, 50, 50, 50, 10, 0, 40, 40)
    assert load_profile("rtx4090").topology.ancestor == ((0, 30), (30, 0))
    for name in ("a100-sxm-80gb", "l40s"):
        matrix = load_profile(name).topology.ancestor
        assert all(matrix[a][b] == matrix[b][a] for a in range(8) for b in range(8))


def test_cards_without_peer_access_say_so() -> None:
    status = load_profile("rtx4090").topology.p2p_status
    assert [status[capability][0][1] for capability in (READ, WRITE, NVLINK, ATOMICS, PROP)] == [1, 1, 5, 5, 1]
    assert status[READ][0][0] == 0
