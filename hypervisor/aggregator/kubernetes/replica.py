"""One of several replicas: follows until the lease is its own, then leads until it is told to stop or loses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from hypervisor.aggregator.front import Front, open_front
from hypervisor.aggregator.http_server import HttpServer
from hypervisor.aggregator.kubernetes import crashes, names, probes
from hypervisor.aggregator.kubernetes.client import KubernetesClient, open_client
from hypervisor.aggregator.kubernetes.crashes import HypervisorPods
from hypervisor.aggregator.kubernetes.feeds import OUR_COLLECTIONS, NodeLabels, OurObjects
from hypervisor.aggregator.kubernetes.leader import Elector, LeadershipLostError
from hypervisor.aggregator.kubernetes.pools import Pools
from hypervisor.aggregator.kubernetes.probes import ProbeJobs
from hypervisor.aggregator.kubernetes.store import KubernetesStore
from hypervisor.aggregator.kubernetes.watching import Watch
from hypervisor.aggregator.server import (
    Aggregator,
    OnReady,
    http_address_of,
    raise_descriptor_limit,
    run_until,
    stop_event,
)
from hypervisor.aggregator.settings import AggregatorSettings, KubernetesSettings
from hypervisor.aggregator.store import StoreError
from hypervisor.http.message import Request, Response, error_response, json_response
from hypervisor.model import Refusal, RefusalReason

log = structlog.get_logger("aggregator")


async def serve_replica(settings: AggregatorSettings, kubernetes: KubernetesSettings, *, on_ready: OnReady) -> None:
    """Run until SIGTERM or SIGINT. Raises ListenError or StoreError when it can't start or may not lead any more.

    on_ready is called once, when the gRPC addresses and the HTTP port answer, whether we lead or not.
    """
    http_address = http_address_of(settings)
    raise_descriptor_limit()
    stop = stop_event()
    client = open_client(kubernetes.kubeconfig, namespace=kubernetes.namespace)
    elector = Elector(client, identity=kubernetes.identity, address=kubernetes.address, times=kubernetes.lease)
    answers = _Answers(elector)
    try:
        async with open_front(settings, refusal=lambda: _not_leader(elector)) as front:
            addresses = await front.listen()
            async with HttpServer(http_address, answers.answer) as http:
                log.info("serving", addresses=addresses, http=http.url, store="kubernetes", namespace=client.namespace)
                on_ready(addresses, http.url)
                await run_until(stop, elector.acquire())
                if not stop.is_set():
                    log.info("leading", identity=kubernetes.identity)
                    await _Leader(settings, kubernetes, client, front).run(stop, elector, answers)
    except LeadershipLostError as error:
        raise StoreError(f"{error}; this replica begins anew as a follower") from error
    finally:
        await elector.release()
        await client.close()


class _Part(Protocol):
    """What runs all the time."""

    async def run(self) -> None: ...


class _Answers:
    """What the HTTP port says: as a follower, and as a leader what the aggregator says."""

    def __init__(self, elector: Elector) -> None:
        self._elector = elector
        self.leader: Callable[[Request], Awaitable[Response]] | None = None

    async def answer(self, request: Request) -> Response:
        if self.leader is not None:
            return await self.leader(request)
        if request.path == "/healthz":
            return Response(status=200, content_type="text/plain; charset=utf-8", body=b"ok\n")
        if request.path == "/readyz":
            return json_response(503, {"ready": False, "reasons": [_follows(self._elector)]})
        return error_response(503, _follows(self._elector))


class _Leader:
    """What only the leader runs."""

    def __init__(
        self,
        settings: AggregatorSettings,
        kubernetes: KubernetesSettings,
        client: KubernetesClient,
        front: Front,
    ) -> None:
        self._settings = settings
        self._kubernetes = kubernetes
        self._client = client
        self._front = front
        self._store = KubernetesStore(
            client,
            instance=kubernetes.identity,
            limits=kubernetes.limits,
            loop=asyncio.get_running_loop(),
            monotonic=time.monotonic,
            wall=time.time,
        )

    async def run(self, stop: asyncio.Event, elector: Elector, answers: _Answers) -> None:
        """Load, serve, and write, until we are told to stop. Raises LeadershipLostError, and then writes nothing."""
        holding = asyncio.ensure_future(elector.hold())
        try:
            aggregator = await self._load(stop, holding)
            if aggregator is None:
                return
            self._front.gate.open(aggregator.add_services)
            answers.leader = aggregator.web.answer
            work = asyncio.ensure_future(run_until(stop, self._work(aggregator)))
            await asyncio.wait((work, holding), return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                work.cancel()
                # Not closed: a close would write, and another leads by now.
                holding.result()
            await work
            await aggregator.close()
        finally:
            holding.cancel()
            with contextlib.suppress(asyncio.CancelledError, LeadershipLostError):
                await holding

    async def _load(self, stop: asyncio.Event, holding: asyncio.Future[None]) -> Aggregator | None:
        """What is stored; tried until it can be read, or we are told to stop."""
        while not stop.is_set():
            if holding.done():
                holding.result()
            try:
                stored = await asyncio.to_thread(self._store.load)
                aggregator = Aggregator(self._settings, self._store, stored, self._front)
                await aggregator.restore(stored)
            except StoreError as error:
                log.warning("what is stored can't be read yet", error=str(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._kubernetes.lease.retry)
                continue
            return aggregator
        return None

    async def _work(self, aggregator: Aggregator) -> None:
        registry, applier = aggregator.registry, self._store.applier
        labels = NodeLabels(registry, self._store.cluster_nodes)
        pools = Pools(registry, applier)
        pods = HypervisorPods(
            self._client, threshold=self._kubernetes.max_crash_count, record=aggregator.record, wall=time.time
        )
        jobs = ProbeJobs(self._client, record=aggregator.record)
        namespace = self._client.namespace
        watches = [
            Watch(self._client, names.NODES, labels, metadata_only=True),
            Watch(self._client, names.GPU_POOLS, pools.pools),
            Watch(self._client, names.CLUSTERS, pools.clusters),
            Watch(self._client, names.pods(namespace), pods, query={"labelSelector": crashes.SELECTOR}),
            Watch(self._client, names.jobs(namespace), jobs, query={"labelSelector": probes.SELECTOR}),
            *(
                Watch(self._client, collection, OurObjects(applier, collection, mark(registry)))
                for collection, mark in OUR_COLLECTIONS
            ),
        ]
        async with asyncio.TaskGroup() as tasks:
            parts: tuple[_Part, ...] = (aggregator, labels, pools, pods, jobs, *watches)
            for part in parts:
                tasks.create_task(part.run())


def _follows(elector: Elector) -> str:
    if elector.failing:
        return f"the lease can't be reached: {elector.failing}"
    if not elector.leader:
        return "no replica leads yet"
    return f"this replica follows {elector.leader}, at {elector.leader_address}"


def _not_leader(elector: Elector) -> Refusal:
    remedy = f"connect to {elector.leader_address}" if elector.leader_address else "connect again in a moment"
    return Refusal(RefusalReason.NOT_LEADER, _follows(elector), remedy=remedy)
