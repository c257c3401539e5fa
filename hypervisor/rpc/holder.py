"""Who holds a socket that we wanted, as far as /proc and the kernel say."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def process_command(pid: int) -> str:
    """The name of a process, "" when it can't be read."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def process_name(pid: int) -> str:
    """The process for a message: its number, and its name where it can be read."""
    command = process_command(pid)
    return f"process {pid} ({command})" if command else f"process {pid}"


def listener_of(connected: socket.socket) -> str | None:
    """Who listens at the other end of a connected unix socket; None when it is in another PID namespace."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return process_name(pid) if pid > 0 else None


def tcp_port_holder(port: int) -> str | None:
    """Who listens on a TCP port of this network namespace; None when that can't be found, for want of rights say."""
    inodes = frozenset(f"socket:[{inode}]" for inode in _listening_inodes(port))
    if not inodes:
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _holds(entry / "fd", inodes):
            return process_name(int(entry.name))
    return None


def _listening_inodes(port: int) -> Iterator[int]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                yield int(columns[9])


def _holds(directory: Path, links: frozenset[str]) -> bool:
    try:
        return any(_link(descriptor) in links for descriptor in directory.iterdir())
    except OSError:  # gone, or another user's
        return False


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the target is no path
    except OSError:
        return ""
