"""The cluster as a map: for each node what its cards are like, as numbers that a browser turns into colours.

Eighty thousand cards take a tenth of a second to look at, so that a map is made in slices, at most once in a while,
and shared by all who ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import GpuObject
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.views import Moment, cluster_gpu, cluster_node, node_view
from hypervisor.v1 import cluster_pb2, types_pb2

KEEP_SECONDS = 2.0
_NODES_AT_ONCE = 200

# A cell is CLASS * CLASS_STEP + percent; the page has the same numbers.
HEALTHY, DEGRADED, NO_WORK, MISSING, FROZEN = range(5)
CLASS_STEP = 200
USE_UNKNOWN = 101


def used_percent(gpu: GpuObject) -> int:
    """How much of a card is promised, by whichever of compute and memory is promised more; USE_UNKNOWN when neither is
    known."""
    shares = []
    if gpu.tflops and gpu.available_tflops is not None:
        shares.append(1 - gpu.available_tflops / (gpu.tflops * gpu.tflops_ratio))
    if gpu.vram_bytes and gpu.available_vram_bytes is not None:
        shares.append(1 - gpu.available_vram_bytes / (gpu.vram_bytes * gpu.vram_ratio))
    return min(100, max(0, round(100 * max(shares)))) if shares else USE_UNKNOWN


def health_class(gpu: GpuObject) -> int:
    """What is to be said of a card before its use."""
    if gpu.missing_since is not None or gpu.phase == derive.PHASE_UNKNOWN:
        return MISSING
    if gpu.liveness == cluster_pb2.LIVENESS_LOST:
        return FROZEN
    if gpu.phase != derive.PHASE_RUNNING or not gpu.allocatable:
        return NO_WORK
    return HEALTHY if gpu.health == types_pb2.HEALTH_STATE_HEALTHY else DEGRADED


class ClusterMap:
    """Makes the map when it is asked for, and tells of one node in full. Only the loop's tasks call it."""

    def __init__(self, registry: Registry, *, moment: Callable[[], Moment]) -> None:
        self._registry = registry
        self._moment = moment
        self._making = asyncio.Lock()
        self._kept: tuple[float, bytes] | None = None

    async def cells(self) -> bytes:
        """JSON: version, pools by number, and of each node its name, liveness, pools and cells, by name."""
        async with self._making:
            if self._kept is None or self._moment().monotonic - self._kept[0] > KEEP_SECONDS:
                made = msgspec.json.encode(await self._make())
                self._kept = (self._moment().monotonic, made)
            return self._kept[1]

    def node(self, name: str) -> dict[str, Any] | None:
        """A node and its GPUs as the API has them; None when there is none of this name."""
        found = self._registry.named(name)
        if not found:
            return None
        node, now = found[-1], self._moment()
        gpus = sorted(node.gpus.values(), key=lambda gpu: (gpu.index, gpu.name))
        return {
            "node": MessageToDict(cluster_node(node_view(node), now)),
            "gpus": [{"cell": _cell(gpu), "object": MessageToDict(cluster_gpu(gpu, now))} for gpu in gpus],
        }

    async def _make(self) -> dict[str, Any]:
        version, pools = self._registry.version, dict[str, int]()
        nodes: list[Any] = []
        for number, node in enumerate(sorted(self._registry.nodes.values(), key=lambda node: (node.name, node.uid))):
            gpus = sorted(node.gpus.values(), key=lambda gpu: (gpu.index, gpu.name))
            numbers = [pools.setdefault(name, len(pools)) for name in node.pools]
            nodes.append((node.name, int(node.liveness), numbers, [_cell(gpu) for gpu in gpus]))
            if number % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                # Reports go on meanwhile; a node is of one moment, the map is not.
                await asyncio.sleep(0)
        return {"version": version, "pools": list(pools), "nodes": nodes}


def _cell(gpu: GpuObject) -> int:
    return health_class(gpu) * CLASS_STEP + used_percent(gpu)
