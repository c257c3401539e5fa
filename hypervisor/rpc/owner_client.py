"""The owner socket from the side of the process that asks; synchronous, for `hypervisor exec`. No gRPC."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from hypervisor.model import AllocationSpec
from hypervisor.rpc.address import AddressError, TcpAddress, parse_address
from hypervisor.rpc.convert.requests import spec_to_proto
from hypervisor.rpc.frames import HEADER_BYTES, FrameError, FrameKind, decode_header, encode
from hypervisor.rpc.refusals import refusal_from_status
from hypervisor.v1 import node_pb2

TIMEOUT_SECONDS = 15.0


class OwnerUnreachable(Exception):  # noqa: N818 - it is an answer, not a fault
    """No daemon answers on the socket; the text is the reason alone."""


def allocate_for_self(address: str, spec: AllocationSpec, *, timeout: float = TIMEOUT_SECONDS) -> Mapping[str, str]:
    """Ask for a share that this process owns; returns the environment that its processes need.

    The owner of the spec is not sent: the daemon learns it from the kernel. timeout, in seconds, holds for each step.
    Raises Refusal, and OwnerUnreachable when nobody can be asked.
    """
    return dict(request_share(address, spec, timeout=timeout).environment)


def request_share(
    address: str, spec: AllocationSpec, *, dry_run: bool = False, timeout: float = TIMEOUT_SECONDS
) -> node_pb2.AllocateResponse:
    """As allocate_for_self(), with the whole answer."""
    message = spec_to_proto(spec)
    message.ClearField("owner")
    request = node_pb2.AllocateRequest(spec=message, dry_run=dry_run)
    try:
        frame = encode(FrameKind.ALLOCATE, request.SerializeToString())
        kind, payload = _exchange(_path(address), frame, timeout)
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


def _exchange(path: str, frame: bytes, timeout: float) -> tuple[FrameKind, bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(frame)
            kind, length = decode_header(_exactly(connection, HEADER_BYTES))
            return kind, _exactly(connection, length)
        except TimeoutError as error:
            raise OwnerUnreachable(f"it didn't answer within {timeout:g} s") from error
        except OSError as error:
            raise OwnerUnreachable(error.strerror or str(error)) from error


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise FrameError("the answer ends too early")
        found += part
    return bytes(found)
