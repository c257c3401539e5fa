"""`hypervisor certs`: what it makes, how it lies on the disk, and what it refuses."""

from __future__ import annotations

import datetime as dt
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from hypervisor.certificates import Authority, CertificatesError
from hypervisor.cli.certs import certs
from hypervisor.cli.failure import CommandError
from hypervisor.model.peer import Identity, Role, parse_uri
from hypervisor.rpc.tls import TlsError, read_tls


def run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(certs, [arguments[0], "--dir", str(directory), *arguments[1:]])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "pki"
    assert run(made, "init").exit_code == 0
    return made


def names(folder: Path) -> x509.SubjectAlternativeName:
    certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_folder_for_each_host_that_daemons_take_as_it_is(directory: Path) -> None:
    umask = os.umask(0)
    try:
        for arguments in (
            ("aggregator", "--address", "hub.example", "--address", "10.0.0.1"),
            ("node", "gpu-1", "gpu-2"),
            ("reader", "ops"),
        ):
            assert run(directory, *arguments).exit_code == 0
    finally:
        os.umask(umask)
    folders = [directory / name for name in ("aggregator/aggregator", "nodes/gpu-1", "nodes/gpu-2", "readers/ops")]
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
        assert (mode(folder), mode(folder / "tls.key"), mode(folder / "tls.crt")) == (0o700, 0o600, 0o644)
        assert read_tls(folder).authority == (directory / "ca.crt").read_bytes()
    assert (mode(directory), mode(directory / "ca.key")) == (0o700, 0o600)
    assert names(folders[0]).get_values_for_type(x509.DNSName) == ["hub.example"]
    assert [str(each) for each in names(folders[0]).get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names(folders[1]).get_values_for_type(x509.UniformResourceIdentifier) == ["hypervisor:node:gpu-1"]
    assert names(folders[1]).get_values_for_type(x509.DNSName) == ["gpu-1"]
    listed = run(directory, "list").output
    assert [line.split()[:2] for line in listed.splitlines()[2:]] == [
        ["node", "gpu-1"],
        ["node", "gpu-2"],
        ["reader", "ops"],
        ["aggregator", "aggregator"],
    ]


def test_renewal_keeps_who_and_where_and_takes_a_new_key(directory: Path) -> None:
    run(directory, "node", "soon", "--address", "10.0.0.7", "--days", "10")
    run(directory, "node", "later", "--days", "300")
    soon, later = directory / "nodes/soon", directory / "nodes/later"
    before = {folder: (folder / "tls.key").read_bytes() for folder in (soon, later)}
    assert "node soon" in run(directory, "renew").output
    assert (soon / "tls.key").read_bytes() != before[soon]
    assert (later / "tls.key").read_bytes() == before[later]
    assert "10.0.0.7" in [str(each) for each in names(soon).get_values_for_type(x509.IPAddress)]
    read_tls(soon)
    assert "nothing expires" in run(directory, "renew").output
    assert "node later" in run(directory, "renew", "later").output
    assert (later / "tls.key").read_bytes() != before[later]


def test_a_renewed_authority_still_stands_for_all_that_it_signed(directory: Path) -> None:
    run(directory, "node", "a")
    old = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((directory / "nodes/a/tls.crt").read_bytes())
    assert run(directory, "renew", "--authority", "--days", "9000").exit_code == 0
    new = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    assert new.not_valid_after_utc > old.not_valid_after_utc
    leaf.verify_directly_issued_by(new)
    assert (directory / "nodes/a/ca.crt").read_bytes() == (directory / "ca.crt").read_bytes()


def test_days_left_are_counted(directory: Path) -> None:
    issued = Authority.open(directory).issue(Identity(Role.READER, "ops"), (), days=10)
    now = dt.datetime.now(dt.UTC)
    assert 9.9 < issued.days_left(now) <= 10
    assert issued.days_left(now + dt.timedelta(days=11)) < 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("init",), "has an authority already"),
        (("node", "a b"), "is no name"),
        (("node", "../../etc"), "is no name"),
        (("node", "a"), "renew it with"),
        (("renew", "nobody"), "no certificate of 'nobody'"),
        (("aggregator", "--address", "ünï"), "check its addresses"),
    ],
)
def test_what_is_refused_says_why(directory: Path, arguments: tuple[str, ...], words: str) -> None:
    run(directory, "node", "a")
    result = run(directory, *arguments)
    assert isinstance(result.exception, CommandError)
    assert words in str(result.exception)


def test_without_an_authority_it_says_how_to_make_one(tmp_path: Path) -> None:
    result = run(tmp_path / "none", "node", "a")
    assert "certs init" in str(result.exception)
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(CertificatesError, match="damaged"):
        Authority.open(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"), [(("aggregator",), "--address"), (("node", "a", "b", "--address", "x"), "one node")]
)
def test_wrong_usage(directory: Path, arguments: tuple[str, ...], words: str) -> None:
    result = run(directory, *arguments)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.crt", b"nonsense", "holds no certificate"),
        ("tls.crt", b"nonsense", "does not belong"),
        ("tls.key", b"", "does not belong"),
        ("tls.key", None, "can't read"),
    ],
)
def test_a_folder_that_can_not_be_used(directory: Path, name: str, content: bytes | None, words: str) -> None:
    run(directory, "node", "a")
    path = directory / "nodes/a" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(TlsError, match=words):
        read_tls(directory / "nodes/a")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hypervisor:node:gpu-1.example", Identity(Role.NODE, "gpu-1.example")),
        ("hypervisor:reader:ops", Identity(Role.READER, "ops")),
        ("hypervisor:root:x", None),
        ("hypervisor:node:", None),
        ("hypervisor:node:a/b", None),
        ("spiffe://node/a", None),
        ("", None),
    ],
)
def test_uris_of_identities(uri: str, expected: Identity | None) -> None:
    assert parse_uri(uri) == expected
    if expected is not None:
        assert expected.uri == uri
