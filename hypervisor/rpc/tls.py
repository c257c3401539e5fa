"""Certificates of gRPC on TCP: three files of one directory, checked before they are used.

ca.crt, tls.crt and tls.key, as a Secret of type kubernetes.io/tls has them. What a server makes of them is in
server_certificates.py; this is all that a client needs, and a command that people type waits for its imports.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
_TRIES = 3
Stamp = tuple[tuple[int, int, int], ...]


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
        before = stamp_of(directory)
        files = _read(directory, pair_needed=pair_needed)
        fault = _fault(directory, files)
        # Files that change while we read them are read again.
        if before == stamp_of(directory):
            break
    if fault:
        raise TlsError(fault)
    return files


def channel_credentials(directory: Path, *, pair_needed: bool = True) -> grpc.ChannelCredentials:
    """Credentials of a client, from the files as they are now. Raises TlsError."""
    files = read_tls(directory, pair_needed=pair_needed)
    return grpc.ssl_channel_credentials(
        root_certificates=files.authority,
        private_key=files.key or None,
        certificate_chain=files.certificate or None,
    )


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


def stamp_of(directory: Path) -> Stamp:
    """What changes when one of the files does."""
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
