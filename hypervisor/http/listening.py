"""Listening sockets of the HTTP port, and words for why there are none."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import trio

HolderOfPort = Callable[[int], str | None]


class AddressInUse(Exception):  # noqa: N818 - the name says it
    """The address can't be bound; the text says why, who holds it, and what to do."""


async def open_listeners(host: str, port: int, *, holder: HolderOfPort) -> tuple[list[trio.SocketListener], str]:
    """Bind host (a name or an address) and port (0: any free one); returns the listeners and the URL.

    holder names who listens on a port, for the error. Raises AddressInUse. Cancelling binds nothing.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=128)
    except OSError as error:
        raise AddressInUse(_explain(host, port, error, holder)) from error
    name, bound = listeners[0].socket.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    return listeners, f"http://{shown}:{bound}"


def _explain(host: str, port: int, error: OSError, holder: HolderOfPort) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        who = holder(port) or "another process"
        return f"the HTTP address {where} is in use by {who}; choose another port with --http-port"
    if error.errno == errno.EACCES:
        return f"the HTTP address {where} may not be bound: {error.strerror}; choose a port above 1023 with --http-port"
    reason = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"the HTTP host {host!r} can't be resolved: {reason}; name an address of this machine with --http-listen"
    return f"the HTTP address {where} can't be bound: {reason}; name another with --http-listen and --http-port"
