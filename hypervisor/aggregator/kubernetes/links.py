"""Ways from a GPU to the others of its node, as the GPU object tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.v1 import types_pb2

NVLINK = "NVLink"
LINK_TYPES: Mapping[int, str] = {
    types_pb2.PCIE_LEVEL_INTERNAL: "Internal",
    types_pb2.PCIE_LEVEL_PIX: "SingleSwitch",
    types_pb2.PCIE_LEVEL_PXB: "MultiSwitch",
    types_pb2.PCIE_LEVEL_PHB: "HostBridge",
    types_pb2.PCIE_LEVEL_NODE: "NUMA",
    types_pb2.PCIE_LEVEL_SYS: "System",
}


def peers(gpu: types_pb2.Gpu) -> list[Object]:
    """All ways, in the order of the peers' names."""
    found = []
    for link in sorted(gpu.topology.links, key=lambda link: link.peer_uuid):
        peer: Object = {"peerGPUUUID": link.peer_uuid.lower(), "tier": link.tier}
        if kind := NVLINK if link.nvlink_count else LINK_TYPES.get(link.pcie_level, ""):
            peer["linkType"] = kind
        if link.HasField("bandwidth_bytes_per_second"):
            peer["bandwidth"] = min(link.bandwidth_bytes_per_second, (1 << 63) - 1)
        found.append(peer)
    return found


def nv_link(gpu: types_pb2.Gpu) -> Object:
    """The NVLinks; empty without any."""
    linked = sorted((link for link in gpu.topology.links if link.nvlink_count), key=lambda link: link.peer_uuid)
    if not linked:
        return {}
    found = []
    for link in linked:
        peer: Object = {"peerUUID": link.peer_uuid.lower(), "linkCount": link.nvlink_count}
        if link.nvlink_version:
            peer["linkVersion"] = link.nvlink_version
        if link.HasField("bandwidth_bytes_per_second"):
            peer["bandwidthMBps"] = link.bandwidth_bytes_per_second // 1_000_000
        found.append(peer)
    # Links to a switch serve all peers: the card has as many as lead to any one of them.
    counts = [link.nvlink_count for link in linked]
    switched = any(link.nvlink_switched for link in linked)
    bandwidths = [peer.get("bandwidthMBps", 0) for peer in found]
    return {
        "peerCount": len(linked),
        "totalLinkCount": max(counts) if switched else sum(counts),
        "totalBandwidthMBps": max(bandwidths) if switched else sum(bandwidths),
        "peers": found,
    }
