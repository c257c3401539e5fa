"""Which process is at the other end of a unix socket, by the kernel's word."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from pathlib import Path

import trio

from hypervisor.model import Owner, OwnerKind
from hypervisor.rpc.holder import process_command

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_INT = struct.Struct("i")
_START_TIME = 22 - 3  # field 22 of /proc/PID/stat, counted behind the command


class PeerError(Exception):
    """The process can't be told; the text says why."""


def peer_uid(connection: trio.socket.SocketType) -> int:
    """The user whose process connected, by the kernel's word. Raises OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid


def peer_process(connection: trio.socket.SocketType) -> Owner:
    """The process that connected, as the owner of what it asks for. Raises PeerError.

    The start time is the process's own and not that of a successor with its pid: a pidfd is held while it is read,
    and the process was still there afterwards.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if pid <= 0:
        raise PeerError("the calling process is not visible from the daemon's PID namespace")
    try:
        descriptor = _pidfd(connection, pid)
    except OSError as error:
        raise PeerError(f"process {pid} has ended ({error.strerror})") from error
    try:
        start_time = _start_time_ticks(pid)
        command = process_command(pid)
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError as error:
        raise PeerError(f"process {pid} has ended") from error
    except PermissionError:
        pass  # it lives and is another user's; a daemon that is not root may look but not signal
    except OSError as error:
        raise PeerError(f"process {pid} can't be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    return Owner(
        kind=OwnerKind.PROCESS, name=command, pid=pid, start_time_ticks=start_time, uid=uid, boot_id=_boot_id()
    )


def _pidfd(connection: trio.socket.SocketType, pid: int) -> int:
    """A pidfd of the peer: from the socket where the kernel can, else by its number while it is connected."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INT.size)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return os.pidfd_open(pid)
    descriptor: int = _INT.unpack(raw)[0]
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - takes no keyword
    return descriptor


def _start_time_ticks(pid: int) -> int:
    # The command stands in parentheses and may hold any character, so that only the last one counts.
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[_START_TIME])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
