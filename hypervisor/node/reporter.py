"""Reports the node to an aggregator: the trio side, which hands states and events over and keeps what is acknowledged.

Nothing here waits for the aggregator; while it can't be reached the node works as before, and catches up with its
latest state and all its events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from hypervisor.config import Settings
from hypervisor.model import Event, NodeSnapshot
from hypervisor.node.journal import Journal
from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.asyncio_host import AsyncioHost
from hypervisor.rpc.listening import ListenError, parse_listen
from hypervisor.rpc.ports import check_security
from hypervisor.rpc.report_client import Position, ReportClient, ReportStatistics
from hypervisor.rpc.report_way import ReportWay
from hypervisor.rpc.tls import TlsError


def report_address(text: str, *, insecure: bool, tls: bool = False) -> UnixAddress | TcpAddress:
    """Where to report, from the setting. Raises ListenError that names it."""
    address = parse_listen(text, "report_to")
    check_security((address,), "report_to", tls=tls, insecure=insecure)
    return address


def report_way(settings: Settings) -> ReportWay:
    """Where to report, and how we say who we are. Raises ListenError that names the setting."""
    address = report_address(settings.report_to, insecure=settings.insecure, tls=bool(settings.tls_dir))
    tls = Path(settings.tls_dir) if settings.tls_dir and isinstance(address, TcpAddress) else None
    token = Path(settings.report_token) if settings.report_token else None
    if token is not None and tls is None:
        raise ListenError("report_token: a token is only sent over TLS; name a directory with ca.crt with --tls-dir")
    way = ReportWay(address, tls=tls, token=token)
    try:
        way.check()
    except TlsError as error:
        raise ListenError(f"tls_dir: {error}") from error
    return way


class SnapshotSource(Protocol):
    """The node's state, as NodeState gives it."""

    @property
    def snapshot(self) -> NodeSnapshot: ...
    def subscribe(self, callback: Callable[[NodeSnapshot], None]) -> Callable[[], None]: ...


class Reporter:
    """One aggregator, from the node's side. For the trio main thread."""

    def __init__(self, way: ReportWay, *, state: SnapshotSource, journal: Journal, host: AsyncioHost) -> None:
        self._state = state
        self._journal = journal
        self._host = host
        self._latest = state.snapshot
        self._client = ReportClient(way, state.snapshot, _Across(self, host))
        # One message to the loop at a time, however many states and events there are.
        self._state_posted = self._events_posted = False

    @property
    def failing(self) -> str:
        """Why nothing is reported now, for the condition AggregatorUnreachable; "" when it is."""
        return self._client.statistics().failing

    async def run(self) -> None:
        """Report for ever. Cancelling it ends the stream."""
        unsubscribe = (self._state.subscribe(self._take_state), self._journal.subscribe(self._take_event))
        try:
            await self._host.call(self._client.run)
        finally:
            for end in unsubscribe:
                end()

    def statistics(self) -> ReportStatistics:
        """State of the stream now and counters since the start."""
        return self._client.statistics()

    async def read_events(self, after: Position, limit: int) -> Sequence[Event]:
        """Events after a position; what comes later is told by a message of its own."""
        self._events_posted = False
        return self._journal.read(after, limit)

    async def acknowledged(self, position: Position) -> None:
        """The aggregator has stored all events up to this one."""
        self._journal.acknowledge(*position)

    # --- told by the node

    def _take_state(self, snapshot: NodeSnapshot) -> None:
        self._latest = snapshot
        if not self._state_posted:
            self._state_posted = True
            self._host.post(self._hand_over)

    def _hand_over(self) -> None:
        # On the loop. The flag is cleared before the newest is read, so that none is missed.
        self._state_posted = False
        self._client.publish(self._latest)

    def _take_event(self, _: Event) -> None:
        if not self._events_posted:
            self._events_posted = True
            self._host.post(self._client.events_waiting)


class _Across:
    """The reporter as the client on the loop sees it: awaited there, carried out in trio."""

    def __init__(self, reporter: Reporter, host: AsyncioHost) -> None:
        self._reporter = reporter
        self._host = host

    async def read_events(self, after: Position, limit: int) -> Sequence[Event]:
        return await self._host.call_trio(self._reporter.read_events, after, limit)

    async def acknowledged(self, position: Position) -> None:
        await self._host.call_trio(self._reporter.acknowledged, position)
