"""The objects of all nodes, in memory: owned by the loop, changed by reports and by silence, read by everyone.

Every change of an object's facts gets the next version. What changed since the last commit is in the dirty sets, from
which the writer takes it; a removed object leaves a tombstone with its version, so that watches can resume.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from hypervisor.aggregator import derive
from hypervisor.aggregator.facts import node_facts
from hypervisor.aggregator.pools import Oversubscription
from hypervisor.aggregator.recorder import Record
from hypervisor.aggregator.records import GpuObject, NodeRecord, Position, gpu_object
from hypervisor.aggregator.reports import ReportedGpu, reported_gpus
from hypervisor.aggregator.selectors import NodeSelector
from hypervisor.aggregator.summaries import Share, running_apps, shares
from hypervisor.v1 import cluster_pb2, node_pb2, types_pb2

log = structlog.get_logger("registry")

# Called with an object's name, what it was and what it is; None where it is not there.
OnGpuChange = Callable[[str, GpuObject | None, GpuObject | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryStatistics:
    """Sizes, and what was decided since the start."""

    nodes: int
    gpus: int
    version: int
    tombstones: int
    contested_gpus: int
    changes_total: int
    unchanged_total: int


class Registry:
    """All nodes and GPU objects. Not thread-safe: only the loop's tasks call it."""

    def __init__(
        self,
        *,
        store_id: str,
        version: int,
        resumable: tuple[int, int],
        tombstone_limit: int,
        record: Record,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.store_id = store_id
        self.version = version
        self.nodes: dict[str, NodeRecord] = {}
        # In the order of their last change, so that what changed after a version is at the end.
        self.gpus: OrderedDict[str, GpuObject] = OrderedDict()
        self.tombstones: OrderedDict[str, int] = OrderedDict()
        # Versions of the life before that were durable, and so can be resumed from; and where this life begins.
        self._resumable_before = resumable
        self._first_version = version
        self._tombstone_limit = tombstone_limit
        self._tombstones_from = resumable[0]
        self._record = record
        self._monotonic = monotonic
        self._wall = wall
        # Last stored event of every node that ever reported, also of those that were forgotten.
        self.event_positions: dict[str, Position] = {}
        self._observers: list[OnGpuChange] = []
        self._names: Counter[str] = Counter()
        # In the order in which they became dirty, so that a store that takes few at a time takes the oldest first.
        self.dirty_nodes: dict[str, None] = {}
        self.dirty_gpus: dict[str, None] = {}
        # UID -> name.
        self.removed_nodes: dict[str, str] = {}
        # Pools that select nodes by their labels, and labels of the cluster's Node objects by node name.
        self._selectors: Mapping[str, NodeSelector] = {}
        self.oversubscription: Mapping[str, Oversubscription] = {}
        self._node_labels: dict[str, Mapping[str, str]] = {}
        self._changes = self._unchanged = 0

    # --- reading

    def observe(self, observer: OnGpuChange) -> Callable[[], None]:
        """Call `observer` at each change of an object; returns how to end it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def can_resume(self, version: int) -> bool:
        """Whether all that changed after this version is known, deletions included."""
        if version > self.version or version < self._tombstones_from:
            return False
        return version >= self._first_version or self._resumable_before[0] <= version <= self._resumable_before[1]

    def changed_after(self, version: int) -> Iterator[GpuObject]:
        """Objects that changed after a version, the last changed first."""
        for gpu in reversed(self.gpus.values()):
            if gpu.version <= version:
                return
            yield gpu

    def removed_after(self, version: int) -> list[str]:
        """Names of objects that were removed after a version and have not come back."""
        return [name for name, at in self.tombstones.items() if at > version]

    def named(self, name: str) -> list[NodeRecord]:
        """Nodes of this name: one, or two while a node that was set up anew is still held under its old UID."""
        return [node for node in self.nodes.values() if node.name == name] if self._names[name] else []

    def statistics(self) -> RegistryStatistics:
        """Sizes now and counters since the start."""
        return RegistryStatistics(
            nodes=len(self.nodes),
            gpus=len(self.gpus),
            version=self.version,
            tombstones=len(self.tombstones),
            contested_gpus=sum(len(node.contested) for node in self.nodes.values()),
            changes_total=self._changes,
            unchanged_total=self._unchanged,
        )

    # --- what survived a restart

    def restore_node(self, node: NodeRecord) -> None:
        """Take a node from the store."""
        self.nodes[node.uid] = node
        self._names[node.name] += 1

    def restore_gpu(self, gpu: GpuObject) -> None:
        """Take a GPU from the store; to be called in the order of versions."""
        self.gpus[gpu.name] = gpu
        gpu.node.gpus[gpu.name] = gpu

    # --- labels and pools

    def set_node_labels(self, name: str, labels: Mapping[str, str] | None) -> None:
        """The labels of a Node object of the cluster; None when there is none of this name any more."""
        if labels is None:
            self._node_labels.pop(name, None)
        else:
            self._node_labels[name] = dict(labels)
        for node in self.named(name):
            self._place(node)

    def set_pool_selectors(self, selectors: Mapping[str, NodeSelector]) -> None:
        """Which nodes which pools select; takes the place of what was set before."""
        if selectors == self._selectors:
            return
        self._selectors = dict(selectors)
        for node in self.nodes.values():
            self._place(node)

    def set_oversubscription(self, wanted: Mapping[str, Oversubscription]) -> None:
        """How far which pools are sold beyond what is there; takes the place of what was set before."""
        self.oversubscription = dict(wanted)

    # --- reports

    def add_node(self, uid: str, name: str) -> NodeRecord:
        """The record of a node, new when it is not known."""
        node = self.nodes.get(uid)
        if node is None:
            node = self.nodes[uid] = NodeRecord(uid, name)
            node.stored_events = self.event_positions.get(uid, (0, 0))
            node.last_seen_at = node.received_at = self._monotonic()
            node.last_seen_wall = self._wall()
            self._names[name] += 1
            self.removed_nodes.pop(uid, None)
            self.dirty_nodes[uid] = None
        return node

    def apply_snapshot(self, node: NodeRecord, held: Position, state: node_pb2.NodeSnapshot) -> None:
        """Everything the node knows: what is not in it is gone. Raises ReportError before anything has changed."""
        gpus = reported_gpus(state.gpus, _digests(node), "snapshot.state")
        self._forget_predecessors(node)
        node.allocations = {a.spec.allocation_id: shares(a) for a in state.allocations}
        self._apply_node(node, state.node)
        reported = {gpu.name for gpu in gpus}
        node.contested &= reported
        for gpu in gpus:
            self._apply_gpu(node, gpu)
        if gpus or not derive.is_starting(state.node):
            self._drop_missing(node, [name for name in node.gpus if name not in reported])
        self._apply_shares(node)
        node.held = held

    def apply_delta(self, node: NodeRecord, held: Position, delta: node_pb2.NodeDelta) -> None:
        """What changed. The caller has checked that it builds on node.held. Raises ReportError as above."""
        gpus = reported_gpus(delta.gpus, _digests(node), "delta.changes")
        for allocation in delta.allocations:
            node.allocations[allocation.spec.allocation_id] = shares(allocation)
        for allocation_id in delta.removed_allocation_ids:
            node.allocations.pop(allocation_id, None)
        if delta.HasField("node"):
            self._apply_node(node, delta.node)
        for gpu in gpus:
            self._apply_gpu(node, gpu)
        removed = {uuid.lower() for uuid in delta.removed_gpu_uuids}
        node.contested -= removed
        missing = [gpu.name for gpu in node.gpus.values() if gpu.missing_since is not None]
        self._drop_missing(node, [*missing, *(name for name in removed if name in node.gpus)])
        if delta.allocations or delta.removed_allocation_ids:
            self._apply_shares(node)
        node.held = held

    def set_liveness(self, node: NodeRecord, liveness: cluster_pb2.Liveness, *, silent_seconds: float) -> None:
        """The node was heard of again, after so long, or not: its objects stay as they are and say so."""
        if node.liveness == liveness:
            return
        silent = f"{silent_seconds:.0f}"
        if liveness == cluster_pb2.LIVENESS_LOST:
            message = f"not heard of for {silent} s; its {len(node.gpus)} GPUs stay as they were and take no work"
            self._record(
                node,
                "NodeLost",
                "Node",
                node.name,
                node.uid,
                message,
                warning=True,
                silent_seconds=silent,
                gpus=str(len(node.gpus)),
            )
        elif node.liveness == cluster_pb2.LIVENESS_LOST:
            message = f"heard of again after {silent} s"
            self._record(
                node, "NodeReturned", "Node", node.name, node.uid, message, warning=False, silent_seconds=silent
            )
        log.info(
            "node liveness changed",
            node=node.name,
            was=cluster_pb2.Liveness.Name(node.liveness),
            now=cluster_pb2.Liveness.Name(liveness),
        )
        node.liveness = liveness
        self._node_changed(node)
        for gpu in tuple(node.gpus.values()):
            self._put_gpu(gpu.replaced(liveness=liveness))

    def forget_node(self, node: NodeRecord) -> None:
        """Remove a node and all its objects."""
        for name in tuple(node.gpus):
            self._remove_gpu(name)
        del self.nodes[node.uid]
        self._names[node.name] -= 1
        self.dirty_nodes.pop(node.uid, None)
        self.removed_nodes[node.uid] = node.name
        self.version += 1

    # --- inside

    def _forget_predecessors(self, node: NodeRecord) -> None:
        """A node whose state directory was made anew has another UID and the same name: the old record is history."""
        for other in self.named(node.name):
            if other is not node and other.link is None:
                log.warning("a node reports under a new UID", node=node.name, was=other.uid, now=node.uid)
                self.forget_node(other)

    def _apply_node(self, node: NodeRecord, message: types_pb2.Node) -> None:
        latest = message.SerializeToString()
        name, boot_id, simulated = message.identity.name, message.identity.boot_id, message.simulated
        digest = hash(node_facts(latest))
        node.latest, node.received_at = latest, self._monotonic()
        if node.digest == digest:
            return
        if name != node.name:
            self._names[node.name] -= 1
            self._names[name] += 1
            node.name = name
        node.boot_id, node.simulated, node.digest = boot_id, simulated, digest
        node.reported_labels, node.host_memory_bytes = dict(message.labels), message.host_memory_bytes
        self._node_changed(node)
        self._place(node)

    def _place(self, node: NodeRecord) -> None:
        """Labels and pools of a node, from what it says, what its Node object says, and which pools select it."""
        labels = {**node.reported_labels, **self._node_labels.get(node.name, {})}
        pools = derive.pools(labels, name=node.name, selectors=self._selectors)
        if labels == node.labels and pools == node.pools:
            return
        moved, node.labels, node.pools = pools != node.pools, labels, pools
        self._node_changed(node)
        if moved:
            # The pools are part of each GPU object.
            for gpu in tuple(node.gpus.values()):
                self._put_gpu(gpu.replaced())

    def _apply_shares(self, node: NodeRecord) -> None:
        """Tell each GPU of the node who holds a share of it."""
        held: dict[str, list[Share]] = {}
        for parts in node.allocations.values():
            for share in parts:
                held.setdefault(share.gpu, []).append(share)
        for gpu in tuple(node.gpus.values()):
            apps = running_apps(held.get(gpu.name, ()))
            if apps != gpu.apps:
                self._put_gpu(gpu.replaced(apps=apps))

    def _apply_gpu(self, node: NodeRecord, reported: ReportedGpu) -> None:
        if reported.message is None:
            known = node.gpus[reported.name]
            known.latest, known.received_at = reported.latest, self._monotonic()
            self._unchanged += 1
            return
        new = gpu_object(
            reported.message,
            node,
            latest=reported.latest,
            digest=reported.digest,
            received_at=self._monotonic(),
            intern=sys.intern,
        )
        old = self.gpus.get(new.name)
        if old is not None and old.node is not node and not self._may_take(old, node):
            if new.name not in node.contested:
                log.warning("two nodes report the same GPU", gpu=new.name, holder=old.node.name, refused=node.name)
                message = f"node {old.node.name} reports this GPU as well and keeps it until it lets go"
                self._record(
                    node,
                    "GPUContested",
                    "GPU",
                    reported.message.uuid,
                    reported.message.uuid,
                    message,
                    warning=True,
                    holder=old.node.name,
                )
                node.contested.add(new.name)
            return
        node.contested.discard(new.name)
        new.liveness = node.liveness
        if old is not None and old.node is node:
            new.apps = old.apps
        self._put_gpu(new)

    @staticmethod
    def _may_take(gpu: GpuObject, node: NodeRecord) -> bool:
        """A card may have moved to another machine; a node that is still heard of keeps what it reports."""
        return gpu.missing_since is not None or (
            gpu.node.link is None and (gpu.node.liveness == cluster_pb2.LIVENESS_LOST or gpu.node.name == node.name)
        )

    def _drop_missing(self, node: NodeRecord, names: Iterable[str]) -> None:
        """GPUs that the node does not report any more: removed when idle, Unknown with the time when not."""
        for name in names:
            gpu = node.gpus[name]
            if not node.busy(name):
                self._remove_gpu(name)
            elif gpu.missing_since is None:
                log.warning("a GPU is missing while something runs on it", gpu=name, node=node.name)
                users = ", ".join(
                    sorted(each for each, held in node.allocations.items() if any(share.gpu == name for share in held))
                )
                message = f"no longer reported by its node while {users} is on it; its capacity is not counted"
                uuid = types_pb2.Gpu.FromString(gpu.latest).uuid
                self._record(node, "GPUMissing", "GPU", uuid, uuid, message, warning=True, allocations=users)
                missing_since = self._wall()
                self._put_gpu(
                    gpu.replaced(
                        missing_since=missing_since, phase=derive.phase(gpu.health, missing=True), allocatable=False
                    )
                )

    def _put_gpu(self, gpu: GpuObject) -> None:
        old = self.gpus.get(gpu.name)
        if old is not None and old.node is not gpu.node:
            del old.node.gpus[gpu.name]
        self.version += 1
        gpu.version = self.version
        self._changes += 1
        self.gpus[gpu.name] = gpu
        self.gpus.move_to_end(gpu.name)
        gpu.node.gpus[gpu.name] = gpu
        self.tombstones.pop(gpu.name, None)
        self.dirty_gpus[gpu.name] = None
        for observer in self._observers:
            observer(gpu.name, old, gpu)

    def _remove_gpu(self, name: str) -> None:
        old = self.gpus.pop(name)
        del old.node.gpus[name]
        self.version += 1
        self._changes += 1
        self.dirty_gpus[name] = None
        # Its sums are less.
        self.dirty_nodes[old.node.uid] = None
        self.tombstones[name] = self.version
        while len(self.tombstones) > self._tombstone_limit:
            _, self._tombstones_from = self.tombstones.popitem(last=False)
        for observer in self._observers:
            observer(name, old, None)
        for node in self.nodes.values():
            if name in node.contested and node.link is not None:
                node.link.ask_for_snapshot(f"GPU {name} is no longer held by another node")

    def _node_changed(self, node: NodeRecord) -> None:
        self.version += 1
        node.version = self.version
        self._changes += 1
        self.dirty_nodes[node.uid] = None


def _digests(node: NodeRecord) -> dict[str, int]:
    """Of the GPUs that need no new object when their facts are the same."""
    return {name: gpu.digest for name, gpu in node.gpus.items() if gpu.missing_since is None}
