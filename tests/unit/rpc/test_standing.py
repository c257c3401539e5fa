"""Callers whose certificate is no longer good, after their connection was opened."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from pathlib import Path

import pytest

from hypervisor.certificates.authority import Authority
from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.peer import Identity, Role
from hypervisor.rpc.guard import token_expiry
from hypervisor.rpc.open_streams import OpenStream, OpenStreams
from hypervisor.rpc.standing import Standing

DAY = dt.timedelta(days=1).total_seconds()


def made(directory: Path) -> tuple[bytes, bytes]:
    """An authority of 30 days and a certificate of 5 days."""
    authority = Authority.create(directory, days=30)
    folder = authority.issue(Identity(Role.NODE, "a"), (), days=5).folder
    return (folder / "ca.crt").read_bytes(), (folder / "tls.crt").read_bytes()


def test_a_certificate_is_good_until_it_expires(tmp_path: Path) -> None:
    authority, certificate = made(tmp_path / "pki")
    now = dt.datetime.now(tz=dt.UTC).timestamp()
    standing = Standing(lambda: authority, wall=lambda: now)
    assert now + 4.9 * DAY < standing.check(certificate) <= now + 5 * DAY
    now += 6 * DAY
    with pytest.raises(Refusal, match="has expired") as refused:
        standing.check(certificate)
    assert refused.value.reason is RefusalReason.UNAUTHENTICATED


def test_another_authority_ends_what_the_old_one_stood_for(tmp_path: Path) -> None:
    authority, certificate = made(tmp_path / "pki")
    other, its_own = made(tmp_path / "other")
    trusted = authority
    standing = Standing(lambda: trusted)
    standing.check(certificate)
    with pytest.raises(Refusal, match="no longer trusted"):
        standing.check(its_own)
    # While both are trusted, as in a change from one to the other, both are good.
    trusted = authority + other
    standing.check(certificate)
    standing.check(its_own)
    trusted = other
    with pytest.raises(Refusal, match="no longer trusted"):
        standing.check(certificate)
    for nonsense in (b"", b"nonsense"):
        with pytest.raises(Refusal, match="can't be read"):
            standing.check(nonsense)


def test_an_authority_with_more_time_and_the_same_key_stands_for_what_it_signed(tmp_path: Path) -> None:
    authority, certificate = made(tmp_path / "pki")
    Authority.open(tmp_path / "pki").renew_itself(days=60)
    after = (tmp_path / "pki" / "ca.crt").read_bytes()
    assert after != authority
    Standing(lambda: after).check(certificate)


def test_when_a_token_expires() -> None:
    def token(claims: str) -> str:
        return f"x.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.y"

    assert token_expiry(token('{"exp": 1700000000, "sub": "a"}')) == 1_700_000_000.0
    for other in (
        "",
        "x",
        "x.y.z",
        "x.\u00e9.z",
        token("[]"),
        token('{"exp": "soon"}'),
        token('{"exp": null}'),
        token("{}"),
    ):
        assert token_expiry(other) == float("inf")


def test_only_streams_whose_time_is_over_are_looked_at_and_ended() -> None:
    asked: list[str] = []
    everybody = False

    async def stream(streams: OpenStreams, name: str, *, good: bool, until: float) -> OpenStream:
        first = True

        def recheck() -> float:
            nonlocal first
            if not first:
                asked.append(name)
                if not good:
                    raise Refusal(RefusalReason.UNAUTHENTICATED, "no longer good")
            first = False
            return until

        with streams.hold(recheck) as held:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return held
        raise AssertionError("never ended")

    async def main() -> None:
        nonlocal everybody
        streams = OpenStreams(lambda: everybody, wall=lambda: 100.0, seconds=0.001)
        old = asyncio.create_task(stream(streams, "old", good=False, until=50.0))
        new = asyncio.create_task(stream(streams, "new", good=True, until=500.0))
        revoked = asyncio.create_task(stream(streams, "revoked", good=False, until=500.0))
        async with asyncio.timeout(20):
            assert (await old).ended_because is not None
            assert set(asked) == {"old"}
            everybody = True
            assert (await revoked).ended_because is not None
        assert not new.done()
        new.cancel()
        assert (await new).ended_because is None

    asyncio.run(main())
