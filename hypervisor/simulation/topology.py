"""How the GPUs of a machine hang together, worked out from a few words: PCIe levels, NVLinks, peer access.

Pure. Numbers are NVML's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypervisor.simulation.spec import P2P_CAPABILITIES, GpuSpec, LinkSpec, Matrix, ModelSpec, TopologySpec

LEVELS: Mapping[str, int] = {"pix": 10, "pxb": 20, "phb": 30, "node": 40, "sys": 50}
LEVEL_SELF = 0
LEVEL_NODE = 40
LEVEL_SYSTEM = 50

P2P_OK = 0
P2P_CHIPSET_NOT_SUPPORTED = 1
P2P_NOT_SUPPORTED = 5
_READ, _WRITE, _NVLINK, _ATOMICS, _PROP = range(P2P_CAPABILITIES)

_REMOTE_GPU = 0
_REMOTE_SWITCH = 2

# NVLink generation -> NVML's version enumeration, which also counts the half steps.
_LINK_VERSIONS: Mapping[int, int] = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7, 6: 8}
# peer access, system memory access, peer atomics, system memory atomics, valid
_LINK_CAPABILITIES = 0b101111
_FIRST_SWITCH_BUS = 0x05


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """What the description says about NVLink: `topology` is nvswitch, pairs or mesh."""

    topology: str
    links_per_gpu: int
    switches: int = 0
    inactive: frozenset[tuple[int, int]] = frozenset()  # (GPU, link)


def link_peers(plan: LinkPlan, gpu: int, gpus: int) -> tuple[int | None, ...]:
    """The GPU at the far end of each link of `gpu`; None where that is a switch."""
    if plan.topology == "nvswitch":
        return (None,) * plan.links_per_gpu
    if plan.topology == "pairs":
        return (gpu ^ 1,) * plan.links_per_gpu
    others = [other for other in range(gpus) if other != gpu]
    return tuple(other for other in others for _ in range(plan.links_per_gpu // len(others)))


def links_of(plan: LinkPlan, gpu: int, gpus: Sequence[GpuSpec], model: ModelSpec) -> tuple[LinkSpec, ...]:
    """All links of one GPU; those that the model has beyond the plan are there and down."""
    peers = link_peers(plan, gpu, len(gpus))
    down_remotely = {(other, number) for other, number in plan.inactive if other != gpu and plan.topology != "nvswitch"}
    links = []
    for number in range(model.gpu.link_count):
        used = number < len(peers)
        peer = peers[number] if used else None
        switch = number * max(plan.switches, 1) // max(len(peers), 1)
        remote_number = number
        if peer is not None:
            # The n-th of my links to this peer ends at the n-th of its links to me.
            place = peers[:number].count(peer)
            theirs = [at for at, back in enumerate(link_peers(plan, peer, len(gpus))) if back == gpu]
            remote_number = theirs[place]
        active = used and (gpu, number) not in plan.inactive
        if peer is not None and (peer, remote_number) in down_remotely:
            active = False  # a link is down at both ends
        links.append(
            LinkSpec(
                present=1,
                active=int(active),
                version=_LINK_VERSIONS[model.link_generation],
                capabilities=_LINK_CAPABILITIES,
                remote_type=_REMOTE_SWITCH if peer is None else _REMOTE_GPU,
                remote_link=gpu * model.gpu.link_count + number if peer is None else remote_number,
                speed_mbps=model.link_speed_mbps,
                remote_pci_device_id=model.switch_pci_device_id if peer is None else gpus[peer].pci_device_id,
                remote_bus_id=f"00000000:{_FIRST_SWITCH_BUS + switch:02X}:00.0" if peer is None else gpus[peer].bus_id,
            )
        )
    return tuple(links)


def _linked(first: GpuSpec, second: GpuSpec) -> bool:
    """Whether the two reach each other over NVLink, through switches or at the end of a link."""

    def through_switch(gpu: GpuSpec) -> bool:
        return any(link.active and link.remote_type == _REMOTE_SWITCH for link in gpu.links)

    if through_switch(first) and through_switch(second):
        return True
    return any(link.active and link.remote_bus_id == second.bus_id for link in first.links)


def plan_topology(
    gpus: Sequence[GpuSpec],
    *,
    switches: Sequence[Sequence[int]],
    switch_level: int,
    pairs: Mapping[tuple[int, int], int],
    pcie_peer_access: bool,
) -> TopologySpec:
    """Common ancestors and peer status of all pairs.

    Args:
        gpus: the GPUs, with their links and NUMA nodes.
        switches: groups of GPUs behind one PCIe switch.
        switch_level: the level within such a group.
        pairs: levels that were named, by (lower, higher) GPU; they win.
        pcie_peer_access: whether GPUs reach each other over PCIe.
    """
    switch_of = {gpu: at for at, group in enumerate(switches) for gpu in group}

    def ancestor(first: int, second: int) -> int:
        if first == second:
            return LEVEL_SELF
        named = pairs.get((min(first, second), max(first, second)))
        if named is not None:
            return named
        if first in switch_of and switch_of[first] == switch_of.get(second):
            return switch_level
        return LEVEL_NODE if gpus[first].numa_node == gpus[second].numa_node else LEVEL_SYSTEM

    def peer(capability: int, first: int, second: int) -> int:
        linked = first == second or _linked(gpus[first], gpus[second])
        if capability in {_NVLINK, _ATOMICS}:
            return P2P_OK if linked else P2P_NOT_SUPPORTED
        if capability in {_READ, _WRITE} and linked:
            return P2P_OK
        return P2P_OK if pcie_peer_access or first == second else P2P_CHIPSET_NOT_SUPPORTED

    every = range(len(gpus))

    def matrix(capability: int) -> Matrix:
        return tuple(tuple(peer(capability, first, second) for second in every) for first in every)

    return TopologySpec(
        ancestor=tuple(tuple(ancestor(first, second) for second in every) for first in every),
        p2p_status=tuple(matrix(capability) for capability in range(P2P_CAPABILITIES)),
    )
