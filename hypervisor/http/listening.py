"""Listening sockets of the HTTP port, and who holds the port when it is taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import trio

PROC = Path("/proc")
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


class AddressInUse(Exception):  # noqa: N818 - the name says it
    """The address can't be bound; the text says why, who holds it, and what to do."""


async def open_listeners(host: str, port: int) -> tuple[list[trio.SocketListener], str]:
    """Bind host (a name or an address) and port (0: any free one); returns the listeners and the URL.

    Raises AddressInUse. Cancelling binds nothing.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=128)
    except OSError as error:
        raise AddressInUse(_explain(host, port, error)) from error
    name, bound = listeners[0].socket.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    return listeners, f"http://{shown}:{bound}"


def _explain(host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        holder = holder_of_port(port)
        return f"the HTTP address {where} is in use{f' by {holder}' if holder else ''}; choose another with --http-port"
    if error.errno == errno.EACCES:
        return f"the HTTP address {where} may not be bound: {error.strerror}; choose a port above 1023 with --http-port"
    reason = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"the HTTP host {host!r} can't be resolved: {reason}; name an address of this machine with --http-listen"
    return f"the HTTP address {where} can't be bound: {reason}; name another with --http-listen and --http-port"


def holder_of_port(port: int, proc: Path = PROC) -> str:
    """The process that listens on a TCP port, as "process PID (COMMAND)"; "" when it can't be found."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            inodes |= set(listening_inodes((proc / "net" / table).read_text(encoding="ascii"), port))
        except OSError:
            continue  # no IPv6, or no permission: then the holder stays unnamed
    if not inodes:
        return ""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.iterdir():
        if process.name.isdigit() and _holds(process, links):
            return f"process {process.name} ({_command(process)})"
    return ""


def listening_inodes(table: str, port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on port, from the text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _holds(process: Path, links: set[str]) -> bool:
    try:
        return any(str(entry.readlink()) in links for entry in (process / "fd").iterdir())
    except OSError:
        return False  # ended meanwhile, or another user's


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended meanwhile"
