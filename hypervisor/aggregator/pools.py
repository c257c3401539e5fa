"""Pools: sums over the GPUs of their nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import NodeRecord
from hypervisor.aggregator.sums import Sums
from hypervisor.v1 import cluster_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversubscription:
    """How far a pool is sold beyond what is there, as its owner wants it counted; None: as its nodes grant.

    tflops: ratio to what is there. host_memory: the share of the nodes' memory that counts as VRAM besides.
    """

    tflops: float | None = None
    host_memory: float | None = None


# Of a message's field; many nodes that each say the most they may come to more.
_MOST_BYTES = (1 << 64) - 1
AS_NODES_GRANT = Oversubscription()
NOTHING_SAID: Mapping[str, Oversubscription] = MappingProxyType({})


@dataclass(slots=True)
class PoolSums:
    """A pool's nodes and GPUs. ready: nodes that are heard of; running: some GPU of it takes work."""

    nodes: int = 0
    ready: int = 0
    running: bool = False
    host_memory_bytes: int = 0
    apps: set[tuple[str, str]] = field(default_factory=set)
    sums: Sums = field(default_factory=Sums)

    @property
    def phase(self) -> str:
        return derive.PHASE_RUNNING if self.running else derive.PHASE_PENDING

    def add(self, node: NodeRecord) -> None:
        """Count a node with its GPUs."""
        lost = node.liveness == cluster_pb2.LIVENESS_LOST
        self.nodes += 1
        self.ready += not lost
        self.host_memory_bytes += node.host_memory_bytes
        for gpu in node.gpus.values():
            if self.sums.add(gpu) and gpu.phase == derive.PHASE_RUNNING and not lost:
                self.running = True
        for shares in node.allocations.values():
            self.apps.update((share.namespace, share.app) for share in shares)

    def oversubscribe(self, wanted: Oversubscription) -> None:
        """Count the virtual figures as the pool's owner wants them; what is available stays what the nodes grant."""
        if wanted.tflops is not None:
            self.sums.virtual_tflops = self.sums.tflops * wanted.tflops
        if wanted.host_memory is not None:
            self.sums.virtual_vram_bytes = self.sums.vram_bytes + int(self.host_memory_bytes * wanted.host_memory)


def pool_sums(
    nodes: Iterable[NodeRecord], oversubscription: Mapping[str, Oversubscription] = NOTHING_SAID
) -> dict[str, PoolSums]:
    """By the name of the pool, for those that have a node."""
    found: dict[str, PoolSums] = {}
    for node in nodes:
        for name in node.pools:
            found.setdefault(name, PoolSums()).add(node)
    for name, pool in found.items():
        pool.oversubscribe(oversubscription.get(name, AS_NODES_GRANT))
    return found


def sum_pools(
    nodes: Iterable[NodeRecord], oversubscription: Mapping[str, Oversubscription] = NOTHING_SAID
) -> list[cluster_pb2.Pool]:
    """All pools by name."""
    return [
        cluster_pb2.Pool(
            name=name,
            phase=pool.phase,
            node_count=pool.nodes,
            gpu_count=pool.sums.gpus,
            tflops=pool.sums.tflops,
            vram_bytes=min(pool.sums.vram_bytes, _MOST_BYTES),
            available_tflops=pool.sums.available_tflops,
            available_vram_bytes=min(pool.sums.available_vram_bytes, _MOST_BYTES),
            virtual_tflops=pool.sums.virtual_tflops,
            virtual_vram_bytes=min(pool.sums.virtual_vram_bytes, _MOST_BYTES),
        )
        for name, pool in sorted(pool_sums(nodes, oversubscription).items())
    ]
