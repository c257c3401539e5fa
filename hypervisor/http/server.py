"""HTTP/1.1 on trio, by hand around h11: small, bounded, and no client can hold up another.

When all places are taken, whoever comes next takes the place of the connection that has waited longest for a request;
where all are being answered, a few more are taken that have little time: a probe gets through either way.

Bounds: connections, bytes of a request's head, time for a request's head, for its answer to be taken, and for a
connection in all. A request with a body, or of another method than GET and HEAD, is refused and the connection ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from urllib.parse import unquote

import h11
import structlog
import trio

from hypervisor.http.message import Request, Response, error_response

_READ_BYTES = 8192
_REFUSED_LINGER_SECONDS = 1.0

Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take. Seconds and bytes."""

    connections: int = 64
    hurried: int = 16  # more than those, with hurried_seconds for each step and one request
    hurried_seconds: float = 1.0
    head_bytes: int = 16 * 1024
    head_seconds: float = 10.0
    answer_seconds: float = 20.0
    connection_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStatistics:
    """Counters since the start."""

    open_connections: int
    connections_total: int
    refused_total: int
    requests_total: int
    failures_total: int
    timeouts_total: int
    displaced_total: int


class HttpServer:
    """Serves answers to any number of listeners; statistics() may be read at any time in the trio thread."""

    def __init__(self, answer: Answer, *, limits: HttpLimits | None = None) -> None:
        self._answer = answer
        self._limits = limits or HttpLimits()
        seconds = self._limits.hurried_seconds
        self._hurried = replace(
            self._limits, head_seconds=seconds, answer_seconds=seconds, connection_seconds=2 * seconds
        )
        self._open = self._accepted = self._refused = self._requests = self._failures = self._timeouts = 0
        self._displaced = 0
        self._idle: dict[trio.CancelScope, None] = {}  # those that wait for a request, oldest first
        self._log = structlog.get_logger("http")

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serve until cancelled; connections are cut then."""
        await trio.serve_listeners(self._connection, listeners)

    def statistics(self) -> HttpStatistics:
        """Counters since the start."""
        return HttpStatistics(
            open_connections=self._open,
            connections_total=self._accepted,
            refused_total=self._refused,
            requests_total=self._requests,
            failures_total=self._failures,
            timeouts_total=self._timeouts,
            displaced_total=self._displaced,
        )

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._accepted += 1
        self._open += 1
        try:
            async with stream:
                await self._bounded(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            return  # the client has gone in the middle; it knows
        finally:
            self._open -= 1

    async def _bounded(self, stream: trio.SocketStream) -> None:
        limits = self._limits
        if self._open > limits.connections + limits.hurried:
            self._refused += 1
            await self._refuse(stream, self._protocol(), error_response(503, "too many connections; try again"))
            return
        if self._open > limits.connections and not self._displace():
            await self._serve(stream, self._hurried)
            return
        await self._serve(stream, limits)

    def _displace(self) -> bool:
        """End the connection that has waited longest for a request; False when none waits."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        oldest.cancel()
        self._displaced += 1
        return True

    def _protocol(self) -> h11.Connection:
        return h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)

    async def _serve(self, stream: trio.SocketStream, limits: HttpLimits) -> None:
        connection = self._protocol()
        with trio.move_on_after(limits.connection_seconds) as scope:
            while await self._exchange(stream, connection, limits):
                connection.start_next_cycle()
        if scope.cancelled_caught:
            self._timeouts += 1

    async def _exchange(self, stream: trio.SocketStream, connection: h11.Connection, limits: HttpLimits) -> bool:
        """One request and its answer; False when the connection is to be closed."""
        head: h11.Request | None = None
        try:
            with trio.move_on_after(limits.head_seconds) as scope:
                self._idle[scope] = None
                try:
                    head = await _receive(stream, connection)
                finally:
                    displaced = scope not in self._idle
                    self._idle.pop(scope, None)
        except h11.RemoteProtocolError as error:
            await self._refuse(stream, connection, error_response(error.error_status_hint, str(error)))
            return False
        if head is None:
            self._timeouts += scope.cancelled_caught and not displaced
            return False
        self._requests += 1
        with trio.move_on_after(limits.answer_seconds) as scope:
            await _send(stream, connection, await self._respond(head), head=head.method == b"HEAD")
        if scope.cancelled_caught:
            self._timeouts += 1
            return False
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _refuse(self, stream: trio.SocketStream, connection: h11.Connection, response: Response) -> None:
        if connection.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        with trio.move_on_after(_REFUSED_LINGER_SECONDS):
            await _send(stream, connection, response, head=False)
            # To close with bytes unread would reset the connection, and the client might never see why.
            await stream.send_eof()
            while await stream.receive_some(_READ_BYTES):
                pass

    async def _respond(self, head: h11.Request) -> Response:
        if head.method not in {b"GET", b"HEAD"}:
            refusal = error_response(405, "this port only answers GET and HEAD; changes go through the gRPC API")
            return Response(
                status=405, content_type=refusal.content_type, body=refusal.body, headers=(("Allow", "GET, HEAD"),)
            )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = unquote(head.target.decode("latin-1").partition("?")[0])
        try:
            return await self._answer(Request(path=path, headers=headers))
        except Exception:  # noqa: BLE001 - logged with its traceback
            # A page that can't be made is that page's failure and never the daemon's.
            self._failures += 1
            self._log.exception("could not answer", path=path)
            return error_response(500, "this page could not be made; the daemon's log says why")


async def _receive(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | None:
    """The next request, its end seen; None when the client has ended the connection.

    A body is not read: the request is answered and the connection ends, for h11 never gets to DONE.
    """
    head: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                connection.receive_data(await stream.receive_some(_READ_BYTES))
            except trio.BrokenResourceError:
                return None
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            return head
        else:
            # EndOfMessage with a request, or without one: ConnectionClosed or PAUSED.
            return head if isinstance(event, h11.EndOfMessage) else None


async def _send(stream: trio.SocketStream, connection: h11.Connection, response: Response, *, head: bool) -> None:
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        *response.headers,
    ]
    if connection.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    parts = [connection.send(h11.Response(status_code=response.status, headers=headers))]
    if not head:
        parts.append(connection.send(h11.Data(data=response.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    await stream.send_all(b"".join(part for part in parts if part))
