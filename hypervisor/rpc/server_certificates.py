"""The certificates of a server: what it was started with, and whatever better files come into their directory.

What can't be used is never taken: a server goes on with what it had, and says so. New connections use the new files;
those that are open stay open as long as their certificate is good (see standing.py).
"""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import grpc
import structlog

from hypervisor.rpc.tls import KEY_FILE, TlsError, TlsFiles, read_tls, stamp_of

log = structlog.get_logger("tls")


class ServerCertificates:
    """Gives a server its credentials, and each new connection the newest files."""

    def __init__(self, directory: Path) -> None:
        """Raises TlsError."""
        self._directory = directory
        self._stamp = stamp_of(directory)
        self._files = read_tls(directory)
        self._failing = ""
        self._reloads = 0
        self._reading = threading.Lock()
        _warn_of_open_key(directory)

    @property
    def failing(self) -> str:
        """Why the files as they are now can't be used, and older ones are in use; "" when they are."""
        return self._failing

    @property
    def reloads_total(self) -> int:
        """How often other files were taken."""
        return self._reloads

    @property
    def authority(self) -> bytes:
        """The PEM file of the authorities that are trusted now."""
        return self._files.authority

    def refresh(self) -> None:
        """Look for new files also while nobody connects: three stats when there are none."""
        self._reload()

    def credentials(self, *, ask_for_certificate: bool) -> grpc.ServerCredentials:
        """What a port is opened with. ask_for_certificate: whoever connects must show one of our authority's."""
        # Each port has its own place in the history of the files.
        taken = self._files

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal taken
            self._reload()
            if self._files is taken:
                return None
            taken = self._files
            return _configuration(taken)

        # The stubs don't know that None means "as before".
        fetcher: Any = fetch
        return grpc.dynamic_ssl_server_credentials(
            _configuration(taken), fetcher, require_client_authentication=ask_for_certificate
        )

    def _reload(self) -> None:
        """Called at each new connection, on gRPC's own thread, and by refresh()."""
        with self._reading:
            self._take_new()

    def _take_new(self) -> None:
        stamp = stamp_of(self._directory)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            files = read_tls(self._directory)
        except TlsError as error:
            if self._failing != str(error):
                log.warning("new certificates can't be used, the old ones stay", error=str(error))
            self._failing = str(error)
            return
        self._failing = ""
        if files != self._files:
            self._files = files
            self._reloads += 1
            log.info("certificates were read again", directory=str(self._directory))


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authority)


def _warn_of_open_key(directory: Path) -> None:
    key = directory / KEY_FILE
    if key.stat().st_mode & stat.S_IROTH:
        log.warning("everybody on this machine may read a private key; chmod 600 it", file=str(key))
