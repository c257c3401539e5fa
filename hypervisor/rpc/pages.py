"""Pages of lists: a token names a place in a list of one revision, and the revision is kept for a while."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from hypervisor.model import NodeSnapshot, Refusal, RefusalReason, Revision
from hypervisor.rpc.convert.requests import invalid, shown
from hypervisor.v1 import node_pb2

DEFAULT_SIZE = 256
MAX_SIZE = 1000
PAGE_BYTES = 3 * 2**20
_TOKEN = struct.Struct(">4sQQQ")
Item = TypeVar("Item")
Converted = TypeVar("Converted", bound=Message)


def page_size(page: node_pb2.Page) -> int:
    """Items of a page; 0 asks for the default, and too many count as the most."""
    return min(page.size, MAX_SIZE) if page.size else DEFAULT_SIZE


def encode_token(query: str, *numbers: int) -> str:
    """A token for a query (method and filter) and three numbers that say where its next page begins."""
    return base64.urlsafe_b64encode(_TOKEN.pack(_digest(query), *numbers)).decode("ascii").rstrip("=")


def decode_token(query: str, token: str) -> tuple[int, int, int]:
    """The numbers of a token. Raises Refusal when it is none, or one of another query."""
    field = "page.token"
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        digest, first, second, third = _TOKEN.unpack(raw)
    except (ValueError, binascii.Error, struct.error):
        raise invalid(field, f"{shown(token)} is no page token", "use next_page_token as it came") from None
    if digest != _digest(query):
        raise invalid(field, "the page token is of another query", "use it with the method and filter that gave it")
    return first, second, third


def _digest(query: str) -> bytes:
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOf(Generic[Converted]):
    """One page, the revision that it is of, and the token of the next ("" after the last)."""

    items: list[Converted]
    revision: Revision
    next_token: str


class Pages:
    """Cuts lists into pages. Revisions that a token was given out for are kept, the newest few."""

    def __init__(self, *, kept: int = 16) -> None:
        self._kept = kept
        self._snapshots: OrderedDict[Revision, NodeSnapshot] = OrderedDict()

    def cut(
        self,
        query: str,
        page: node_pb2.Page,
        current: NodeSnapshot,
        pick: Callable[[NodeSnapshot], Sequence[Item]],
        convert: Callable[[Item], Converted],
    ) -> PageOf[Converted]:
        """One page of pick(snapshot). Raises Refusal for a bad token, or when its revision is gone."""
        snapshot, begin = self._place(query, page.token, current)
        items = pick(snapshot)
        if begin > len(items):
            raise invalid("page.token", "the page token lies behind the end of the list")
        found: list[Converted] = []
        size = 0
        for item in items[begin : begin + page_size(page)]:
            message = convert(item)
            size += message.ByteSize()
            if found and size > PAGE_BYTES:
                break
            found.append(message)
        end = begin + len(found)
        token = ""
        if end < len(items):
            token = encode_token(query, snapshot.revision.epoch, snapshot.revision.revision, end)
            self._keep(snapshot)
        return PageOf(items=found, revision=snapshot.revision, next_token=token)

    def _place(self, query: str, token: str, current: NodeSnapshot) -> tuple[NodeSnapshot, int]:
        if not token:
            return current, 0
        epoch, number, begin = decode_token(query, token)
        revision = Revision(epoch, number)
        snapshot = current if current.revision == revision else self._snapshots.get(revision)
        if snapshot is None:
            raise Refusal(
                RefusalReason.PAGE_EXPIRED,
                "the list has changed since the page before, and that state is gone",
                field="page.token",
                remedy="begin again without a token",
            )
        return snapshot, begin

    def _keep(self, snapshot: NodeSnapshot) -> None:
        self._snapshots[snapshot.revision] = snapshot
        self._snapshots.move_to_end(snapshot.revision)
        while len(self._snapshots) > self._kept:
            self._snapshots.popitem(last=False)
