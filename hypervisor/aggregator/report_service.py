"""ReportService: one stream a node, read as fast as it may be, acknowledged when durable.

Messages are taken as bytes and parsed here, so that what can't be parsed is refused with a reason and the stream lives
on. A handler only touches dicts; what is written to the stream is latest-wins, so that a node that does not read can't
make us keep anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

import hypervisor
from hypervisor.aggregator import reports, rows, subjects
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.liveness import LivenessWheel
from hypervisor.aggregator.pace import Pace
from hypervisor.aggregator.records import NodeRecord, Position
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.report_link import ReportLink
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.writer import Writer
from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.answering import Context, abort_with
from hypervisor.rpc.guard import Peer
from hypervisor.v1 import report_pb2, types_pb2

log = structlog.get_logger("reports")

SERVICE = report_pb2.DESCRIPTOR.services_by_name["ReportService"].full_name
# What one stream may send: far above an honest node's, and a pause is the answer to more.
MESSAGES_PER_SECOND = 100.0
MESSAGES_AT_ONCE = 400.0
EVENTS_PER_BATCH = 1_000
# How long a stream may be open without saying whose it is; many open at once after a restart.
HELLO_SECONDS = 60.0
LONGEST_SPREAD_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStatistics:
    """messages and refused: by kind and by field; streams: open now."""

    streams: int
    streams_total: int
    superseded_total: int
    resends_total: int
    messages: tuple[tuple[str, int], ...]
    refused: tuple[tuple[str, int], ...]


class ReportService:
    """The service, and all its open streams."""

    def __init__(
        self,
        registry: Registry,
        events: EventLog,
        writer: Writer,
        liveness: LivenessWheel,
        settings: AggregatorSettings,
        *,
        who: Callable[[Context], Awaitable[Peer]],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """who: who is at the other end of a stream; raises Refusal."""
        self._who = who
        self._registry = registry
        self._events = events
        self._writer = writer
        self._liveness = liveness
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._links: set[ReportLink] = set()
        self._closing = False
        self._opened = self._superseded = self._resends = 0
        self._messages: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for a server: requests come as bytes."""
        report: Any = grpc.stream_stream_rpc_method_handler(
            self.report,
            request_deserializer=None,
            response_serializer=report_pb2.ReportResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Report": report})

    async def report(self, _: Any, context: grpc.aio.ServicerContext[bytes, report_pb2.ReportResponse]) -> None:
        """One stream, until the node ends it, another of the same node takes over, or we stop."""
        try:
            first = await self._first(context)
            if first is grpc.aio.EOF:
                return
            link = self._open(self._hello(first), await self._who(context), context)
        except Refusal as refusal:
            self._refused[refusal.reason.value] += 1
            log.warning("a node's stream is refused", peer=context.peer(), error=str(refusal))
            await abort_with(context, refusal)
            return
        try:
            await self._read(link, context)
        except asyncio.CancelledError:
            if link.ended_because is None:
                raise
            # Ended by us: the handler returns in peace. gRPC must not see a cancellation.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            await link.settle()
            await abort_with(context, link.ended_because)
        finally:
            self._close(link)

    def close(self) -> None:
        """End all streams with UNAVAILABLE, so that the nodes come back later. No stream is opened any more."""
        self._closing = True
        for link in tuple(self._links):
            link.end(_stopping())

    def statistics(self) -> ReportStatistics:
        """Streams now and counters since the start."""
        return ReportStatistics(
            streams=len(self._links),
            streams_total=self._opened,
            superseded_total=self._superseded,
            resends_total=self._resends,
            messages=tuple(sorted(self._messages.items())),
            refused=tuple(sorted(self._refused.items())),
        )

    # --- opening and closing

    async def _first(self, context: Context) -> Any:
        """The first message: bytes, or EOF, which the stubs don't know. Raises Refusal when none comes."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                return await context.read()
        except TimeoutError:
            raise _invalid("hello", f"no message came within {HELLO_SECONDS:g} s") from None

    def _hello(self, data: bytes) -> report_pb2.Hello:
        try:
            request = report_pb2.ReportRequest.FromString(data)
        except DecodeError as error:
            raise _invalid("hello", "the first message can't be parsed") from error
        if request.WhichOneof("content") != "hello":
            raise _invalid("hello", "the first message of a stream is a hello")
        try:
            reports.check_identity(request.hello.node)
        except reports.ReportError as error:
            raise _invalid(error.field, error.message) from error
        return request.hello

    def _open(
        self, hello: report_pb2.Hello, peer: Peer, context: grpc.aio.ServicerContext[bytes, report_pb2.ReportResponse]
    ) -> ReportLink:
        """The stream's link, its welcome on the way. Raises Refusal."""
        identity, registry = hello.node, self._registry
        if self._closing:
            raise _stopping()
        owned_name = self._owned_name(identity, peer)
        if hello.simulated and not self._settings.allow_simulated:
            raise _simulated(identity.name)
        if identity.uid not in registry.nodes and len(registry.nodes) >= self._settings.max_nodes:
            raise Refusal(
                RefusalReason.TOO_MANY_NODES,
                f"{len(registry.nodes)} nodes are held, and no more are taken",
                remedy="raise --max-nodes, or let a second aggregator take some",
            )
        node = registry.add_node(identity.uid, identity.name)
        if node.link is not None:
            self._superseded += 1
            log.info("a node's new stream takes the place of its old one", node=node.name, peer=context.peer())
            assert isinstance(node.link, ReportLink)
            node.link.end(
                Refusal(
                    RefusalReason.NODE_CONFLICT,
                    f"another stream of node {identity.uid} has taken the place of this one",
                    remedy="if two machines report under this UID, remove node.json in one's state directory",
                )
            )
        link = ReportLink(context, node, owned_name=owned_name, spread=self._spread_seconds)
        node.link = link
        self._links.add(link)
        self._opened += 1
        self._liveness.heard(node)
        self._liveness.watch(node)
        link.send_welcome(self._welcome(node))
        log.info("a node reports", node=node.name, uid=node.uid, peer=context.peer())
        return link

    def _owned_name(self, identity: types_pb2.NodeIdentity, peer: Peer) -> str:
        """The only name under which this peer may report; "" where the socket decides. Raises Refusal for another's
        name, and for the UID of a node of another name: a UID is no secret."""
        if peer.identity is None:
            return ""
        owned = peer.identity.name
        if identity.name != owned:
            raise Refusal(
                RefusalReason.FORBIDDEN,
                f"{peer.identity} may not report node {identity.name}",
                field="hello.node.name",
                remedy="use that node's own certificate, or give the daemon the certificate's name with --node-name",
            )
        known = self._registry.nodes.get(identity.uid)
        if known is not None and known.name != owned:
            raise Refusal(
                RefusalReason.FORBIDDEN,
                f"{peer.identity} may not report under the UID of node {known.name}",
                field="hello.node.uid",
                remedy="if the node was renamed, remove node.json in its state directory, and it gets a UID of its own",
            )
        return owned

    def _spread_seconds(self) -> float:
        """Over how long the nodes that there are should come back after we were away."""
        return min(LONGEST_SPREAD_SECONDS, len(self._registry.nodes) / self._settings.reconnects_per_second)

    def _welcome(self, node: NodeRecord) -> report_pb2.Welcome:
        welcome = report_pb2.Welcome(
            held_event_epoch=node.stored_events[0],
            held_event_sequence=node.stored_events[1],
            heartbeat_seconds=self._settings.heartbeat_seconds,
            reconnect_spread_seconds=self._spread_seconds(),
            aggregator_version=hypervisor.__version__,
        )
        if node.held is not None:
            welcome.held.epoch, welcome.held.revision = node.held
        return welcome

    def _close(self, link: ReportLink) -> None:
        self._links.discard(link)
        link.close()
        node = link.node
        if node.link is link:
            node.link = None
            log.info("a node's stream has ended", node=node.name, uid=node.uid)

    # --- reading

    async def _read(self, link: ReportLink, context: grpc.aio.ServicerContext[bytes, Any]) -> None:
        pace = Pace(per_second=MESSAGES_PER_SECOND, at_once=MESSAGES_AT_ONCE, monotonic=self._monotonic)
        while True:
            data: Any = await context.read()
            if data is grpc.aio.EOF:
                return
            if (pause := pace.take()) > 0:
                await asyncio.sleep(pause)
            self._liveness.heard(link.node)
            try:
                await self._handle(link, data)
            except reports.ReportError as error:
                self._refused[error.field.partition("[")[0]] += 1
                log.warning("a report is refused", node=link.node.name, error=str(error))
                link.refuse(
                    types_pb2.Refusal(
                        reason=RefusalReason.INVALID_ARGUMENT.value, field=error.field, message=error.message
                    )
                )

    async def _handle(self, link: ReportLink, data: bytes) -> None:
        try:
            request = report_pb2.ReportRequest.FromString(data)
        except DecodeError as error:
            raise reports.ReportError("message", f"{len(data)} bytes that can't be parsed") from error
        kind = request.WhichOneof("content")
        self._messages[kind or "none"] += 1
        if kind == "heartbeat":
            self._heartbeat(link, request.heartbeat)
        elif kind == "delta":
            self._delta(link, request.delta)
        elif kind == "snapshot":
            self._snapshot(link, request.snapshot)
        elif kind == "events":
            await self._take_events(link.node, request.events)
        elif kind == "hello":
            raise reports.ReportError("hello", "comes once, as the first message of a stream")
        else:
            raise reports.ReportError("content", "is empty, or of a kind that this aggregator doesn't know")

    def _heartbeat(self, link: ReportLink, heartbeat: report_pb2.ReportHeartbeat) -> None:
        if not heartbeat.HasField("revision"):
            return
        at = reports.check_revision(heartbeat.revision, "heartbeat.revision")
        if link.node.held is not None and at > link.node.held:
            self._resend(link, f"the heartbeat names revision {_shown(at)}, {_shown(link.node.held)} is held")

    def _delta(self, link: ReportLink, delta: report_pb2.Delta) -> None:
        node = link.node
        base = reports.check_revision(delta.base, "delta.base")
        to = reports.check_revision(delta.revision, "delta.revision")
        if node.held is not None and to <= node.held:
            self._messages["stale"] += 1
            return
        if node.held != base:
            held = _shown(node.held) if node.held else "none"
            self._resend(link, f"the delta builds on revision {_shown(base)}, {held} is held")
            return
        changes = delta.changes
        reports.check_allocations(changes, "delta.changes")
        if changes.HasField("node"):
            reports.check_node(changes.node, node.uid, "delta.changes.node", owned_name=link.owned_name)
        self._check_simulated(link, [*changes.gpus, *([changes.node] if changes.HasField("node") else [])])
        before = self._registry.version
        self._registry.apply_delta(node, to, changes)
        link.has_reported = True
        self._writer.revision_received(node, facts=self._registry.version != before)

    def _snapshot(self, link: ReportLink, snapshot: report_pb2.Snapshot) -> None:
        node = link.node
        at = reports.check_revision(snapshot.revision, "snapshot.revision")
        if node.held is not None and at < node.held and link.has_reported:
            # Within a stream a node's state only moves on.
            self._messages["stale"] += 1
            return
        reports.check_node(snapshot.state.node, node.uid, "snapshot.state.node", owned_name=link.owned_name)
        reports.check_allocations(snapshot.state, "snapshot.state")
        self._check_simulated(link, [*snapshot.state.gpus, snapshot.state.node])
        before = self._registry.version
        self._registry.apply_snapshot(node, at, snapshot.state)
        # A stream's first snapshot is acknowledged at once, also when it brought no news: the node has arrived.
        news = self._registry.version != before or not link.has_reported
        link.has_reported = True
        self._writer.revision_received(node, facts=news)

    def _check_simulated(self, link: ReportLink, objects: list[Any]) -> None:
        """A node that hid in its hello that it is simulated."""
        if not self._settings.allow_simulated and any(found.simulated for found in objects):
            refusal = _simulated(link.node.name)
            raise reports.ReportError("simulated", str(refusal))

    async def _take_events(self, node: NodeRecord, batch: report_pb2.EventBatch) -> None:
        if len(batch.events) > EVENTS_PER_BATCH:
            raise reports.ReportError("events", f"{len(batch.events)} in one message; at most {EVENTS_PER_BATCH}")
        await self._events.room()
        now = self._wall()
        taken = []
        last: Position = (0, 0)
        for event in batch.events:
            row = rows.event_row(event, node_uid=node.uid, received_at=now)
            if row is not None:
                # A node tells of itself only, whatever name it writes there.
                taken.append(subjects.own(row._replace(node_name=node.name), node, self._registry))
            if event.node_uid == node.uid and event.epoch <= reports.MAX_COUNTER:
                # Also of one that is dropped, or the node would send it for ever.
                last = max(last, (event.epoch, event.sequence))
        refused = len(batch.events) - len(taken)
        if refused:
            # Dropped and counted: refusing the batch would make the node send it for ever.
            self._events.refuse(refused)
            self._refused["events"] += refused
            log.warning("events that can't be kept are dropped", node=node.name, count=refused)
        self._events.add(taken)
        self._writer.events_received(node, last)

    def _resend(self, link: ReportLink, reason: str) -> None:
        self._resends += 1
        log.info("a node is asked for a snapshot", node=link.node.name, reason=reason)
        link.ask_for_snapshot(reason)


def _invalid(field: str, message: str) -> Refusal:
    return Refusal(RefusalReason.INVALID_ARGUMENT, message, field=field)


def _simulated(name: str) -> Refusal:
    return Refusal(
        RefusalReason.SIMULATED_REFUSED,
        f"node {name} is simulated and this aggregator takes real ones",
        remedy="start the aggregator with --allow-simulated to try things out",
    )


def _stopping() -> Refusal:
    return Refusal(RefusalReason.NOT_READY, "the aggregator is stopping", remedy="connect again in a moment")


def _shown(position: Position) -> str:
    return f"{position[0]}.{position[1]}"
