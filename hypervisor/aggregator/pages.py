"""Pages of a list, all from one version: the list is kept for a while, its token says where the next page begins."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hypervisor.model import Refusal, RefusalReason
from hypervisor.v1 import node_pb2

DEFAULT_SIZE = 256
MAX_SIZE = 1_000
# A page also ends when it has this many bytes, well below the 4 MiB of a message.
MAX_PAGE_BYTES = 2 << 20
_LISTS = 256
_LIFETIME_SECONDS = 120.0

Item = TypeVar("Item")


@dataclass(slots=True)
class _Kept(Generic[Item]):
    items: Sequence[Item]
    version: int
    request: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class PageOf(Generic[Item]):
    """Items from a place on, of a version; the caller takes as many as fit and asks for the token of the rest."""

    items: Sequence[Item]
    version: int
    start: int
    size: int
    kept_as: str


class Pages(Generic[Item]):
    """Lists that are being read. Bounded: the one that was not read for longest goes first."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lists: OrderedDict[str, _Kept[Item]] = OrderedDict()

    def begin(
        self, page: node_pb2.Page, request: bytes, make: Callable[[], tuple[Sequence[Item], int]]
    ) -> PageOf[Item]:
        """Where an answer begins: in a new list from `make`, or where the token says.

        request: what the list depends on; a token is for the same request only. Raises Refusal for a token that is
        wrong or whose list is gone.
        """
        size = min(page.size or DEFAULT_SIZE, MAX_SIZE)
        if not page.token:
            items, version = make()
            return PageOf(items, version, 0, size, "")
        name, _, place = page.token.partition(".")
        kept = self._lists.get(name)
        if kept is None or kept.expires_at < self._monotonic():
            raise Refusal(
                RefusalReason.PAGE_EXPIRED,
                "the list of this page token is no longer kept",
                field="page.token",
                remedy="begin again without a token",
            )
        if kept.request != request:
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT, "the page token belongs to another request", field="page.token"
            )
        if not place.isdecimal() or len(place) > 9 or int(place) > len(kept.items):
            raise Refusal(RefusalReason.INVALID_ARGUMENT, "the page token can't be read", field="page.token")
        return PageOf(kept.items, kept.version, int(place), size, name)

    def token(self, page: PageOf[Item], taken: int, request: bytes) -> str:
        """Token of what comes after `taken` items of this page; "" when nothing does."""
        place = page.start + taken
        if place >= len(page.items):
            return ""
        name = page.kept_as or secrets.token_urlsafe(16)
        kept = self._lists.pop(name, None) or _Kept(page.items, page.version, request, 0.0)
        kept.expires_at = self._monotonic() + _LIFETIME_SECONDS
        self._lists[name] = kept
        while len(self._lists) > _LISTS:
            self._lists.popitem(last=False)
        return f"{name}.{place}"
