"""Pools: sums over the GPUs of their nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import NodeRecord
from hypervisor.aggregator.sums import Sums
from hypervisor.v1 import cluster_pb2


@dataclass(slots=True)
class PoolSums:
    """A pool's nodes and GPUs. ready: nodes that are heard of; running: some GPU of it takes work."""

    nodes: int = 0
    ready: int = 0
    running: bool = False
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
        for gpu in node.gpus.values():
            if self.sums.add(gpu) and gpu.phase == derive.PHASE_RUNNING and not lost:
                self.running = True
        for shares in node.allocations.values():
            self.apps.update((share.namespace, share.app) for share in shares)


def pool_sums(nodes: Iterable[NodeRecord]) -> dict[str, PoolSums]:
    """By the name of the pool, for those that have a node."""
    found: dict[str, PoolSums] = {}
    for node in nodes:
        for name in node.pools:
            found.setdefault(name, PoolSums()).add(node)
    return found


def sum_pools(nodes: Iterable[NodeRecord]) -> list[cluster_pb2.Pool]:
    """All pools by name."""
    return [
        cluster_pb2.Pool(
            name=name,
            phase=pool.phase,
            node_count=pool.nodes,
            gpu_count=pool.sums.gpus,
            tflops=pool.sums.tflops,
            vram_bytes=pool.sums.vram_bytes,
            available_tflops=pool.sums.available_tflops,
            available_vram_bytes=pool.sums.available_vram_bytes,
            virtual_tflops=pool.sums.virtual_tflops,
            virtual_vram_bytes=pool.sums.virtual_vram_bytes,
        )
        for name, pool in sorted(pool_sums(nodes).items())
    ]
