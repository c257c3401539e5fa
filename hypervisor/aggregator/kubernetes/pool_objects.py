"""Statuses of GPUPool and TensorFusionCluster objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.aggregator import selectors
from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.kubernetes.objects import totals, without_empty
from hypervisor.aggregator.pools import Oversubscription, PoolSums
from hypervisor.aggregator.sums import Sums


def selector_of(pool: Object) -> selectors.NodeSelector:
    """Which nodes a GPUPool selects. Raises SelectorError."""
    manager = (pool.get("spec") or {}).get("nodeManagerConfig") or {}
    return selectors.from_object(manager.get("nodeSelector"))


def oversubscription_of(pool: Object) -> Oversubscription:
    """How far a GPUPool is oversold. Disks are not counted, for nodes don't report them."""
    wanted = ((pool.get("spec") or {}).get("capacityConfig") or {}).get("oversubscription") or {}
    tflops, memory = wanted.get("tflopsOversellRatio"), wanted.get("vramExpandToHostMem")
    return Oversubscription(
        tflops=None if tflops is None else tflops / 100, host_memory=None if memory is None else memory / 100
    )


def pool_status(pool: Object, found: PoolSums, *, bad_selector: str, clusters: Mapping[str, Object]) -> Object:
    """bad_selector: why the pool selects nothing, "" when it can. clusters: the TensorFusionCluster objects by name."""
    name, generation = pool["metadata"]["name"], int(pool["metadata"].get("generation") or 0)
    since = pool["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z"
    ready = {
        "type": "SelectorValid",
        "status": "False" if bad_selector else "True",
        "reason": "Invalid" if bad_selector else "Valid",
        "message": bad_selector[:1024],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }
    cluster = next((each for each, body in clusters.items() if name in pools_of(body)), "")
    return without_empty(
        {
            "phase": "Unknown" if bad_selector else found.phase,
            "conditions": [ready],
            "cluster": cluster,
            "totalNodes": found.nodes,
            "totalGPUs": found.sums.gpus,
            "readyNodes": found.ready,
            "notReadyNodes": found.nodes - found.ready,
            **totals(found.sums),
            "runningAppsCnt": len(found.apps),
            "observedGeneration": generation,
        }
    )


def pools_of(cluster: Object) -> list[str]:
    """Names of the GPUPool objects of a cluster."""
    pools = (cluster.get("spec") or {}).get("gpuPools") or ()
    return [f"{cluster['metadata']['name']}-{pool['name']}" for pool in pools]


def cluster_status(cluster: Object, pools: Mapping[str, PoolSums], known: Mapping[str, Object]) -> Object:
    """Running when all of its pools are there and run. known: the GPUPool objects by name."""
    wanted = pools_of(cluster)
    running = [name for name in wanted if name in known and name in pools and pools[name].running]
    sums, nodes = Sums(), 0
    for name in wanted:
        if name in pools:
            sums.merge(pools[name].sums)
            nodes += pools[name].nodes
    return without_empty(
        {
            "phase": "Running" if wanted and len(running) == len(wanted) else "Pending",
            "totalPools": len(wanted),
            "totalNodes": nodes,
            "totalGPUs": sums.gpus,
            "readyPools": running,
            "notReadyPools": [name for name in wanted if name not in running],
            **totals(sums),
            "observedGeneration": int(cluster["metadata"].get("generation") or 0),
        }
    )
