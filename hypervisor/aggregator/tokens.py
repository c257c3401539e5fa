"""ServiceAccount tokens become identities: asked of the API server, and remembered for a while.

A token is bound to a Pod, and the API server knows on which node that Pod runs; a node that shows it may report that
node and no other. Which accounts report, and which read, is a setting.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.peer import Identity, Role

log = structlog.get_logger("tokens")

# What a token must be for: one that was made for the API server itself is not ours to take.
AUDIENCE = "hypervisor-aggregator"
# A Pod that is gone takes its token with it; this is how long we don't notice.
REMEMBERED_SECONDS = 60.0
# A token that was refused is asked for again after this: a flood of bad ones must not become one at the API server.
REFUSED_SECONDS = 10.0
MAX_TOKEN_CHARACTERS = 16 * 1024
_REMEMBERED = 20_000
_AT_ONCE = 16
_ACCOUNT = "system:serviceaccount:"
_NODE_NAME = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True, slots=True)
class Review:
    """What the API server says of a token: whose it is, and what it is bound to. error: why it is not good."""

    username: str = ""
    extra: Mapping[str, tuple[str, ...]] | None = None
    error: str = ""


class ReviewFailed(Exception):  # noqa: N818 - it is an answer of the API server, or none
    """The API server could not be asked; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """ServiceAccounts as NAMESPACE/NAME: whose Pods report, and who reads."""

    reporters: frozenset[str]
    readers: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Known:
    answer: Identity | Refusal
    until: float


class Tokens:
    """Identities by token. Only the loop's tasks call it."""

    def __init__(
        self, review: Callable[[str], Awaitable[Review]], accounts: Accounts, *, monotonic: Callable[[], float]
    ) -> None:
        self._review = review
        self._accounts = accounts
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._reviews = 0

    @property
    def reviews_total(self) -> int:
        """How often the API server was asked."""
        return self._reviews

    async def identify(self, token: str) -> Identity:
        """Whose token it is. Raises Refusal when it is nobody's who may do anything here, or can't be known."""
        if not token or len(token) > MAX_TOKEN_CHARACTERS:
            raise _refused("the token is empty or too long")
        # The secret itself is not kept.
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(key)
        if known is None or known.until <= self._monotonic():
            async with self._asking:
                known = await self._ask(token)
            self._known[key] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        if isinstance(known.answer, Refusal):
            raise known.answer
        return known.answer

    async def _ask(self, token: str) -> _Known:
        self._reviews += 1
        try:
            review = await self._review(token)
        except ReviewFailed as error:
            # Not remembered: the next try may find the API server well.
            raise Refusal(
                RefusalReason.NOT_READY, f"the API server can't be asked about a token: {error}", remedy="try again"
            ) from error
        try:
            identity = identity_of(review, self._accounts)
        except Refusal as refusal:
            log.warning("a token is refused", account=review.username, error=str(refusal))
            return _Known(refusal, self._monotonic() + REFUSED_SECONDS)
        return _Known(identity, self._monotonic() + REMEMBERED_SECONDS)


def identity_of(review: Review, accounts: Accounts) -> Identity:
    """The role and name that a review means. Raises Refusal."""
    if review.error or not review.username:
        raise _refused(f"the API server does not know the token: {review.error or 'it names nobody'}")
    if not review.username.startswith(_ACCOUNT):
        raise _forbidden(f"{review.username} is no ServiceAccount")
    account = review.username.removeprefix(_ACCOUNT).replace(":", "/", 1)
    if account in accounts.reporters:
        nodes = (review.extra or {}).get(_NODE_NAME, ())
        if len(nodes) != 1:
            raise _forbidden(
                f"the token of {account} is not bound to a Pod on a node",
                remedy="mount a projected token into the Pod; the API server must be 1.30 or newer",
            )
        return Identity(Role.NODE, nodes[0])
    if account in accounts.readers:
        return Identity(Role.READER, account.replace("/", "."))
    raise _forbidden(
        f"the ServiceAccount {account} has no role here", remedy="name it with --reporter-account or --reader-account"
    )


def _refused(why: str) -> Refusal:
    return Refusal(RefusalReason.UNAUTHENTICATED, why, remedy=f"use a token with the audience {AUDIENCE}")


def _forbidden(why: str, *, remedy: str = "") -> Refusal:
    return Refusal(RefusalReason.FORBIDDEN, why, remedy=remedy)
