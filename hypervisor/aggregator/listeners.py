"""Where the aggregator's gRPC server listens: unix sockets, and TCP when that was said aloud."""

from __future__ import annotations

import grpc
import structlog

from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.listening import (
    ListenError,
    explain_bind_failure,
    parse_listen,
    remove_socket,
    unix_socket_place,
)

log = structlog.get_logger("aggregator")

# Whoever may write to a unix socket may report; so only we and our group.
_SOCKET_MODE = 0o660


class Listeners:
    """The server's addresses; owns the socket files."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self.server = server
        self._addresses: list[str] = []
        self._sockets: list[tuple[UnixAddress, int]] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses as they came to be: a port that was 0 is the one that was given."""
        return tuple(self._addresses)

    def bind(self, text: str, *, insecure: bool) -> None:
        """Bind one more address, unix:PATH or HOST:PORT. Raises ListenError."""
        address = parse_listen(text, "listen")
        if isinstance(address, TcpAddress):
            if not insecure:
                raise ListenError(
                    f"listen: {address} is TCP without encryption and without authentication; say --insecure to "
                    "allow that, or listen on unix:PATH"
                )
            log.warning("everyone who reaches this address may report nodes and read all of them", address=text)
            self._addresses.append(str(TcpAddress(address.host, self._add(address))))
            return
        with unix_socket_place(address, mode=_SOCKET_MODE):
            self._add(address)
            self._sockets.append((address, address.path.lstat().st_ino))
        self._addresses.append(str(address))

    async def stop(self, grace_seconds: float) -> None:
        """Stop serving, and remove our socket files."""
        await self.server.stop(grace_seconds)
        for address, inode in self._sockets:
            remove_socket(address, inode)

    def _add(self, address: UnixAddress | TcpAddress) -> int:
        try:
            port: int = self.server.add_insecure_port(address.target)
        except RuntimeError as error:
            raise explain_bind_failure(address, str(error)) from error
        if port == 0:
            raise explain_bind_failure(address, "gRPC gave no reason")
        return port
