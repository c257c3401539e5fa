"""A synchronous client for the command line: one channel, a deadline on every call, errors that say what to do."""

from __future__ import annotations

import errno
import grp
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hypervisor.model import Refusal
from hypervisor.rpc.address import TcpAddress, UnixAddress, parse_address
from hypervisor.rpc.channel_options import CLIENT_OPTIONS, keepalive
from hypervisor.rpc.refusals import DETAILS_KEY, refusal_from_status
from hypervisor.rpc.tls import channel_credentials

Response = TypeVar("Response")
DEADLINE_SECONDS = 10.0
# In the words of gRPC for a connection whose other end no longer answers pings, and one that was never answered.
_SILENT = ("ping timeout", "timed out before receiving SETTINGS")
_OPTIONS = (
    *CLIENT_OPTIONS,
    # Who watches for hours is told of a server that hangs, instead of taking its silence for calm.
    *keepalive(5, 10),
    # gRPC's own probes of the bandwidth would use up the two pings that it allows a client that only listens.
    ("grpc.http2.max_pings_without_data", 0),
)


class ServerUnreachable(Exception):  # noqa: N818 - it is an answer, not a fault
    """Nobody could be asked; the text names the address, the reason and what to do."""


class CallFailed(Exception):  # noqa: N818
    """The server answered with an error that is no refusal; the text is what it said."""


class Client:
    """One connection to a server of ours, node or aggregator."""

    def __init__(self, address: UnixAddress | TcpAddress, channel: grpc.Channel, timeout: float) -> None:
        self.address = address
        self.channel = channel
        self._timeout = timeout

    def call(self, method: Callable[..., Response], request: object) -> Response:
        """One answer. Raises Refusal, CallFailed or ServerUnreachable."""
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._explained(error) from error

    def stream(self, method: Callable[..., Any], request: object) -> Iterator[Any]:
        """The messages of a watch, without a deadline, until the server ends it. Raises as call() does."""
        messages = method(request)
        try:
            yield from messages
        except grpc.RpcError as error:
            raise self._explained(error) from error
        finally:
            messages.cancel()

    def offers(self, service: str) -> bool:
        """Whether the server has a service of this full name, by its health service."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        try:
            stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise self._explained(error) from error
        return True

    def _explained(self, error: grpc.RpcError) -> Exception:
        refusal = refusal_of(error)
        if refusal is not None:
            return refusal
        code, words = error.code(), error.details() or "it gave no reason"
        if code is grpc.StatusCode.UNAVAILABLE and any(each in words for each in _SILENT):
            return ServerUnreachable(f"{self.address} is silent; is the daemon stuck?")
        if code is grpc.StatusCode.UNAVAILABLE:
            return ServerUnreachable(_why_unreachable(self.address) or _unanswered(self.address, words))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerUnreachable(f"{self.address} didn't answer within {self._timeout:g} s; is the daemon stuck?")
        return CallFailed(f"{self.address} answered {code.name}: {words}")


@contextmanager
def connect(address: str, *, timeout: float = DEADLINE_SECONDS, tls: Path | None = None) -> Iterator[Client]:
    """A client for unix:PATH or HOST:PORT; on TCP with the certificates of the directory tls, where it is given.

    Connects with the first call. Raises AddressError or TlsError.
    """
    parsed = parse_address(address)
    if tls is not None and isinstance(parsed, TcpAddress):
        channel = grpc.secure_channel(parsed.target, channel_credentials(tls), options=_OPTIONS)
    else:
        channel = grpc.insecure_channel(parsed.target, options=_OPTIONS)
    with channel:
        yield Client(parsed, channel, timeout)


def refusal_of(error: grpc.RpcError) -> Refusal | None:
    """The refusal in an error of gRPC; None when there is none."""
    # Pairs of key and value, whatever the stubs call them.
    metadata: dict[str, object] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    details = metadata.get(DETAILS_KEY)
    if not isinstance(details, bytes):
        return None
    try:
        return refusal_from_status(status_pb2.Status.FromString(details))
    except DecodeError:
        return None


def _why_unreachable(address: UnixAddress | TcpAddress) -> str | None:
    """Why nothing could be reached, asked of the system; None when it can be reached by now."""
    try:
        if isinstance(address, UnixAddress):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1)
                probe.connect(str(address.path))
        else:
            socket.create_connection((address.host, address.port), timeout=3).close()
    except PermissionError:
        return f"no permission to use {address}; {_who_may(address)}"
    except OSError as error:
        return _unreachable_words(address, error)
    return None


def _unanswered(address: UnixAddress | TcpAddress, words: str) -> str:
    """Something listens there and does not talk to us."""
    if isinstance(address, UnixAddress):
        return f"{address} doesn't answer: {words}"
    return (
        f"{address} doesn't answer: {words}; if it wants certificates, name their directory with --tls-dir, and if it "
        "has none, leave that out"
    )


def _unreachable_words(address: UnixAddress | TcpAddress, error: OSError) -> str:
    if isinstance(address, TcpAddress):
        return f"can't reach {address}: {error.strerror or error}; is the server running there?"
    words = {
        errno.ENOENT: "there is no such socket",
        errno.ECONNREFUSED: "nobody listens on it any more",
    }.get(error.errno or 0, error.strerror or str(error))
    return f"can't reach {address}: {words}; is the daemon running? Start it with 'hypervisor run'"


def _who_may(address: UnixAddress | TcpAddress) -> str:
    """Who may connect to a socket, by its owner and mode."""
    path = address.path if isinstance(address, UnixAddress) else Path("/")
    try:
        found = path.stat()
    except OSError:
        return f"its directory {path.parent} is closed to you; run this as root or as the daemon's user"
    owner = _user_name(found.st_uid)
    if found.st_mode & stat.S_IWGRP:
        return f"run this as {owner}, or join the group {_group_name(found.st_gid)}"
    return f"run this as {owner}" + (" (sudo)" if found.st_uid == 0 else "")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
