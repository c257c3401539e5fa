"""How the GPUs of a node are connected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PcieLevel(Enum):
    """What lies between two GPUs on PCI Express; the names are those of nvidia-smi topo -m."""

    INTERNAL = "internal"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyLink:
    """The way to one peer. Tier: 0 NVLink or same board, 1 same NUMA node, 2 across NUMA nodes, 3 unknown."""

    peer_uuid: str
    tier: int
    pcie_level: PcieLevel | None
    nvlink_count: int = 0
    nvlink_switched: bool = False
    nvlink_version: str = ""
    bandwidth_bytes_per_second: int | None = None
    peer_access: bool | None = None
    unknown_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopology:
    """Place of one GPU in the machine. numa_node is None when it is not known; cpu_affinity is a Linux CPU list."""

    gpu_uuid: str
    numa_node: int | None
    cpu_affinity: str
    links: tuple[TopologyLink, ...]
