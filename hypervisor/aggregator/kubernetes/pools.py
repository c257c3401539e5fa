"""GPUPool and TensorFusionCluster objects: what users want of them goes into the registry, what is there into their
status."""

from __future__ import annotations

import asyncio

import structlog

from hypervisor.aggregator import selectors
from hypervisor.aggregator.kubernetes import names, pool_objects
from hypervisor.aggregator.kubernetes.applying import Applier
from hypervisor.aggregator.kubernetes.client import ApiError, Object
from hypervisor.aggregator.pools import PoolSums, pool_sums
from hypervisor.aggregator.registry import Registry

log = structlog.get_logger("kubernetes")

STATUS_SECONDS = 1.0
_NOTHING = selectors.NodeSelector(())


class Kept:
    """The objects of one collection, by name."""

    def __init__(self, applier: Applier, collection: str) -> None:
        self._applier = applier
        self._collection = collection
        self.objects: dict[str, Object] = {}
        self.changes = 0

    def listed(self, objects: list[Object]) -> None:
        """All of them."""
        self.objects = {}
        for each in objects:
            self.changed("ADDED", each)
        self.changes += 1

    def changed(self, kind: str, object_: Object) -> None:
        """One of them."""
        self.changes += 1
        name = object_["metadata"]["name"]
        if kind == "DELETED":
            self.objects.pop(name, None)
            self._applier.forget(self._collection, name)
        else:
            self.objects[name] = object_
            self._applier.learn(self._collection, object_)


class Pools:
    """Only the loop's tasks call it."""

    def __init__(self, registry: Registry, applier: Applier) -> None:
        self._registry = registry
        self._applier = applier
        self.pools = Kept(applier, names.GPU_POOLS)
        self.clusters = Kept(applier, names.CLUSTERS)
        self._bad: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None
        # Why statuses can't be written; "" when they can.
        self.failing = ""

    async def run(self) -> None:
        """For ever. Cancelling it leaves statuses as they were written last."""
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            await self.step()

    async def step(self) -> None:
        """Take the selectors, and write the statuses that differ."""
        if self._seen != (self._registry.version, self.pools.changes, self.clusters.changes):
            self._select()
        seen = (self._registry.version, self.pools.changes, self.clusters.changes)
        if seen == self._seen:
            return
        try:
            await self._write()
        except ApiError as error:
            if not self.failing:
                log.warning("statuses of pools can't be written", error=str(error))
            self.failing = str(error)
            return
        self.failing = ""
        self._seen = seen

    def _select(self) -> None:
        chosen: dict[str, selectors.NodeSelector] = {}
        self._bad = {}
        for name, pool in self.pools.objects.items():
            try:
                chosen[name] = pool_objects.selector_of(pool)
            except selectors.SelectorError as error:
                chosen[name] = _NOTHING
                self._bad[name] = f"spec.nodeManagerConfig.nodeSelector: {error}"
        self._registry.set_pool_selectors(chosen)
        self._registry.set_oversubscription(
            {name: pool_objects.oversubscription_of(pool) for name, pool in self.pools.objects.items()}
        )

    async def _write(self) -> None:
        sums = pool_sums(self._registry.nodes.values(), self._registry.oversubscription)
        clusters = dict(self.clusters.objects)
        for name, pool in tuple(self.pools.objects.items()):
            status = pool_objects.pool_status(
                pool, sums.get(name, PoolSums()), bad_selector=self._bad.get(name, ""), clusters=clusters
            )
            await self._applier.put_status(names.GPU_POOLS, pool, status)
        for cluster in clusters.values():
            status = pool_objects.cluster_status(cluster, sums, self.pools.objects)
            await self._applier.put_status(names.CLUSTERS, cluster, status)
