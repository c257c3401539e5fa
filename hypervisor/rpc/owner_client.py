"""The owner socket from the side of the process that asks; synchronous, for `hypervisor exec`. No gRPC."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from hypervisor.model import AllocationSpec
from hypervisor.rpc.address import AddressError, TcpAddress, parse_address
from hypervisor.rpc.convert.requests import spec_to_proto
from hypervisor.rpc.frames import HEADER_BYTES, FrameError, FrameKind, decode_header, encode
from hypervisor.rpc.refusals import refusal_from_status
from hypervisor.v1 import node_pb2

TIMEOUT_SECONDS = 15.0
NOTICE_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 0.01


class OwnerUnreachable(Exception):  # noqa: N818 - it is an answer, not a fault
    """No daemon answers on the socket; the text is the reason alone."""


class OwnerBusy(OwnerUnreachable):
    """A daemon is there and takes no more connections now; the text is what was seen."""


def allocate_for_self(
    address: str,
    spec: AllocationSpec,
    *,
    timeout: float = TIMEOUT_SECONDS,
    on_wait: Callable[[], None] | None = None,
) -> Mapping[str, str]:
    """Ask for a share that this process owns; returns the environment that its processes need.

    The owner of the spec is not sent: the daemon learns it from the kernel. timeout, in seconds, holds for each step;
    on_wait is called once when the answer takes longer than people expect. Raises Refusal, and OwnerUnreachable when
    nobody can be asked.
    """
    return dict(request_share(address, spec, timeout=timeout, on_wait=on_wait).environment)


def request_share(
    address: str,
    spec: AllocationSpec,
    *,
    dry_run: bool = False,
    timeout: float = TIMEOUT_SECONDS,
    on_wait: Callable[[], None] | None = None,
) -> node_pb2.AllocateResponse:
    """As allocate_for_self(), with the whole answer."""
    message = spec_to_proto(spec)
    message.ClearField("owner")
    request = node_pb2.AllocateRequest(spec=message, dry_run=dry_run)
    try:
        frame = encode(FrameKind.ALLOCATE, request.SerializeToString())
        kind, payload = _exchange(_path(address), frame, timeout, on_wait)
        if kind is FrameKind.RESPONSE:
            return node_pb2.AllocateResponse.FromString(payload)
        status = status_pb2.Status.FromString(payload)
    except (FrameError, DecodeError) as error:
        raise OwnerUnreachable(f"what answers there is no daemon of ours: {error}") from error
    refusal = refusal_from_status(status)
    if refusal is None:
        raise OwnerUnreachable(status.message or "it failed and gave no reason")
    raise refusal


def _path(address: str) -> str:
    try:
        parsed = parse_address(address)
    except AddressError as error:
        raise OwnerUnreachable(str(error)) from error
    if isinstance(parsed, TcpAddress):
        raise OwnerUnreachable("a share of one's own is asked for on a unix socket, unix:PATH")
    return str(parsed.path)


def _exchange(path: str, frame: bytes, timeout: float, on_wait: Callable[[], None] | None) -> tuple[FrameKind, bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            _connect(connection, path, until=time.monotonic() + timeout)
            _send(connection, frame)
            if on_wait is not None and not select.select([connection], [], [], min(NOTICE_SECONDS, timeout))[0]:
                on_wait()
            kind, length = decode_header(_exactly(connection, HEADER_BYTES))
            return kind, _exactly(connection, length)
        except TimeoutError as error:
            raise OwnerUnreachable(f"it didn't answer within {timeout:g} s") from error
        except (BlockingIOError, ConnectionResetError) as error:
            raise OwnerBusy("it has no room for one more connection") from error
        except OSError as error:
            raise OwnerUnreachable(error.strerror or str(error)) from error


def _connect(connection: socket.socket, path: str, *, until: float) -> None:
    """A unix socket whose queue is full refuses at once, also with a timeout: it is asked again until then."""
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)
        else:
            return


def _send(connection: socket.socket, frame: bytes) -> None:
    try:
        connection.sendall(frame)
    except (BrokenPipeError, ConnectionResetError):
        pass  # who had no room for us has said so before it hung up: that is read next


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise FrameError("the answer ends too early")
        found += part
    return bytes(found)
