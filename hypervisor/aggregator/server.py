"""The aggregator's process: restores, binds, serves until it is told to stop, and stops without losing anything."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from hypervisor.aggregator import rows
from hypervisor.aggregator.cluster_service import DESCRIPTOR as CLUSTER_SERVICE
from hypervisor.aggregator.cluster_service import ClusterService
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.gpu_feed import GpuFeed
from hypervisor.aggregator.http_server import HttpServer
from hypervisor.aggregator.listeners import Listeners
from hypervisor.aggregator.liveness import LivenessWheel
from hypervisor.aggregator.lock import locked
from hypervisor.aggregator.metrics import Figures, MetricsPage
from hypervisor.aggregator.recorder import Recorder
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.report_service import SERVICE as REPORT_SERVICE
from hypervisor.aggregator.report_service import ReportService
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import Stored
from hypervisor.aggregator.token_review import open_token_review
from hypervisor.aggregator.tokens import Accounts, Tokens
from hypervisor.aggregator.views import Moment
from hypervisor.aggregator.writer import Writer
from hypervisor.http.message import Request, Response, error_response, json_response
from hypervisor.model.peer import Role
from hypervisor.rpc.address import TcpAddress
from hypervisor.rpc.channel_options import SERVER_OPTIONS
from hypervisor.rpc.guard import Guard, IdentifyToken, Limits
from hypervisor.rpc.listening import ListenError, parse_listen
from hypervisor.rpc.ports import server_certificates
from hypervisor.rpc.registration import add_service
from hypervisor.rpc.standing_services import add_standing_services

log = structlog.get_logger("aggregator")

# Ten thousand streams open within a second or two after a restart; by default gRPC would reset some of them.
_SERVER_OPTIONS = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.server.max_pending_requests": 20_000,
        "grpc.server.max_pending_requests_hard_limit": 30_000,
    }.items()
)
_STOP_GRACE_SECONDS = 1.0
_RESTORE_SLICE = 2_000


class Aggregator:
    """All parts of one process, wired; made by open() and ended by close()."""

    def __init__(
        self,
        settings: AggregatorSettings,
        store: SqliteStore,
        stored: Stored,
        *,
        identify_token: IdentifyToken | None = None,
    ) -> None:
        """identify_token: how a ServiceAccount token becomes an identity. Raises ListenError."""
        self._settings = settings
        self._certificates = server_certificates(settings.tls_dir)
        self._guard = Guard(
            {REPORT_SERVICE: frozenset({Role.NODE}), CLUSTER_SERVICE.full_name: frozenset({Role.READER})},
            Limits(
                requests_per_second=settings.requests_per_second,
                requests_at_once=2 * settings.requests_per_second,
                streams=settings.streams_per_peer,
            ),
            identify_token=identify_token,
        )
        self._events = EventLog(last_number=stored.last_event)
        recorder = Recorder(self._events.add, store_id=stored.store_id, start=stored.start, wall=time.time)
        self.registry = Registry(
            store_id=stored.store_id,
            version=stored.version,
            resumable=stored.resumable,
            tombstone_limit=settings.tombstone_count,
            record=recorder.record,
            monotonic=time.monotonic,
            wall=time.time,
        )
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
            who=self._guard.who,
            monotonic=time.monotonic,
            wall=time.time,
        )
        self._feed = GpuFeed(self.registry, moment=_moment)
        self._cluster = ClusterService(
            self.registry, self._feed, self._events, store, moment=_moment, max_watchers=settings.max_watchers
        )
        self._page = MetricsPage(self.registry, self._figures, monotonic=time.monotonic)
        self._closing = asyncio.Event()
        self._listeners = Listeners(
            grpc.aio.server(interceptors=(self._guard,), options=_SERVER_OPTIONS), self._certificates
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

    async def start(self) -> tuple[str, ...]:
        """Bind and serve gRPC; returns the addresses. Raises ListenError, and then nothing is bound."""
        server = self._listeners.server
        server.add_generic_rpc_handlers((self._reports.handler(),))
        add_service(server, CLUSTER_SERVICE, self._cluster)
        add_standing_services(server, (REPORT_SERVICE, CLUSTER_SERVICE.full_name), self._closing)
        for text in self._settings.listen:
            self._listeners.bind(text, insecure=self._settings.insecure)
        for text in self._settings.token_listen:
            self._listeners.bind_for_tokens(text)
        await server.start()
        return self._listeners.addresses

    async def run(self) -> None:
        """The tasks that run all the time; ends when one of them fails, or when it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._writer.run())
            tasks.create_task(self._liveness.run())

    async def close(self) -> None:
        """Let streams and watches end, then bring what is left to the disk."""
        self._closing.set()
        self._reports.close()
        self._feed.close()
        self._cluster.close()
        await self._listeners.stop(_STOP_GRACE_SECONDS)
        await self._writer.close()

    async def answer(self, request: Request) -> Response:
        """What the HTTP port says."""
        if request.path == "/metrics":
            content_type, body = self._page.render(request.headers.get("accept", ""))
            return Response(status=200, content_type=content_type, body=body)
        if request.path == "/healthz":
            return Response(status=200, content_type="text/plain; charset=utf-8", body=b"ok\n")
        if request.path == "/readyz":
            reasons = [reason for reason in (self._writer.failing, self._stopping()) if reason]
            return json_response(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})
        return error_response(404, "there are /metrics, /healthz and /readyz")

    def _stopping(self) -> str:
        return "the aggregator is stopping" if self._closing.is_set() else ""

    def _figures(self) -> Figures:
        return Figures(
            registry=self.registry.statistics(),
            reports=self._reports.statistics(),
            events=self._events.statistics(),
            writer=self._writer.statistics(),
            feed=self._feed.statistics(),
            watchers=self._cluster.watchers,
            refused_calls=self._guard.refused(),
            certificates=self._certificates,
            calls=self._cluster.calls.statistics(),
        )


async def serve(settings: AggregatorSettings, *, on_ready: Callable[[tuple[str, ...], str], None]) -> None:
    """Run the aggregator until SIGTERM or SIGINT. Raises ListenError or StoreError when it can't start.

    on_ready is called once, with the gRPC addresses and the URL of the HTTP port, when all of them answer.
    """
    http_address = _http_address(settings)
    _raise_descriptor_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(locked(settings.store))
        identify_token = None
        if settings.token_listen:
            review = await stack.enter_async_context(open_token_review(settings.kubeconfig))
            accounts = Accounts(
                reporters=frozenset(settings.reporter_accounts), readers=frozenset(settings.reader_accounts)
            )
            identify_token = Tokens(review, accounts, monotonic=time.monotonic).identify
        store, stored = await asyncio.to_thread(_open, settings.store, settings.tombstone_count)
        aggregator = Aggregator(settings, store, stored, identify_token=identify_token)
        try:
            await aggregator.restore(stored)
            addresses = await aggregator.start()
            async with HttpServer(http_address, aggregator.answer) as http:
                running = asyncio.ensure_future(aggregator.run())
                stopping = asyncio.ensure_future(stop.wait())
                log.info("serving", addresses=addresses, http=http.url, store=str(settings.store))
                on_ready(addresses, http.url)
                await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if running.done():
                    await running
                log.info("stopping")
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
        finally:
            await aggregator.close()


def _raise_descriptor_limit() -> None:
    """A socket a node: ten thousand pass the usual soft limit of 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open(path: Path, tombstone_limit: int) -> tuple[SqliteStore, Stored]:
    store = SqliteStore(path, tombstone_limit=tombstone_limit)
    return store, store.load()


def _http_address(settings: AggregatorSettings) -> TcpAddress:
    address = parse_listen(settings.http_listen, "http_listen")
    if not isinstance(address, TcpAddress):
        raise ListenError(f"http_listen: {settings.http_listen} is no HOST:PORT")
    return address


def _moment() -> Moment:
    return Moment(time.monotonic(), time.time())
