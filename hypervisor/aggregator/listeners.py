"""Where the aggregator's gRPC server listens: unix sockets, TCP with certificates or tokens, or without when that was
said aloud."""

from __future__ import annotations

import grpc
import structlog

from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.listening import ListenError, parse_listen, remove_socket, unix_socket_place
from hypervisor.rpc.ports import add_port, check_security
from hypervisor.rpc.server_certificates import ServerCertificates

log = structlog.get_logger("aggregator")

# Whoever may write to a unix socket may report; so only we and our group.
_SOCKET_MODE = 0o660


class Listeners:
    """The server's addresses; owns the socket files."""

    def __init__(self, server: grpc.aio.Server, certificates: ServerCertificates | None) -> None:
        self.server = server
        self._certificates = certificates
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
            tls = self._certificates
            check_security((address,), "listen", tls=tls is not None, insecure=insecure)
            if tls is None:
                log.warning("everyone who reaches this address may report nodes and read all of them", address=text)
            self._addresses.append(str(TcpAddress(address.host, add_port(self.server, address, tls))))
            return
        with unix_socket_place(address, mode=_SOCKET_MODE):
            add_port(self.server, address, None)
            self._sockets.append((address, address.path.lstat().st_ino))
        self._addresses.append(str(address))

    def bind_for_tokens(self, text: str) -> None:
        """Bind one more HOST:PORT, whose callers show a token instead of a certificate. Raises ListenError."""
        address = parse_listen(text, "token_listen")
        if not isinstance(address, TcpAddress):
            raise ListenError(f"token_listen: {text} is no HOST:PORT; on a unix socket its mode decides who may call")
        if self._certificates is None:
            raise ListenError("token_listen: tokens are only taken over TLS; name our certificate with --tls-dir")
        port = add_port(self.server, address, self._certificates, ask_for_certificate=False)
        self._addresses.append(str(TcpAddress(address.host, port)))

    async def stop(self, grace_seconds: float) -> None:
        """Stop serving, and remove our socket files."""
        await self.server.stop(grace_seconds)
        for address, inode in self._sockets:
            remove_socket(address, inode)
