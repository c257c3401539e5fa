"""The owner socket: a process asks for a share of its own, and the kernel says which process that is."""

from __future__ import annotations

import socket
from functools import partial

import structlog
import trio
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2

from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.convert import Moment, allocation_to_proto, spec_from_proto
from hypervisor.rpc.convert.requests import invalid
from hypervisor.rpc.frames import HEADER_BYTES, FrameError, FrameKind, decode_header, encode
from hypervisor.rpc.interfaces import NodeCommands
from hypervisor.rpc.listening import OWNER_MODE, ListenError, parse_unix, remove_socket, unix_socket_place
from hypervisor.rpc.owner_room import OwnerRoom, Place
from hypervisor.rpc.peer import PeerError, peer_process, peer_uid
from hypervisor.rpc.refusals import status_of
from hypervisor.v1 import node_pb2

REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
FIRST_BYTE_SECONDS = 1.0  # a client of ours has its request ready before it connects
MAX_CONNECTIONS = 256
MAX_CONNECTIONS_OF_A_USER = 64
_BACKLOG = 1024


async def serve_owners(
    address: str,
    commands: NodeCommands,
    *,
    request_seconds: float = REQUEST_SECONDS,
    most: int = MAX_CONNECTIONS,
    most_per_user: int = MAX_CONNECTIONS_OF_A_USER,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve unix:PATH until cancelled; started with the address once connections are taken.

    One request a connection; a client that is slow, talks nonsense or goes away harms nobody else, and no user takes
    another's room. Raises ListenError before it has started. Cancelling ends all connections and removes the socket.
    """
    place = parse_unix(address, "owner_listen")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with unix_socket_place(place, mode=OWNER_MODE):
            try:
                listening.bind(str(place.path))
                inode = place.path.lstat().st_ino
                listening.listen(_BACKLOG)
            except OSError as error:
                raise ListenError(f"can't listen on {place}: {error.strerror}") from error
        try:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            handler = partial(_serve_one, commands, OwnerRoom(most=most, most_per_user=most_per_user), request_seconds)
            task_status.started(str(place))
            await trio.serve_listeners(handler, [listener])
        finally:
            remove_socket(place, inode)


async def _serve_one(
    commands: NodeCommands, room: OwnerRoom, request_seconds: float, stream: trio.SocketStream
) -> None:
    """One connection from its first byte to its last. Nothing that the client does gets out of here."""
    place: Place | None = None
    try:
        with trio.move_on_after(request_seconds + ANSWER_SECONDS) as scope:
            place = room.enter(peer_uid(stream.socket), scope.cancel)
            answer = _busy() if place is None else await _answer(commands, request_seconds, stream, place)
            await stream.send_all(answer)
    except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        return  # the client has gone; what it was granted ends with it
    finally:
        if place is not None:
            room.leave(place)
        await trio.aclose_forcefully(stream)


async def _answer(commands: NodeCommands, request_seconds: float, stream: trio.SocketStream, place: Place) -> bytes:
    """The frame that answers the connection's request."""
    try:
        owner = peer_process(stream.socket)
        with trio.fail_after(request_seconds):
            request = await _request(stream)
        place.waiting = False
        spec = spec_from_proto(request.spec, owner=owner)
        allocation, existed, environment = await commands.allocate(spec, dry_run=request.dry_run)
        response = node_pb2.AllocateResponse(
            allocation=allocation_to_proto(allocation, None, Moment.now()), existed=existed, environment=environment
        )
        return encode(FrameKind.RESPONSE, response.SerializeToString())
    except Refusal as refusal:
        return _status(status_of(refusal))
    except PeerError as error:
        return _status(status_of(invalid("spec.owner", str(error))))
    except (FrameError, DecodeError) as error:
        return _status(status_of(invalid("", f"the request can't be read: {error}")))
    except trio.TooSlowError:
        return _status(status_of(invalid("", f"no whole request came in time; it may take {request_seconds:g} s")))
    except Exception:  # noqa: BLE001 - a defect of ours ends this call only
        structlog.get_logger().exception("a call on the owner socket failed by a defect of ours")
        return _status(status_pb2.Status(code=code_pb2.INTERNAL, message="the daemon failed; its log says more"))


async def _request(stream: trio.SocketStream) -> node_pb2.AllocateRequest:
    with trio.fail_after(FIRST_BYTE_SECONDS):
        first = await _exactly(stream, 1)
    kind, length = decode_header(first + await _exactly(stream, HEADER_BYTES - 1))
    if kind is not FrameKind.ALLOCATE:
        raise FrameError(f"a request is expected and not {kind.name}")
    return node_pb2.AllocateRequest.FromString(await _exactly(stream, length))


async def _exactly(stream: trio.SocketStream, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = await stream.receive_some(length - len(found))
        if not part:
            raise FrameError("it ends too early")
        found += part
    return bytes(found)


def _busy() -> bytes:
    return _status(
        status_of(
            Refusal(
                RefusalReason.NOT_READY,
                "the daemon is busy: too many processes ask it for a share at the same time",
                remedy="try again in a moment",
            )
        )
    )


def _status(status: status_pb2.Status) -> bytes:
    return encode(FrameKind.STATUS, status.SerializeToString())
