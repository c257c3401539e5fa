"""Certificates of gRPC on TCP: three files of one directory, read again when they change.

ca.crt, tls.crt and tls.key, as a Secret of type kubernetes.io/tls has them. What can't be used is never taken: a server
goes on with what it had, and says so. New connections use the new files; those that are open stay open as
long as their certificate is good (see standing.py).
"""

from __future__ import annotations

import ssl
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

log = structlog.get_logger("tls")

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
_TRIES = 3
_Stamp = tuple[tuple[int, int, int], ...]


class TlsError(Exception):
    """Certificates that can't be used; the text names the file, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The content of a directory: whom to trust, and who we are. The pair is empty where there is none."""

    authority: bytes
    certificate: bytes
    key: bytes

    @property
    def has_pair(self) -> bool:
        return bool(self.certificate)


def read_tls(directory: Path, *, pair_needed: bool = True) -> TlsFiles:
    """The files of a directory, checked: the key belongs to the certificate. Raises TlsError.

    pair_needed: also refuse a directory that only has ca.crt, with which a client can't say who it is.
    """
    for _ in range(_TRIES):
        before = _stamp(directory)
        files = _read(directory, pair_needed=pair_needed)
        fault = _fault(directory, files)
        # Files that change while we read them are read again.
        if before == _stamp(directory):
            break
    if fault:
        raise TlsError(fault)
    return files


class ServerCertificates:
    """Gives a server its credentials, and each new connection the newest files."""

    def __init__(self, directory: Path) -> None:
        """Raises TlsError."""
        self._directory = directory
        self._stamp = _stamp(directory)
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
        stamp = _stamp(self._directory)
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


def channel_credentials(directory: Path, *, pair_needed: bool = True) -> grpc.ChannelCredentials:
    """Credentials of a client, from the files as they are now. Raises TlsError."""
    files = read_tls(directory, pair_needed=pair_needed)
    return grpc.ssl_channel_credentials(
        root_certificates=files.authority,
        private_key=files.key or None,
        certificate_chain=files.certificate or None,
    )


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authority)


def _read(directory: Path, *, pair_needed: bool) -> TlsFiles:
    try:
        authority = (directory / CA_FILE).read_bytes()
        if not pair_needed and not (directory / CERTIFICATE_FILE).exists() and not (directory / KEY_FILE).exists():
            return TlsFiles(authority, b"", b"")
        return TlsFiles(authority, (directory / CERTIFICATE_FILE).read_bytes(), (directory / KEY_FILE).read_bytes())
    except OSError as error:
        raise TlsError(
            f"can't read {error.filename}: {error.strerror}; a directory of certificates has {CA_FILE}, "
            f"{CERTIFICATE_FILE} and {KEY_FILE}, make one with 'hypervisor certs'"
        ) from error


def _fault(directory: Path, files: TlsFiles) -> str:
    """What is wrong with the files; "" when nothing is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cadata=files.authority.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        return f"{directory / CA_FILE} holds no certificate in PEM form ({error}); make it anew with 'hypervisor certs'"
    if files.has_pair:
        try:
            context.load_cert_chain(directory / CERTIFICATE_FILE, directory / KEY_FILE, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            return (
                f"{directory / KEY_FILE} does not belong to {CERTIFICATE_FILE} beside it, or one of them is damaged "
                f"({error}); make both anew with 'hypervisor certs'"
            )
    return ""


def _no_password() -> str:
    """A key with a password is refused: asking for one would stop a daemon at the terminal."""
    raise ValueError("the key has a password, and nobody is there to type it")


def _stamp(directory: Path) -> _Stamp:
    found = []
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        try:
            # stat and not lstat: a mounted Secret changes by the target of a link.
            status = (directory / name).stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _warn_of_open_key(directory: Path) -> None:
    key = directory / KEY_FILE
    if key.stat().st_mode & stat.S_IROTH:
        log.warning("everybody on this machine may read a private key; chmod 600 it", file=str(key))
