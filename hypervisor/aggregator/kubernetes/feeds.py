"""What of the cluster goes into the registry: labels of Node objects, and that our objects were changed by others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hypervisor.aggregator.kubernetes import names, restoring
from hypervisor.aggregator.kubernetes.applying import Applier
from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.registry import Registry

log = structlog.get_logger("kubernetes")

LEAVING_SECONDS = 5.0


class NodeLabels:
    """Node objects: their labels count for pools, and one that is removed takes a silent node with it."""

    def __init__(self, registry: Registry, uids: dict[str, str]) -> None:
        """uids: of the Node objects, by name, as the store knows them."""
        self._registry = registry
        self._uids = uids
        # Names of Node objects that were removed, while their nodes still report.
        self._leaving: set[str] = set()

    def listed(self, objects: list[Object]) -> None:
        """All Node objects."""
        found = {each["metadata"]["name"] for each in objects}
        for name in self._uids.keys() - found:
            self._removed(name)
        for each in objects:
            self.changed("ADDED", each)

    def changed(self, kind: str, object_: Object) -> None:
        """One Node object."""
        name = object_["metadata"]["name"]
        if kind == "DELETED":
            self._removed(name)
            return
        self._leaving.discard(name)
        uid = object_["metadata"]["uid"]
        if self._uids.get(name) != uid:
            self._uids[name] = uid
            # Its GPUNode has another owner now.
            for node in self._registry.named(name):
                self._registry.dirty_nodes[node.uid] = None
        self._registry.set_node_labels(name, object_["metadata"].get("labels") or {})

    def _removed(self, name: str) -> None:
        self._uids.pop(name, None)
        self._registry.set_node_labels(name, None)
        self._leaving.add(name)
        self.step()

    def step(self) -> None:
        """Forget the nodes that have left and do not report any more."""
        for name in tuple(self._leaving):
            nodes = self._registry.named(name)
            for node in nodes:
                if node.link is None:
                    log.info("a node has left the cluster", node=name)
                    self._registry.forget_node(node)
            if not self._registry.named(name):
                self._leaving.discard(name)

    async def run(self) -> None:
        """For ever. Cancelling leaves nodes that have left until the next start finds their objects gone."""
        while True:
            await asyncio.sleep(LEAVING_SECONDS)
            self.step()


class OurObjects:
    """GPU or GPUNode objects: one that another has changed or removed is written again."""

    def __init__(self, applier: Applier, collection: str, mark: Callable[[str], None]) -> None:
        self._applier = applier
        self._collection = collection
        self._mark = mark

    def listed(self, objects: list[Object]) -> None:
        """All of them."""
        found = {each["metadata"]["name"] for each in objects}
        for name in self._applier.known(self._collection):
            if name not in found:
                self._applier.forget(self._collection, name)
                self._mark(name)
        for each in objects:
            self.changed("MODIFIED", each)

    def changed(self, kind: str, object_: Object) -> None:
        """One of them."""
        name = object_["metadata"]["name"]
        if kind == "DELETED":
            if self._applier.forget(self._collection, name, object_["metadata"]["uid"]):
                self._mark(name)
        elif restoring.is_ours(object_) and self._applier.learn(self._collection, object_):
            self._mark(name)


def mark_gpu(registry: Registry) -> Callable[[str], None]:
    """A GPU is to be written again."""

    def mark(name: str) -> None:
        if name in registry.gpus:
            registry.dirty_gpus[name] = None

    return mark


def mark_node(registry: Registry) -> Callable[[str], None]:
    """A node is to be written again, and its GPUs, which name it as their owner."""

    def mark(name: str) -> None:
        for node in registry.named(name):
            registry.dirty_nodes[node.uid] = None
            registry.dirty_gpus |= dict.fromkeys(node.gpus)

    return mark


OUR_COLLECTIONS = ((names.GPUS, mark_gpu), (names.GPU_NODES, mark_node))
