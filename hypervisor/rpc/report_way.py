"""The way to the aggregator: its address, and what says who we are. Files are read at each connection, so that new
certificates and tokens need no restart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from hypervisor.rpc.address import TcpAddress, UnixAddress
from hypervisor.rpc.tls import TlsError, channel_credentials, read_tls

Metadata = tuple[tuple[str, str], ...]
_MAX_TOKEN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReportWay:
    """tls: directory of certificates, None: without encryption. token: file of a bearer token, which then stands for
    our certificate."""

    address: UnixAddress | TcpAddress
    tls: Path | None = None
    token: Path | None = None

    def check(self) -> None:
        """Raise TlsError when it can't be gone as the files are now."""
        if self.tls is not None:
            read_tls(self.tls, pair_needed=self.token is None)
        self.metadata()

    def channel(self, options: tuple[tuple[str, int], ...]) -> grpc.aio.Channel:
        """A connection, which is made with the first call. Raises TlsError."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address.target, options=options)
        credentials = channel_credentials(self.tls, pair_needed=self.token is None)
        return grpc.aio.secure_channel(self.address.target, credentials, options=options)

    def metadata(self) -> Metadata:
        """What goes with the call. Raises TlsError."""
        if self.token is None:
            return ()
        try:
            with self.token.open(encoding="ascii") as file:
                token = file.read(_MAX_TOKEN_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TlsError(f"can't read the token {self.token}: {error}; name its file with --report-token") from error
        return (("authorization", f"Bearer {token}"),)
