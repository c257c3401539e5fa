"""The Kubernetes store: objects of the API server are what survives a restart.

A commit writes a part of what changed; what differs from what is there, in the order owner, owned, sums, events. It
may be tried again at any time: an object that is as it shall be is not written, an event that is there is not doubled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from hypervisor.aggregator.kubernetes import names, objects, restoring
from hypervisor.aggregator.kubernetes.applying import Applier
from hypervisor.aggregator.kubernetes.client import NOT_FOUND, ApiError, KubernetesClient, Object
from hypervisor.aggregator.kubernetes.event_writer import EventWriter
from hypervisor.aggregator.records import GpuObject, NodeRecord
from hypervisor.aggregator.settings import StoreLimits
from hypervisor.aggregator.store import Batch, EventQuery, EventRow, Stored, StoredEvent, StoreError
from hypervisor.metrics.family import Families

OBJECTS_AT_ONCE = 100
_WRITERS = 8
Result = TypeVar("Result")
Item = TypeVar("Item")


class KubernetesStore:
    """One API server's objects. load, commit and read_events are called from threads that are not the loop's."""

    objects_at_once: int | None = OBJECTS_AT_ONCE

    def __init__(
        self,
        client: KubernetesClient,
        *,
        instance: str,
        limits: StoreLimits,
        loop: asyncio.AbstractEventLoop,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._wall = wall
        self._client = client
        self.applier = Applier(client, writes_per_second=limits.writes_per_second, monotonic=monotonic)
        self.events = EventWriter(
            client,
            instance=instance,
            per_second=limits.events_per_second,
            at_once=limits.events_at_once,
            monotonic=monotonic,
        )
        # GPUNode name -> UID of the node that reports under it.
        self._node_uids: dict[str, str] = {}
        # Node object's name -> its UID.
        self.cluster_nodes: dict[str, str] = {}
        # Nodes that were written in this life, by UID.
        self._records: dict[str, NodeRecord] = {}
        # Written by a commit that failed later on, and not told yet.
        self._untold: list[EventRow] = []

    @property
    def events_at_once(self) -> int | None:
        """What the rate limit allows now: a burst waits in memory and delays no object."""
        return self.events.ready

    def load(self) -> Stored:
        """Lists everything. Versions are of this life only: watchers begin anew after a change of leader."""
        return self._run(self._load())

    def commit(self, batch: Batch) -> Sequence[StoredEvent]:
        """Writes what differs. After an error some of it may be written, and the rest is tried again."""
        return self._run(self._commit(batch))

    def prune(self, *, oldest_received_at: float, keep: int) -> int:
        """The API server forgets events by itself, and memory keeps the last ones only."""
        return 0

    def read_events(self, query: EventQuery) -> Sequence[StoredEvent]:
        """From memory: what was written in this life, and what was there at its start."""
        return self.events.read(query)

    def collect(self, made: Families) -> None:
        """Requests and what came of them."""
        asked, written = self._client.statistics(), self.applier.statistics()
        name = "aggregator_kubernetes"
        made.counter(f"{name}_requests_total", "Requests to the API server, watches included", asked.requests_total)
        for code, count in asked.failures:
            made.counter(
                f"{name}_failures_total", "Requests that failed, by HTTP status; 0: no answer", count, code=str(code)
            )
        made.counter(f"{name}_writes_total", "Objects and statuses that were written", written.writes_total)
        made.counter(f"{name}_unchanged_total", "Objects that were as they shall be", written.unchanged_total)
        made.counter(f"{name}_conflicts_total", "Fields of ours that another had taken", written.conflicts_total)
        made.gauge(f"{name}_refused_objects", "Objects that the API server does not take", written.refused)
        made.gauge(f"{name}_objects", "Objects of ours and of users that are known", written.known)

    def close(self) -> None:
        """Nothing to let go of: the client is closed by who opened it."""

    # --- inside

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except ApiError as error:
            raise StoreError(_words(error)) from error

    async def _load(self) -> Stored:
        last_event = await self.events.load()
        cluster_nodes, _ = await self._client.list_all(names.NODES, metadata_only=True)
        self.cluster_nodes |= {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster_nodes}
        nodes, _ = await self._client.list_all(names.GPU_NODES)
        gpus, _ = await self._client.list_all(names.GPUS)
        node_rows, by_name = [], {}
        for live in filter(restoring.is_ours, nodes):
            self.applier.learn(names.GPU_NODES, live)
            row = restoring.node_row(live)
            if row is not None:
                node_rows.append(row)
                by_name[row.name] = self._node_uids[row.name] = row.uid
                place = restoring.event_position(live)
                self.events.positions[row.uid] = max(place, self.events.positions.get(row.uid, (0, 0)))
        gpu_rows = []
        for live in filter(restoring.is_ours, gpus):
            self.applier.learn(names.GPUS, live)
            uid = by_name.get(restoring.node_name(live))
            if uid is None:
                # Its node's object is gone, and so is the node: the API server's own collector may take its time.
                await self.applier.remove(names.GPUS, live["metadata"]["name"])
            else:
                gpu_rows.append(restoring.gpu_row(live, node_uid=uid))
        return Stored(
            store_id=uuid.uuid4().hex,
            start=1,
            version=1,
            resumable=(0, -1),
            nodes=node_rows,
            gpus=gpu_rows,
            tombstones=(),
            event_positions=dict(self.events.positions),
            last_event=last_event,
        )

    async def _commit(self, batch: Batch) -> Sequence[StoredEvent]:
        for uid, name in batch.removed_nodes:
            self._records.pop(uid, None)
            if self._node_uids.get(name) == uid:
                await self.applier.remove(names.GPU_NODES, name)
                del self._node_uids[name]
        await _each(batch.removed_gpus, lambda removed: self.applier.remove(names.GPUS, removed[0]))
        nodes = {node.uid: node for node in batch.node_records}
        nodes |= {gpu.node.uid: gpu.node for gpu in batch.gpu_objects}
        for node in nodes.values():
            self._node_uids[node.name] = node.uid
        self._records |= nodes
        await _each(nodes.values(), self._put_new_node)
        await _each(batch.gpu_objects, self._put_gpu)
        stored = await self._write_events(batch.events)
        # With the positions of the events that are written by now.
        nodes |= {row.node_uid: self._records[row.node_uid] for row in batch.events if row.node_uid in self._records}
        await _each(nodes.values(), self._put_node)
        self._untold = []
        return self.events.keep(stored)

    async def _put_new_node(self, node: NodeRecord) -> None:
        """The owner before what it owns."""
        if not self.applier.uid(names.GPU_NODES, node.name):
            await self.applier.put(names.GPU_NODES, self._metadata(node), None)

    async def _put_node(self, node: NodeRecord) -> None:
        seen = {"hypervisorStatus": {"lastHeartbeatTime": objects.timestamp(self._wall())}}
        status = objects.node_status(node)
        seen["hypervisorStatus"] = {**status["hypervisorStatus"], **seen["hypervisorStatus"]}
        await self.applier.put(names.GPU_NODES, self._metadata(node), status, volatile=seen)

    async def _put_gpu(self, gpu: GpuObject) -> None:
        metadata = objects.gpu_metadata(gpu, node_uid=self.applier.uid(names.GPU_NODES, gpu.node.name))
        await self.applier.put(names.GPUS, metadata, objects.gpu_status(gpu))

    async def _write_events(self, rows: Sequence[EventRow]) -> Sequence[EventRow]:
        uids = _Uids(self.applier)
        for row in rows:
            if await self.events.write(row, uids):
                self._untold.append(row)
        return self._untold

    def _metadata(self, node: NodeRecord) -> Object:
        position = self.events.positions.get(node.uid, node.stored_events)
        return objects.node_metadata(node, position=position, owner_uid=self.cluster_nodes.get(node.name, ""))


class _Uids(dict[tuple[str, str], str]):
    """UIDs of our objects by kind and name, asked when needed."""

    def __init__(self, applier: Applier) -> None:
        super().__init__()
        self._applier = applier

    def get(self, key: tuple[str, str], default: str = "") -> str:  # type: ignore[override]
        kind, name = key
        return self._applier.uid(names.GPUS if kind == "GPU" else names.GPU_NODES, name) or default


async def _each(items: Iterable[Item], do: Callable[[Item], Awaitable[object]]) -> None:
    """Some at a time; after a failure no more are begun. Raises the first ApiError."""
    waiting = iter(tuple(items))
    errors: list[ApiError] = []

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                await do(item)
            except ApiError as error:
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(_WRITERS)))
    if errors:
        raise errors[0]


def _words(error: ApiError) -> str:
    remedy = "it is tried again"
    if error.code == 403:
        remedy = "give the aggregator's service account the rights of deploy/aggregator.yaml"
    elif error.code == 401:
        remedy = "check the token of the kubeconfig or of the service account"
    elif error.code == NOT_FOUND:
        remedy = "install the kinds with kubectl apply -f deploy/crds"
    return f"the API server: {error}; {remedy}"
