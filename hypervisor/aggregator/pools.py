"""Pools: sums over the GPUs of their nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import NodeRecord
from hypervisor.v1 import cluster_pb2


def sum_pools(nodes: Iterable[NodeRecord]) -> list[cluster_pb2.Pool]:
    """All pools by name. A card that is missing counts nowhere, a MIG instance as its card; a figure that is not
    known adds nothing. On a node that is lost nothing is available, and its capacity stands."""
    pools: dict[str, cluster_pb2.Pool] = {}
    for node in nodes:
        for name in node.pools:
            pool = pools.setdefault(name, cluster_pb2.Pool(name=name, phase=derive.PHASE_PENDING))
            pool.node_count += 1
            _add(pool, node)
    return [pools[name] for name in sorted(pools)]


def _add(pool: cluster_pb2.Pool, node: NodeRecord) -> None:
    lost = node.liveness == cluster_pb2.LIVENESS_LOST
    for gpu in node.gpus.values():
        if gpu.missing_since is not None or gpu.partition:
            continue
        pool.gpu_count += 1
        if gpu.phase == derive.PHASE_RUNNING and not lost:
            pool.phase = derive.PHASE_RUNNING
        if gpu.tflops is not None:
            pool.tflops += gpu.tflops
            pool.virtual_tflops += gpu.tflops * gpu.tflops_ratio
        if gpu.vram_bytes is not None:
            pool.vram_bytes += gpu.vram_bytes
            pool.virtual_vram_bytes += int(gpu.vram_bytes * gpu.vram_ratio)
        if lost:
            continue
        if gpu.available_tflops is not None:
            pool.available_tflops += gpu.available_tflops
        if gpu.available_vram_bytes is not None:
            pool.available_vram_bytes += gpu.available_vram_bytes
