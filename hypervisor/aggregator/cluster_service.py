"""ClusterService: queries and watches over all nodes, for schedulers and people. It changes nothing."""

# ruff: noqa: N802 - the names are those of the protos

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hypervisor.aggregator import rows
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.event_watch import EventWatch
from hypervisor.aggregator.filters import predicate
from hypervisor.aggregator.gpu_feed import GpuFeed
from hypervisor.aggregator.masks import gpu_mask
from hypervisor.aggregator.pages import DEFAULT_SIZE, MAX_PAGE_BYTES, MAX_SIZE, PageOf, Pages
from hypervisor.aggregator.pools import Oversubscription, sum_pools
from hypervisor.aggregator.records import GpuObject
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.store import EventQuery, Store, StoredEvent, StoreError
from hypervisor.aggregator.views import Moment, NodeView, cluster_gpu, cluster_node, node_view
from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.answering import streaming, unary
from hypervisor.rpc.registration import Undecodable
from hypervisor.rpc.statistics import CallCounter
from hypervisor.v1 import cluster_pb2, types_pb2

DESCRIPTOR = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]
_LOOKS_AT_ALL = frozenset({"ListNodes", "ListGpus", "ListPools"})
# Objects that can be looked at in about the time that an ordinary request takes.
_GPUS_A_REQUEST = 1_000
Item = TypeVar("Item")


class ClusterService:
    """Answers from the registry; events that are older than memory come from the store."""

    def __init__(
        self,
        registry: Registry,
        feed: GpuFeed,
        events: EventLog,
        store: Store,
        *,
        moment: Callable[[], Moment],
        max_watchers: int,
    ) -> None:
        self.calls = CallCounter()
        self._registry = registry
        self._feed = feed
        self._events = events
        self._store = store
        self._moment = moment
        self._max_watchers = max_watchers
        self._event_watchers = 0
        self._closing = asyncio.Event()
        self._gpu_pages: Pages[GpuObject] = Pages(monotonic=lambda: moment().monotonic)
        self._node_pages: Pages[NodeView] = Pages(monotonic=lambda: moment().monotonic)
        self._pools: tuple[int, Mapping[str, Oversubscription], list[cluster_pb2.Pool]] | None = None
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")

    @property
    def watchers(self) -> int:
        """Open watches, of GPUs and of events."""
        return self._feed.watchers + self._event_watchers

    def weigh(self, method: str, request: Any) -> float:
        """How many requests this one counts as: a list that looks at all objects is as dear as there are many."""
        if method not in _LOOKS_AT_ALL or isinstance(request, Undecodable) or request.page.token:
            return 1.0
        return 1.0 + len(self._registry.gpus) / _GPUS_A_REQUEST

    def close(self) -> None:
        """End all watches of events; those of GPUs end with their feed."""
        self._closing.set()
        self._reader.shutdown(wait=False, cancel_futures=True)

    @unary
    async def ListNodes(self, request: cluster_pb2.ListNodesRequest) -> cluster_pb2.ListNodesResponse:
        def make() -> tuple[Sequence[NodeView], int]:
            nodes = sorted(self._registry.nodes.values(), key=lambda node: (node.name, node.uid))
            return [node_view(node) for node in nodes], self._registry.version

        page = self._node_pages.begin(request.page, b"nodes", make)
        now = self._moment()
        response = cluster_pb2.ListNodesResponse(version=page.version)
        for view in _fitting(page, lambda view: len(view.latest)):
            response.nodes.append(cluster_node(view, now))
        response.next_page_token = self._node_pages.token(page, len(response.nodes), b"nodes")
        return response

    @unary
    async def ListGpus(self, request: cluster_pb2.ClusterListGpusRequest) -> cluster_pb2.ClusterListGpusResponse:
        matches = predicate(request.filter)
        mask = gpu_mask(request.fields)
        # The token holds for the filter; each page may ask for other fields.
        key = request.filter.SerializeToString(deterministic=True)

        def make() -> tuple[Sequence[GpuObject], int]:
            nodes = sorted(self._registry.nodes.values(), key=lambda node: (node.name, node.uid))
            found = [
                gpu
                for node in nodes
                for gpu in sorted(node.gpus.values(), key=lambda gpu: (gpu.index, gpu.name))
                if matches is None or matches(gpu)
            ]
            return found, self._registry.version

        page = self._gpu_pages.begin(request.page, key, make)
        now = self._moment()
        response = cluster_pb2.ClusterListGpusResponse(version=page.version)
        for gpu in _fitting(page, lambda gpu: len(gpu.latest) + 256):
            response.gpus.append(mask(cluster_gpu(gpu, now)))
        response.next_page_token = self._gpu_pages.token(page, len(response.gpus), key)
        return response

    @unary
    async def GetGpu(self, request: cluster_pb2.GetGpuRequest) -> cluster_pb2.GetGpuResponse:
        gpu = self._registry.gpus.get(request.uuid.lower())
        if gpu is None:
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"no node reports a GPU {request.uuid[:96]!r}",
                field="uuid",
                remedy="list them with: hypervisor get gpus --server ADDRESS",
            )
        return cluster_pb2.GetGpuResponse(gpu=cluster_gpu(gpu, self._moment()))

    @streaming
    async def WatchGpus(self, request: cluster_pb2.WatchGpusRequest) -> AsyncIterator[cluster_pb2.WatchGpusResponse]:
        matches = predicate(request.filter)
        mask = gpu_mask(request.fields)
        self._admit_watcher()
        resume_after = None
        if request.resume_after_version and request.store_id == self._registry.store_id:
            resume_after = request.resume_after_version
        async for message in self._feed.watch(matches=matches, mask=mask, resume_after=resume_after):
            yield message

    @unary
    async def ListPools(self, request: cluster_pb2.ListPoolsRequest) -> cluster_pb2.ListPoolsResponse:
        # Few and small: one page holds them all.
        version, oversubscription = self._registry.version, self._registry.oversubscription
        if self._pools is None or self._pools[:2] != (version, oversubscription):
            self._pools = version, oversubscription, sum_pools(self._registry.nodes.values(), oversubscription)
        return cluster_pb2.ListPoolsResponse(pools=self._pools[2], version=version)

    @unary
    async def ListEvents(self, request: cluster_pb2.ClusterListEventsRequest) -> cluster_pb2.ClusterListEventsResponse:
        begin = _begin_of(request.page.token, self._registry.store_id)
        size = min(request.page.size or DEFAULT_SIZE, MAX_SIZE)
        query = _query(request.regarding, request.type, request.node_name, after=begin, limit=size + 1)
        # What a filter leaves out up to here is looked at by this call.
        last = self._events.last_number
        found = await self._read(query)
        response = cluster_pb2.ClusterListEventsResponse(store_id=self._registry.store_id)
        total = 0
        for stored in found[:size]:
            event = rows.event_message(stored.row)
            total += event.ByteSize()
            if response.events and total > MAX_PAGE_BYTES:
                break
            response.events.append(event)
        taken = len(response.events)
        if taken < len(found):
            # Numbers only grow and events don't change, so that a number is the place in any version.
            response.number = found[taken - 1].number
            response.next_page_token = f"{response.store_id}.{response.number}"
        else:
            response.number = max([begin, last, *(stored.number for stored in found[-1:])])
        return response

    @streaming
    async def WatchEvents(
        self, request: cluster_pb2.ClusterWatchEventsRequest
    ) -> AsyncIterator[cluster_pb2.ClusterWatchEventsResponse]:
        self._admit_watcher()
        watch = EventWatch(
            self._events,
            self._read,
            store_id=self._registry.store_id,
            wanted=_query(request.regarding, request.type, request.node_name, after=0, limit=0),
            closing=self._closing,
        )
        resume_after = request.resume_after_number if request.store_id else None
        self._event_watchers += 1
        try:
            async for message in watch.messages(
                resume_after=resume_after, resume_store=request.store_id, only_new=request.only_new
            ):
                yield message
        finally:
            self._event_watchers -= 1

    # --- inside

    def _admit_watcher(self) -> None:
        if self.watchers >= self._max_watchers:
            raise Refusal(
                RefusalReason.TOO_MANY_WATCHERS,
                f"{self.watchers} watches are open, and no more are taken",
                remedy="end some, or watch with a filter instead of once a GPU",
            )

    async def _read(self, query: EventQuery) -> Sequence[StoredEvent]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, self._store.read_events, query)
        except StoreError as error:
            raise Refusal(RefusalReason.STORAGE_FAILED, str(error)) from error


def _fitting(page: PageOf[Item], size_of: Callable[[Item], int]) -> Sequence[Item]:
    """The items of a page that fit into a message; at least one when there is one."""
    total = 0
    items = page.items[page.start : page.start + page.size]
    for index, item in enumerate(items):
        total += size_of(item)
        if index and total > MAX_PAGE_BYTES:
            return items[:index]
    return items


def _query(regarding: types_pb2.ObjectReference, type_: int, node_name: str, *, after: int, limit: int) -> EventQuery:
    return EventQuery(
        after=after,
        limit=limit,
        kind=regarding.kind,
        namespace=regarding.namespace,
        name=regarding.name,
        object_uid=regarding.uid,
        type=type_,
        node_name=node_name,
    )


def _begin_of(token: str, store_id: str) -> int:
    """The number after which a page begins. Raises Refusal for a token that is none, or is of another store."""
    if not token:
        return 0
    store, _, number = token.rpartition(".")
    if not (number.isdecimal() and number.isascii() and len(number) <= 18):
        raise Refusal(RefusalReason.INVALID_ARGUMENT, "the page token can't be read", field="page.token")
    if store != store_id:
        raise Refusal(
            RefusalReason.PAGE_EXPIRED,
            "the page token is of another store, from before a change of leader",
            field="page.token",
            remedy="begin again without a token",
        )
    return int(number)
