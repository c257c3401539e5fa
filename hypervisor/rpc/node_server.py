"""The node's gRPC servers: read sockets and the admin socket, on the asyncio loop, owned by a trio block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import trio

from hypervisor.config import Settings
from hypervisor.model import NodeSnapshot
from hypervisor.model.peer import Role
from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.asyncio_host import AsyncioHost, HostClosing, open_asyncio_host
from hypervisor.rpc.channel_options import SERVER_OPTIONS
from hypervisor.rpc.event_feed import EventFeed
from hypervisor.rpc.guard import Guard, Limits
from hypervisor.rpc.interfaces import Diagnose, EventSource, NodeCommands
from hypervisor.rpc.listening import (
    READ_MODE,
    ListenError,
    admin_access,
    parse_listen,
    parse_unix,
    remove_socket,
    unix_socket_place,
)
from hypervisor.rpc.node_feed import HEARTBEAT_SECONDS, NodeFeed
from hypervisor.rpc.node_service import NodeService
from hypervisor.rpc.ports import add_port, check_security, server_certificates
from hypervisor.rpc.registration import add_service
from hypervisor.rpc.server_certificates import ServerCertificates
from hypervisor.rpc.standing_services import add_standing_services
from hypervisor.rpc.statistics import CallCounter, RpcStatistics
from hypervisor.v1 import node_pb2

SERVICE = node_pb2.DESCRIPTOR.services_by_name["NodeService"]
# Time for calls in flight when we stop; feeds end at once, so that only a client that doesn't read needs it.
STOP_GRACE_SECONDS = 0.5


class NodeServer:
    """The running servers, as the node sees them; used in trio."""

    def __init__(self, host: AsyncioHost, snapshot: NodeSnapshot, event_feed: EventFeed) -> None:
        self._host = host
        self._latest = snapshot
        self._taking = False
        self._event_feed = event_feed
        self._node_feed: NodeFeed | None = None
        self._calls = CallCounter()
        self._addresses: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the API is served, the admin socket last; a port that was 0 is the one that was given."""
        return self._addresses

    @property
    def host(self) -> AsyncioHost:
        """The loop that the servers run on: the only one of this process that may touch grpc.aio."""
        return self._host

    @property
    def latest(self) -> NodeSnapshot:
        """The state that queries are answered from."""
        return self._latest

    def publish(self, snapshot: NodeSnapshot) -> None:
        """Answer queries with this state from now on, and show it to watchers soon; the newest wins."""
        self._latest = snapshot
        if not self._taking:  # cleared on the loop before the newest is read, so that none is missed
            self._taking = True
            self._host.post(self._take)

    def statistics(self) -> RpcStatistics:
        """Calls and feeds since the start."""
        return RpcStatistics(
            calls=self._calls.statistics(),
            node_feed=self._require_feed().statistics(),
            event_feed=self._event_feed.statistics(),
        )

    def _take(self) -> None:
        self._taking = False
        self._require_feed().publish(self._latest)

    def _require_feed(self) -> NodeFeed:
        if self._node_feed is None:
            raise RuntimeError("the server has not started")
        return self._node_feed


@asynccontextmanager
async def open_node_server(
    settings: Settings,
    *,
    snapshot: NodeSnapshot,
    commands: NodeCommands,
    events: EventSource,
    diagnose: Diagnose | None = None,
    host: AsyncioHost | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> AsyncIterator[NodeServer]:
    """Serve the API for as long as the block runs.

    diagnose runs the doctor; without it that call is refused. host is the asyncio loop to serve on; without one the
    server has its own, which NodeServer.host lends to others.
    Raises ListenError before anything is served. Leaving the block, by cancellation too, ends all streams and takes
    less than a second. When the loop fails, the block is cancelled and the loop's exception raised.
    """
    places = _Places.of(settings)
    async with AsyncExitStack() as stack:
        if host is None:
            host = await stack.enter_async_context(open_asyncio_host())
        event_feed = EventFeed(host, events)
        stack.callback(event_feed.subscribe())
        server = NodeServer(host, snapshot, event_feed)
        running = await host.call(_start, server, places, commands, diagnose, heartbeat_seconds)
        try:
            yield server
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await host.call(running.stop)
                except HostClosing:
                    pass  # the loop has failed, and its block raises why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where to listen; tls: with what on TCP, None: without encryption."""

    read: tuple[UnixAddress | TcpAddress, ...]
    admin: UnixAddress
    tls: ServerCertificates | None

    @classmethod
    def of(cls, settings: Settings) -> _Places:
        read = tuple(parse_listen(text, "listen") for text in settings.read_addresses)
        check_security(read, "listen", tls=bool(settings.tls_dir), insecure=settings.insecure)
        admin = parse_unix(settings.admin_address, "admin_listen")
        if admin in read:
            raise ListenError(f"listen: {admin} is the admin socket too; queries and changes need a socket each")
        # One that only reports may have no certificate of its own, and a token instead.
        serves_tcp = any(isinstance(address, TcpAddress) for address in read)
        return cls(read=read, admin=admin, tls=server_certificates(settings.tls_dir) if serves_tcp else None)

    def groups(self) -> tuple[tuple[tuple[UnixAddress | TcpAddress, ...], bool], ...]:
        """Addresses that share a server, and whether they may only read: TCP, whose callers are asked who they are,
        the read sockets, and the admin socket."""
        tcp = tuple(address for address in self.read if isinstance(address, TcpAddress))
        unix = tuple(address for address in self.read if isinstance(address, UnixAddress))
        return tuple(group for group in ((unix, True), (tcp, True), ((self.admin,), False)) if group[0])


@dataclass(slots=True)
class _Running:
    """What was started on the loop."""

    feeds: tuple[NodeFeed, EventFeed]
    closing: asyncio.Event
    servers: list[grpc.aio.Server] = field(default_factory=list)
    sockets: list[tuple[UnixAddress, int]] = field(default_factory=list)
    guards: list[asyncio.Task[None]] = field(default_factory=list)

    async def stop(self) -> None:
        """End the streams, then the servers, then the socket files. Once; the second time it does nothing."""
        if self.closing.is_set():
            return
        self.closing.set()
        for feed in self.feeds:
            feed.close()
        # Handlers return by themselves now; those that are cancelled instead make gRPC print.
        await asyncio.gather(*(server.stop(STOP_GRACE_SECONDS) for server in self.servers))
        for address, inode in self.sockets:
            remove_socket(address, inode)


async def _start(
    server: NodeServer,
    places: _Places,
    commands: NodeCommands,
    diagnose: Diagnose | None,
    heartbeat_seconds: float,
) -> _Running:
    """On the loop: bind everything, then serve. What was bound is let go of when something can't be."""
    node_feed = NodeFeed(server.latest, heartbeat_seconds=heartbeat_seconds)
    server._node_feed = node_feed  # noqa: SLF001 - one unit with the class
    running = _Running((node_feed, server._event_feed), asyncio.Event())  # noqa: SLF001
    addresses: list[str] = []
    try:
        for group, read_only in places.groups():
            service = NodeService(
                latest=lambda: server.latest,
                node_feed=node_feed,
                event_feed=server._event_feed,  # noqa: SLF001
                commands=commands,
                diagnose=diagnose,
                host=server.host,
                calls=server._calls,  # noqa: SLF001
                admin_address=str(places.admin) if read_only else None,
            )
            on_tcp = isinstance(group[0], TcpAddress)
            roles = {SERVICE.full_name: frozenset({Role.READER})}
            guards = (Guard(roles, Limits(), certificates=places.tls),) if on_tcp else ()
            grpc_server = grpc.aio.server(interceptors=guards, options=SERVER_OPTIONS)
            running.servers.append(grpc_server)
            add_service(grpc_server, SERVICE, service)
            add_standing_services(grpc_server, (SERVICE.full_name,), running.closing)
            access = (READ_MODE, -1) if read_only else admin_access()
            addresses.extend(_bind(running, grpc_server, address, access, places.tls) for address in group)
        for grpc_server in running.servers:
            await grpc_server.start()
            running.guards.append(asyncio.create_task(_guard(server.host, grpc_server)))
        server.host.at_end(running.stop)
    except BaseException:
        await running.stop()
        raise
    server._addresses = tuple(addresses)  # noqa: SLF001
    return running


async def _guard(host: AsyncioHost, server: grpc.aio.Server) -> None:
    """A server that fails must not leave a daemon that nobody can ask."""
    try:
        await server.wait_for_termination()
    except Exception as error:  # noqa: BLE001 - ends the host, whose block raises it
        host.fail(error)


def _bind(
    running: _Running,
    server: grpc.aio.Server,
    address: UnixAddress | TcpAddress,
    access: tuple[int, int],
    tls: ServerCertificates | None,
) -> str:
    """Bind one address; returns it as it came to be."""
    if isinstance(address, TcpAddress):
        return str(TcpAddress(address.host, add_port(server, address, tls)))
    mode, group = access
    with unix_socket_place(address, mode=mode, group=group):
        add_port(server, address, None)
        running.sockets.append((address, address.path.lstat().st_ino))
    return str(address)
