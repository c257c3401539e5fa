"""Keys and certificates as bytes: pure, but for the randomness of keys and serial numbers."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hypervisor.model.peer import Identity, Role, parse_uri

# Clocks of hosts differ; a certificate that was made now must be good on one that is behind.
_BACKDATED = dt.timedelta(hours=1)
_LONGEST_COMMON_NAME = 64  # X.520
_USES = {
    Role.AGGREGATOR: (ExtendedKeyUsageOID.SERVER_AUTH,),
    # A node reports, and may serve its own API on TCP.
    Role.NODE: (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
    Role.READER: (ExtendedKeyUsageOID.CLIENT_AUTH,),
}


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key of the kind that every TLS library takes and that costs least."""
    return ec.generate_private_key(ec.SECP256R1())


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as a PEM file without a password, for daemons that start by themselves."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_bytes(certificate: x509.Certificate) -> bytes:
    """The certificate as a PEM file."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def authority_certificate(key: ec.EllipticCurvePrivateKey, name: str, *, days: int) -> x509.Certificate:
    """A certificate that signs itself and others, and no further authorities."""
    subject = _subject(name)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(subject, subject, days=days)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def identity_certificate(
    identity: Identity,
    addresses: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    *,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """A certificate that says who somebody is and, for those who serve, at which names and addresses."""
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    names = [x509.UniformResourceIdentifier(identity.uri), *(_address(text) for text in addresses)]
    return (
        _builder(_subject(identity.name), authority.subject, days=days)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[identity.role]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def identity_of(certificate: x509.Certificate) -> Identity | None:
    """Who a certificate says somebody is; None for one that says nothing of ours."""
    found = [parse_uri(uri) for uri in _names(certificate).get_values_for_type(x509.UniformResourceIdentifier)]
    return next((identity for identity in found if identity is not None), None)


def addresses_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The host names and addresses of a certificate."""
    names = _names(certificate)
    return (
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    )


def _builder(subject: x509.Name, issuer: x509.Name, *, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_COMMON_NAME])])


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return x509.DNSName(text)
