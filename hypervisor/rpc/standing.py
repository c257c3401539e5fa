"""Whether the certificate that a connection was opened with is still good: TLS asks that once, when it opens, and a
connection may stay open for months.

Asked again with each call and, for streams, from time to time: a certificate that has expired, or that none of the
authorities of the files as they are now stands for, ends them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypervisor.model import Refusal, RefusalReason

if TYPE_CHECKING:
    from cryptography import x509

_REMEMBERED = 20_000
_DEEPEST_CHAIN = 5


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a certificate: until when it is good, in wall time, or why it is not."""

    until: float
    fault: str = ""


class Standing:
    """Remembers what it has found as long as the authorities stay the same. Only the loop's tasks call it.

    authorities: the PEM file of those that are trusted now.
    """

    def __init__(self, authorities: Callable[[], bytes], *, wall: Callable[[], float] = time.time) -> None:
        self._authorities = authorities
        self._wall = wall
        self._trusted = b""
        self._known: OrderedDict[bytes, _Found] = OrderedDict()

    @property
    def authorities(self) -> bytes:
        """Those that are trusted now; as long as they stay the same, only time makes a certificate bad."""
        return self._authorities()

    def check(self, chain: bytes) -> float:
        """Until when the first certificate of a PEM chain is good, in wall time. Raises Refusal when it is not."""
        trusted = self._authorities()
        if trusted != self._trusted:
            self._trusted = trusted
            self._known.clear()
        found = self._known.get(chain)
        if found is None:
            found = self._known[chain] = _look(chain, trusted)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        fault = found.fault
        if not fault and self._wall() >= found.until:
            fault = "the certificate has expired"
        if fault:
            raise Refusal(
                RefusalReason.UNAUTHENTICATED,
                fault,
                remedy="connect again with a certificate that is good now; 'hypervisor certs renew' makes one",
            )
        return found.until


def _look(chain: bytes, trusted: bytes) -> _Found:
    # Only servers with certificates need it, and it is large.
    from cryptography import x509

    try:
        presented = x509.load_pem_x509_certificates(chain)
        authorities = x509.load_pem_x509_certificates(trusted)
    except ValueError as error:
        return _Found(0.0, f"the certificate can't be read: {error}")
    current, until = presented[0], float("inf")
    for _ in range(_DEEPEST_CHAIN):
        until = min(until, current.not_valid_after_utc.timestamp())
        if current in authorities:
            return _Found(until)
        above = _issuer(current, authorities)
        if above is not None:
            return _Found(min(until, above.not_valid_after_utc.timestamp()))
        above = _issuer(current, presented[1:])
        if above is None:
            break
        current = above
    return _Found(0.0, "the certificate is of an authority that is no longer trusted")


def _issuer(certificate: x509.Certificate, among: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """Who has signed it, of these; the one that is good the longest, for an authority may be there twice."""
    from cryptography.exceptions import InvalidSignature

    found = []
    for each in among:
        try:
            certificate.verify_directly_issued_by(each)
        except (ValueError, TypeError, InvalidSignature):
            continue
        found.append(each)
    return max(found, key=lambda each: each.not_valid_after_utc, default=None)
