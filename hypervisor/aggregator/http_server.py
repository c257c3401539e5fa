"""/metrics, /healthz and /readyz of the aggregator: HTTP/1.1 on asyncio, by hand around h11. GET and HEAD only.

Bounds: connections, bytes of a head, time for a head and for the taking of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable

import h11
import structlog

from hypervisor.http.message import Request, Response, error_response
from hypervisor.rpc.address import TcpAddress
from hypervisor.rpc.holder import tcp_port_holder
from hypervisor.rpc.listening import ListenError

log = structlog.get_logger("http")

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 * 1024
HEAD_SECONDS = 10.0
ANSWER_SECONDS = 20.0
_READ_BYTES = 8192

Answer = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """The port. Use as an async context manager; leaving it cuts the connections."""

    def __init__(self, address: TcpAddress, answer: Answer) -> None:
        self._address = address
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> HttpServer:
        """Raises ListenError when the address can't be bound."""
        try:
            self._server = await asyncio.start_server(
                self._connection, self._address.host, self._address.port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise _explained(self._address, error) from error
        name, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{TcpAddress(name, port)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) <= MAX_CONNECTIONS:
                connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
                while await self._exchange(connection, reader, writer):
                    connection.start_next_cycle()
        except (OSError, TimeoutError, h11.LocalProtocolError):
            return  # the client has gone or is too slow; it knows
        except asyncio.CancelledError:
            return  # we are stopping, and asyncio's own callback would print a cancellation
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request and its answer; False when the connection is to be closed."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await _receive(connection, reader)
        except h11.RemoteProtocolError as error:
            await _send(connection, writer, error_response(error.error_status_hint, str(error)), head=False)
            return False
        if head is None:
            return False
        await _send(connection, writer, await self._respond(head), head=head.method == b"HEAD")
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _respond(self, head: h11.Request) -> Response:
        if head.method not in {b"GET", b"HEAD"}:
            return error_response(405, "this port only answers GET and HEAD")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = head.target.decode("latin-1").partition("?")[0]
        try:
            return await self._answer(Request(path=path, headers=headers))
        except Exception:
            # A page that can't be made is that page's failure and never the aggregator's.
            log.exception("could not answer", path=path)
            return error_response(500, "this page could not be made; the aggregator's log says why")


async def _receive(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The next request, its end seen; None when the client has ended the connection. A body is not read."""
    head: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            return head
        else:
            return head if isinstance(event, h11.EndOfMessage) else None


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, response: Response, *, head: bool) -> None:
    if connection.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
        return
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
        *response.headers,
    ]
    if connection.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    writer.write(connection.send(h11.Response(status_code=response.status, headers=headers)) or b"")
    if not head:
        writer.write(connection.send(h11.Data(data=response.body)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    async with asyncio.timeout(ANSWER_SECONDS):
        await writer.drain()


def _explained(address: TcpAddress, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        holder = tcp_port_holder(address.port)
        return ListenError(
            f"the HTTP address {address} is in use by {holder or 'another process'}; choose another with --http-listen"
        )
    reason = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return ListenError(f"the HTTP host {address.host!r} can't be resolved: {reason}; name one with --http-listen")
    return ListenError(f"the HTTP address {address} can't be bound: {reason}; choose another with --http-listen")
