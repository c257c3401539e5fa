"""The node's end of the report stream; lives on the asyncio loop.

State is latest-wins: what is not sent yet is replaced by what is newer, and a slow or absent aggregator costs no
memory. The stream opens with a snapshot, or a delta when the aggregator still holds what we last sent; facts follow at
once, readings alone with the next heartbeat. Events go in order from where the aggregator says it stands.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import structlog

from hypervisor.model import Event, NodeSnapshot, Revision
from hypervisor.model.delta import diff
from hypervisor.rpc.channel_options import CLIENT_OPTIONS, keepalive
from hypervisor.rpc.convert import Moment, event_to_proto, revision_to_proto
from hypervisor.rpc.convert.state import delta_to_proto, snapshot_to_proto
from hypervisor.rpc.report_changes import is_urgent, without_use
from hypervisor.rpc.report_way import ReportWay
from hypervisor.rpc.tls import TlsError
from hypervisor.v1 import report_pb2, report_pb2_grpc, types_pb2

log = structlog.get_logger("reporter")

SHORTEST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
# After a restart of the aggregator ten thousand nodes want a handshake, which takes it several seconds.
WELCOME_SECONDS = 20.0
LONGEST_SPREAD_SECONDS = 120.0
# Facts are sent at most this often, so that a flickering figure is no flood.
GATHER_SECONDS = 0.1
EVENTS_AT_ONCE = 200
# Events that were sent and are not acknowledged: more wait in the journal.
EVENTS_IN_FLIGHT = 2_000
_DEFAULT_HEARTBEAT_SECONDS = 5.0
_OPTIONS = (
    *CLIENT_OPTIONS,
    # An aggregator whose machine has gone without a word is noticed within half a minute.
    *keepalive(15, 10),
)

_Call = grpc.aio.StreamStreamCall[report_pb2.ReportRequest, report_pb2.ReportResponse]
Position = tuple[int, int]


class _StreamEnded(Exception):  # noqa: N818 - it is an answer, not a fault
    """The aggregator has ended the stream; the text is what it said."""


_STREAM_ERRORS = (
    grpc.aio.AioRpcError,
    grpc.aio.InternalError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    TimeoutError,
    TlsError,
    _StreamEnded,
)


class ReportSource(Protocol):
    """What the client asks of the node; awaited on the loop, carried out where the node lives."""

    async def read_events(self, after: Position, limit: int) -> Sequence[Event]:
        """Events of the journal after (epoch, sequence), oldest first."""
        ...

    async def acknowledged(self, position: Position) -> None:
        """The aggregator has stored all events up to this one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStatistics:
    """connected: a stream is welcomed now. failing: why not; "" while it is or before the first try."""

    connected: bool
    failing: str
    connections_total: int
    failures_total: int
    snapshots_total: int
    deltas_total: int
    heartbeats_total: int
    events_total: int
    resends_total: int
    refused_total: int
    acknowledged_revision: int


class ReportClient:
    """Reports one node to one aggregator, for ever. Only statistics() may be called off the loop."""

    def __init__(
        self,
        way: ReportWay,
        snapshot: NodeSnapshot,
        source: ReportSource,
        *,
        random_source: random.Random | None = None,
    ) -> None:
        self._way = way
        self._address = way.address
        self._latest = without_use(snapshot)
        self._source = source
        # Only spreads nodes over time; nothing secret comes of it.
        self._random = random_source or random.Random()  # noqa: S311
        # The state that the aggregator holds once it has read what we wrote.
        self._sent: NodeSnapshot | None = None
        self._wake = asyncio.Event()
        self._connected = False
        self._failing = ""
        self._events_sent: Position = (0, 0)
        self._events_acknowledged: Position = (0, 0)
        self._in_flight: list[Position] = []
        self._all_events_sent = False
        self._snapshot_wanted = True
        self._state_not_before = 0.0
        self._refusals_in_a_row = 0
        self._heartbeat_seconds = _DEFAULT_HEARTBEAT_SECONDS
        # Over how long the aggregator wants its nodes to come back after it was away.
        self._spread_seconds = 0.0
        self._acknowledged = Revision(0, 0)
        self._connections = self._failures = self._snapshots = self._deltas = 0
        self._heartbeats = self._events = self._resends = self._refused = 0

    def publish(self, snapshot: NodeSnapshot) -> None:
        """Report this state; it replaces one that was not sent yet."""
        self._latest = without_use(snapshot)
        self._wake.set()

    def events_waiting(self) -> None:
        """The journal has events that were not read yet."""
        self._all_events_sent = False
        self._wake.set()

    async def run(self) -> None:
        """Connect, report, and connect again, until cancelled."""
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            self._connected = False
            try:
                await self._connection()
            except _STREAM_ERRORS as error:
                self._note_failure(error)
            if self._connected:
                pause = SHORTEST_PAUSE_SECONDS
            # All nodes come back at once, after a restart and after an outage: spread them over the whole time.
            await asyncio.sleep(max(pause, self._spread_seconds) * self._random.random() + SHORTEST_PAUSE_SECONDS / 2)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    def statistics(self) -> ReportStatistics:
        """State of the stream now and counters since the start."""
        return ReportStatistics(
            connected=self._connected,
            failing=self._failing,
            connections_total=self._connections,
            failures_total=self._failures,
            snapshots_total=self._snapshots,
            deltas_total=self._deltas,
            heartbeats_total=self._heartbeats,
            events_total=self._events,
            resends_total=self._resends,
            refused_total=self._refused,
            acknowledged_revision=self._acknowledged.revision,
        )

    # --- one connection

    async def _connection(self) -> None:
        """One stream, from hello to its end; always ends with an exception."""
        metadata = self._way.metadata()
        async with self._way.channel(_OPTIONS) as channel:
            call: _Call = report_pb2_grpc.ReportServiceStub(channel).Report(metadata=metadata)
            try:
                await self._talk(call)
            except _STREAM_ERRORS as error:
                # A write to a call that has ended fails without a reason; the call's status has it.
                if call.done() and not isinstance(error, grpc.aio.AioRpcError):
                    raise _StreamEnded(await call.details() or (await call.code()).name) from error
                raise
            finally:
                call.cancel()

    async def _talk(self, call: _Call) -> None:
        async with asyncio.timeout(WELCOME_SECONDS):
            await call.write(report_pb2.ReportRequest(hello=self._hello()))
            self._take_welcome(await self._read(call))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(call))
                tasks.create_task(self._send(call))
        except BaseExceptionGroup as errors:
            # The stream fails for one reason, which both tasks see.
            raise _first(errors) from None

    def _hello(self) -> report_pb2.Hello:
        identity = self._latest.identity
        hello = report_pb2.Hello(
            node=types_pb2.NodeIdentity(name=identity.name, uid=identity.uid, boot_id=identity.boot_id),
            hypervisor_version=self._latest.version,
            simulated=self._latest.simulated,
            acked_event_epoch=self._events_acknowledged[0],
            acked_event_sequence=self._events_acknowledged[1],
        )
        if self._acknowledged.epoch:
            hello.acked.CopyFrom(revision_to_proto(self._acknowledged))
        return hello

    async def _read(self, call: _Call) -> report_pb2.ReportResponse:
        response: Any = await call.read()  # or EOF, which the stubs don't know
        if response is grpc.aio.EOF:
            raise _StreamEnded(await call.details() or "it ended the stream")
        assert isinstance(response, report_pb2.ReportResponse)
        return response

    def _take_welcome(self, response: report_pb2.ReportResponse) -> None:
        welcome = response.welcome
        held = Revision(welcome.held.epoch, welcome.held.revision) if welcome.HasField("held") else None
        self._snapshot_wanted = self._sent is None or held != self._sent.revision
        self._events_sent = (welcome.held_event_epoch, welcome.held_event_sequence)
        self._in_flight.clear()
        self._all_events_sent = False
        self._state_not_before = 0.0
        if 0 < welcome.heartbeat_seconds < 3600:
            self._heartbeat_seconds = welcome.heartbeat_seconds
        self._take_spread(welcome.reconnect_spread_seconds)
        self._connected = True
        self._connections += 1
        if self._failing:
            log.info("the aggregator can be reached again", address=str(self._address))
        self._failing = ""

    def _take_spread(self, seconds: float) -> None:
        if 0 <= seconds <= LONGEST_SPREAD_SECONDS:
            self._spread_seconds = seconds

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        why = str(error)
        if isinstance(error, grpc.aio.AioRpcError):
            why = error.details() or error.code().name
        elif isinstance(error, TimeoutError):
            why = f"it did not answer within {WELCOME_SECONDS:g} s"
        if not self._failing:
            log.warning("can't report", address=str(self._address), error=why)
        self._failing = f"the aggregator {self._address} can't be reported to: {why}"

    # --- what comes

    async def _receive(self, call: _Call) -> None:
        while True:
            response = await self._read(call)
            kind = response.WhichOneof("content")
            if kind == "ack":
                await self._take_ack(response.ack)
            elif kind == "resend":
                self._resends += 1
                log.info("the aggregator asks for a snapshot", reason=response.resend.reason)
                self._snapshot_wanted = True
            elif kind == "refused":
                self._take_refusal(response.refused)
            self._wake.set()

    async def _take_ack(self, ack: report_pb2.Ack) -> None:
        if ack.HasField("reconnect_spread_seconds"):
            self._take_spread(ack.reconnect_spread_seconds)
        acknowledged = Revision(ack.revision.epoch, ack.revision.revision)
        if acknowledged > self._acknowledged:
            self._acknowledged = acknowledged
            self._refusals_in_a_row = 0
        position = (ack.event_epoch, ack.event_sequence)
        self._in_flight = [sent for sent in self._in_flight if sent > position]
        if position > self._events_acknowledged:
            self._events_acknowledged = position
            await self._source.acknowledged(position)

    def _take_refusal(self, refusal: types_pb2.Refusal) -> None:
        """Something of ours can't be used. State begins anew with a snapshot, later and later, or when it changes."""
        self._refused += 1
        self._refusals_in_a_row += 1
        log.error("the aggregator refuses a report", field=refusal.field, error=refusal.message)
        self._snapshot_wanted = True
        pause = min(60.0, 2.0 ** min(self._refusals_in_a_row, 6))
        self._state_not_before = _now() + pause

    # --- what goes

    async def _send(self, call: _Call) -> None:
        due = _now()
        while True:
            self._wake.clear()
            beat_due = _now() >= due
            sent = await self._send_state(call, beat_due=beat_due)
            if beat_due and not sent:
                await self._send_heartbeat(call)
            if sent or beat_due:
                due = _now() + self._heartbeat_seconds * self._random.uniform(0.8, 1.2)
            more = await self._send_events(call)
            if more:
                continue
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # What changes within this time goes in one message.
            await asyncio.sleep(GATHER_SECONDS)

    async def _send_state(self, call: _Call, *, beat_due: bool) -> bool:
        if _now() < self._state_not_before:
            return False
        latest, base = self._latest, self._sent
        if self._snapshot_wanted or base is None:
            content = report_pb2.Snapshot(
                revision=revision_to_proto(latest.revision), state=snapshot_to_proto(latest, Moment.now())
            )
            self._sent, self._snapshot_wanted = latest, False
            self._snapshots += 1
            await call.write(report_pb2.ReportRequest(snapshot=content))
            return True
        if latest.revision == base.revision:
            return False
        delta = diff(base, latest)
        if not beat_due and not is_urgent(delta, base):
            return False
        changes = report_pb2.Delta(
            base=revision_to_proto(base.revision),
            revision=revision_to_proto(latest.revision),
            changes=delta_to_proto(delta, latest, Moment.now()),
        )
        # Before the write: were it cancelled half way, the stream ends, and what is held is asked for anew.
        self._sent = latest
        self._deltas += 1
        await call.write(report_pb2.ReportRequest(delta=changes))
        return True

    async def _send_heartbeat(self, call: _Call) -> None:
        heartbeat = report_pb2.ReportHeartbeat(uptime_seconds=Moment.now().monotonic)
        if self._sent is not None and not self._snapshot_wanted:
            heartbeat.revision.CopyFrom(revision_to_proto(self._sent.revision))
        self._heartbeats += 1
        await call.write(report_pb2.ReportRequest(heartbeat=heartbeat))

    async def _send_events(self, call: _Call) -> bool:
        """One batch, when there is one and room for it; True when there may be more."""
        if self._all_events_sent or len(self._in_flight) >= EVENTS_IN_FLIGHT:
            return False
        self._all_events_sent = True
        events = await self._source.read_events(self._events_sent, EVENTS_AT_ONCE)
        if not events:
            return False
        batch = report_pb2.EventBatch(events=[event_to_proto(event) for event in events])
        positions = [(event.epoch, event.sequence) for event in events]
        self._events_sent = positions[-1]
        self._in_flight += positions
        self._events += len(events)
        await call.write(report_pb2.ReportRequest(events=batch))
        if len(events) == EVENTS_AT_ONCE:
            self._all_events_sent = False
        return not self._all_events_sent


def _now() -> float:
    return asyncio.get_running_loop().time()


def _first(errors: BaseExceptionGroup[Any]) -> Exception:
    """The first leaf of a group; a stream fails for one reason, which both of its tasks see."""
    found: Any = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found
