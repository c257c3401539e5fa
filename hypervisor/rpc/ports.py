"""Which TCP addresses may be listened on and connected to, and how: with certificates, or without when said aloud."""

from __future__ import annotations

from pathlib import Path

import grpc

from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.listening import ListenError, explain_bind_failure
from hypervisor.rpc.server_certificates import ServerCertificates
from hypervisor.rpc.tls import TlsError


def check_security(addresses: tuple[UnixAddress | TcpAddress, ...], setting: str, *, tls: bool, insecure: bool) -> None:
    """Raise ListenError unless TCP among the addresses is secured, or said aloud to be not."""
    if tls and insecure:
        raise ListenError("tls_dir and insecure contradict each other; leave one of them out")
    for address in addresses:
        if isinstance(address, TcpAddress) and not (tls or insecure):
            verb = "report to" if setting == "report_to" else "listen on"
            raise ListenError(
                f"{setting}: {address} is TCP without encryption and without authentication; name a directory of "
                f"certificates with --tls-dir, say --insecure to allow that, or {verb} unix:PATH"
            )


def server_certificates(directory: str) -> ServerCertificates | None:
    """The certificates of a setting, None for "". Raises ListenError."""
    if not directory:
        return None
    try:
        return ServerCertificates(Path(directory))
    except TlsError as error:
        raise ListenError(f"tls_dir: {error}") from error


def add_port(
    server: grpc.aio.Server,
    address: UnixAddress | TcpAddress,
    certificates: ServerCertificates | None,
    *,
    ask_for_certificate: bool = True,
) -> int:
    """Bind an address, TCP with the certificates where there are some; returns its port. Raises ListenError."""
    try:
        if certificates is not None and isinstance(address, TcpAddress):
            credentials = certificates.credentials(ask_for_certificate=ask_for_certificate)
            port = server.add_secure_port(address.target, credentials)
        else:
            port = server.add_insecure_port(address.target)
    except RuntimeError as error:
        raise explain_bind_failure(address, str(error)) from error
    if port == 0:
        raise explain_bind_failure(address, "gRPC gave no reason")
    return int(port)
