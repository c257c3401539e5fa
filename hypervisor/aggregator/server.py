"""The aggregator's process: restores, binds, serves until it is told to stop, and stops without losing anything."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from hypervisor.aggregator import rows
from hypervisor.aggregator.cluster_service import DESCRIPTOR as CLUSTER_SERVICE
from hypervisor.aggregator.cluster_service import ClusterService
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.front import Front, not_yet, open_front
from hypervisor.aggregator.gate import HandlerList
from hypervisor.aggregator.gpu_feed import GpuFeed
from hypervisor.aggregator.http_server import HttpServer
from hypervisor.aggregator.liveness import LivenessWheel
from hypervisor.aggregator.lock import locked
from hypervisor.aggregator.map import ClusterMap
from hypervisor.aggregator.metrics import Figures, MetricsPage
from hypervisor.aggregator.recorder import Record, Recorder
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.report_service import ReportService
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import Store, Stored
from hypervisor.aggregator.views import Moment
from hypervisor.aggregator.web import WebPages
from hypervisor.aggregator.writer import Writer
from hypervisor.rpc.address import TcpAddress
from hypervisor.rpc.listening import ListenError, parse_listen
from hypervisor.rpc.registration import add_service

log = structlog.get_logger("aggregator")

_RESTORE_SLICE = 2_000

OnReady = Callable[[tuple[str, ...], str], None]


class Aggregator:
    """All parts that hold the state and answer for it, wired; restore() comes first, and close() last."""

    def __init__(self, settings: AggregatorSettings, store: Store, stored: Stored, front: Front) -> None:
        self._settings = settings
        self._store = store
        self._front = front
        self._events = EventLog(last_number=stored.last_event)
        recorder = Recorder(self._events.add, store_id=stored.store_id, start=stored.start, wall=time.time)
        self.record: Record = recorder.record
        self.registry = Registry(
            store_id=stored.store_id,
            version=stored.version,
            resumable=stored.resumable,
            tombstone_limit=settings.tombstone_count,
            record=recorder.record,
            monotonic=time.monotonic,
            wall=time.time,
        )
        self.registry.set_pool_selectors(settings.pools)
        self._writer = Writer(store, self.registry, self._events, settings, monotonic=time.monotonic, wall=time.time)
        self._liveness = LivenessWheel(
            self.registry,
            late_after=settings.late_after_seconds,
            lost_after=settings.lost_after_seconds,
            monotonic=time.monotonic,
        )
        self._reports = ReportService(
            self.registry,
            self._events,
            self._writer,
            self._liveness,
            settings,
            who=front.guard.who,
            monotonic=time.monotonic,
            wall=time.time,
        )
        self._feed = GpuFeed(self.registry, moment=_moment)
        self._cluster = ClusterService(
            self.registry, self._feed, self._events, store, moment=_moment, max_watchers=settings.max_watchers
        )
        front.guard.weigh = self._cluster.weigh
        self.web = WebPages(
            MetricsPage(self.registry, self._figures, monotonic=time.monotonic),
            ClusterMap(self.registry, moment=_moment),
            self._unready,
        )

    async def restore(self, stored: Stored) -> None:
        """Take what the store held; nodes are late until they are heard of. Raises StoreError."""
        now = time.monotonic()
        for row in stored.nodes:
            node = rows.node_record(row, now=now)
            node.stored_events = stored.event_positions.get(node.uid, (0, 0))
            self.registry.restore_node(node)
            self._liveness.watch(node)
        for number, gpu_row in enumerate(stored.gpus):
            owner = self.registry.nodes.get(gpu_row.node_uid)
            if owner is not None:
                self.registry.restore_gpu(rows.gpu_record(gpu_row, owner, now=now))
            if number % _RESTORE_SLICE == 0:
                await asyncio.sleep(0)
        for name, version in stored.tombstones:
            self.registry.tombstones[name] = version
        self.registry.event_positions.update(stored.event_positions)
        log.info("restored", nodes=len(stored.nodes), gpus=len(stored.gpus), version=stored.version)

    def add_services(self, server: HandlerList) -> None:
        """Add our services to what will answer calls."""
        server.add_generic_rpc_handlers((self._reports.handler(),))
        add_service(server, CLUSTER_SERVICE, self._cluster)

    async def run(self) -> None:
        """The tasks that run all the time; ends when one of them fails, or when it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._writer.run())
            tasks.create_task(self._liveness.run())

    async def close(self) -> None:
        """Let streams and watches end, then bring what is left to the store."""
        self._front.closing.set()
        self._reports.close()
        self._feed.close()
        self._cluster.close()
        await self._front.stop()
        await self._writer.close()

    def _unready(self) -> list[str]:
        """Why nobody should be sent here; nothing when all is well."""
        stopping = "the aggregator is stopping" if self._front.closing.is_set() else ""
        return [reason for reason in (self._writer.failing, stopping) if reason]

    def _figures(self) -> Figures:
        return Figures(
            registry=self.registry.statistics(),
            reports=self._reports.statistics(),
            events=self._events.statistics(),
            writer=self._writer.statistics(),
            feed=self._feed.statistics(),
            watchers=self._cluster.watchers,
            refused_calls=self._front.guard.refused(),
            certificates=self._front.certificates,
            calls=self._cluster.calls.statistics(),
            store=self._store.collect,
        )


async def serve(settings: AggregatorSettings, *, on_ready: OnReady) -> None:
    """Run the aggregator until SIGTERM or SIGINT. Raises ListenError or StoreError when it can't start.

    on_ready is called once, with the gRPC addresses and the URL of the HTTP port, when all of them answer.
    """
    http_address = http_address_of(settings)
    raise_descriptor_limit()
    stop = stop_event()
    with locked(settings.store):
        async with open_front(settings, refusal=not_yet) as front:
            store, stored = await asyncio.to_thread(_open, settings.store, settings.tombstone_count)
            aggregator = Aggregator(settings, store, stored, front)
            try:
                await aggregator.restore(stored)
                front.gate.open(aggregator.add_services)
                addresses = await front.listen()
                async with HttpServer(http_address, aggregator.web.answer) as http:
                    log.info("serving", addresses=addresses, http=http.url, store=str(settings.store))
                    on_ready(addresses, http.url)
                    await run_until(stop, aggregator.run())
            finally:
                await aggregator.close()


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until we are told to stop; what ends it earlier is raised."""
    running = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        stopping.cancel()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    log.info("stopping" if stop.is_set() else "done")


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def raise_descriptor_limit() -> None:
    """A socket a node: ten thousand pass the usual soft limit of 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open(path: Path, tombstone_limit: int) -> tuple[SqliteStore, Stored]:
    store = SqliteStore(path, tombstone_limit=tombstone_limit)
    return store, store.load()


def http_address_of(settings: AggregatorSettings) -> TcpAddress:
    address = parse_listen(settings.http_listen, "http_listen")
    if not isinstance(address, TcpAddress):
        raise ListenError(f"http_listen: {settings.http_listen} is no HOST:PORT")
    return address


def _moment() -> Moment:
    return Moment(time.monotonic(), time.time())
