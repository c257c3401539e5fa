"""The authority of a fleet: its directory, what was issued from it, and what must be renewed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hypervisor.certificates import files, signing
from hypervisor.model.peer import Identity, Role, is_name

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
_FOLDERS = {Role.AGGREGATOR: "aggregator", Role.NODE: "nodes", Role.READER: "readers"}


class CertificatesError(Exception):
    """What can't be done with the certificates; the text says what, why and what to do."""


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate: whose, the folder of its three files, for which hosts, and until when."""

    identity: Identity
    folder: Path
    addresses: tuple[str, ...]
    expires: dt.datetime

    def days_left(self, now: dt.datetime) -> float:
        """Days until it expires; negative when it has."""
        return (self.expires - now) / dt.timedelta(days=1)


class Authority:
    """A directory with a key that signs."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.directory = directory
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: Path, *, days: int) -> Authority:
        """A new authority. Raises CertificatesError where there is one already, or when it can't be written."""
        if (directory / CA_KEY).exists() or (directory / CA_CERTIFICATE).exists():
            raise CertificatesError(
                f"{directory} has an authority already, and a new one would make all that it signed worthless; "
                "renew it with 'hypervisor certs renew --authority', or choose another --dir"
            )
        key = signing.new_key()
        certificate = signing.authority_certificate(key, "gpu-hypervisor fleet", days=days)
        made = cls(directory, certificate, key)
        with _explained():
            files.make_private(directory)
            files.write(directory / CA_KEY, signing.key_bytes(key), private=True)
            files.write(directory / CA_CERTIFICATE, signing.certificate_bytes(certificate), private=False)
        return made

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """The authority of a directory. Raises CertificatesError."""
        with _explained():
            key = _load_key(directory / CA_KEY)
            certificate = _load_certificate(directory / CA_CERTIFICATE)
        if certificate.public_key() != key.public_key():
            raise CertificatesError(f"{directory / CA_KEY} does not belong to {CA_CERTIFICATE} beside it")
        return cls(directory, certificate, key)

    @property
    def expires(self) -> dt.datetime:
        """Until when anything that it signed is good."""
        return self._certificate.not_valid_after_utc

    def issue(self, identity: Identity, addresses: Sequence[str], *, days: int) -> Issued:
        """A key and a certificate for somebody new. Raises CertificatesError."""
        if not is_name(identity.name):
            raise CertificatesError(
                f"{identity.name!r} is no name: letters, digits, dots, dashes and underscores, at most 253; for a node "
                "it is the node's name as 'hypervisor get nodes' shows it"
            )
        folder = self._folder(identity)
        if (folder / KEY).exists():
            raise CertificatesError(
                f"{identity} has a certificate in {folder}; renew it with 'hypervisor certs renew {identity.name}'"
            )
        return self._write(identity, addresses, folder, days=days)

    def renew(self, issued: Issued, *, days: int) -> Issued:
        """A new key and certificate for the same one. Raises CertificatesError."""
        return self._write(issued.identity, issued.addresses, issued.folder, days=days)

    def renew_itself(self, *, days: int) -> Authority:
        """The same key for longer: all that was signed stays good, whichever of the two certificates a host has."""
        name = self._certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        certificate = signing.authority_certificate(self._key, str(name), days=days)
        renewed = Authority(self.directory, certificate, self._key)
        with _explained():
            for folder in (self.directory, *(issued.folder for issued in self.issued())):
                files.write(folder / CA_CERTIFICATE, signing.certificate_bytes(certificate), private=False)
        return renewed

    def issued(self) -> Iterator[Issued]:
        """All certificates below the directory, by role and name. Raises CertificatesError for one that is damaged."""
        with _explained():
            for role in Role:
                for path in sorted((self.directory / _FOLDERS[role]).glob(f"*/{CERTIFICATE}")):
                    certificate = _load_certificate(path)
                    identity = signing.identity_of(certificate)
                    if identity is not None:
                        yield Issued(
                            identity, path.parent, signing.addresses_of(certificate), certificate.not_valid_after_utc
                        )

    def _folder(self, identity: Identity) -> Path:
        return self.directory / _FOLDERS[identity.role] / identity.name

    def _write(self, identity: Identity, addresses: Sequence[str], folder: Path, *, days: int) -> Issued:
        key = signing.new_key()
        try:
            certificate = signing.identity_certificate(
                identity, addresses, key, authority=self._certificate, authority_key=self._key, days=days
            )
        except ValueError as error:
            raise CertificatesError(f"can't make a certificate for {identity}: {error}; check its addresses") from error
        with _explained():
            files.make_private(folder)
            # A reader that comes in between finds a pair that does not match, and keeps what it has.
            files.write(folder / KEY, signing.key_bytes(key), private=True)
            files.write(folder / CERTIFICATE, signing.certificate_bytes(certificate), private=False)
            files.write(folder / CA_CERTIFICATE, signing.certificate_bytes(self._certificate), private=False)
        return Issued(identity, folder, tuple(addresses), certificate.not_valid_after_utc)


class _explained:  # noqa: N801 - reads as a verb
    """Turns what reading and writing raise into words."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise CertificatesError(
                f"there is no {error.filename}; make an authority first with 'hypervisor certs init --dir DIR'"
            ) from error
        if isinstance(error, OSError):
            raise CertificatesError(f"can't use {error.filename}: {error.strerror}") from error
        if isinstance(error, ValueError):
            raise CertificatesError(f"a file of the authority is damaged: {error}") from error


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no key on an elliptic curve")  # noqa: TRY004 - explained as a damaged file
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())
