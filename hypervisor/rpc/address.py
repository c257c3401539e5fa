"""Addresses of the API: unix:PATH or HOST:PORT. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

MAX_UNIX_PATH_BYTES = 107  # sun_path, less the NUL at its end
_TCP = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})", re.ASCII)


class AddressError(ValueError):
    """An address that can't be read; the text says what was given and what is allowed."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket; the path is absolute."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def target(self) -> str:
        """As gRPC wants it: a URI, so that no character of the path means anything."""
        return f"unix:{quote(str(self.path))}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (name or address) and a port; port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        return str(self)


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """The address that text names. Raises AddressError."""
    if text.startswith("unix:"):
        return _parse_unix(text)
    match = _TCP.fullmatch(text)
    if match is None:
        raise AddressError(f"{text!r} is not an address; write it as unix:PATH or HOST:PORT")
    port = int(match["port"])
    if port > 65535:
        raise AddressError(f"{text!r} is not an address: a port is at most 65535")
    return TcpAddress(match["six"] or match["host"], port)


def _parse_unix(text: str) -> UnixAddress:
    name = text.removeprefix("unix:")
    if name.startswith("//"):  # unix:///path, as other programs write it
        name = name[2:]
    if not name or "\0" in name:
        raise AddressError(f"{text!r} is not an address: the path of the socket is missing; write it as unix:PATH")
    path = Path(name).absolute()
    length = len(str(path).encode("utf-8", "surrogateescape"))
    if length > MAX_UNIX_PATH_BYTES:
        raise AddressError(
            f"{text!r} can't be a socket: its path has {length} bytes and the system allows {MAX_UNIX_PATH_BYTES}; "
            "choose a shorter one"
        )
    return UnixAddress(path)
