"""ServiceAccount tokens: whose they are, what that allows, and how often the API server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hypervisor.aggregator.tokens import (
    REFUSED_SECONDS,
    REMEMBERED_SECONDS,
    Accounts,
    Review,
    ReviewFailed,
    Tokens,
    identity_of,
)
from hypervisor.model import Refusal, RefusalReason
from hypervisor.model.peer import Identity, Role

ACCOUNTS = Accounts(reporters=frozenset({"sys/hypervisor"}), readers=frozenset({"sys/scheduler"}))
ON_NODE = {"authentication.kubernetes.io/node-name": ("gpu-1",)}
HYPERVISOR = "system:serviceaccount:sys:hypervisor"


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        (Review(HYPERVISOR, ON_NODE), Identity(Role.NODE, "gpu-1")),
        (Review("system:serviceaccount:sys:scheduler", {}), Identity(Role.READER, "sys.scheduler")),
        (Review(HYPERVISOR, {}), RefusalReason.FORBIDDEN),
        (Review(HYPERVISOR, {"authentication.kubernetes.io/node-name": ("a", "b")}), RefusalReason.FORBIDDEN),
        (Review("system:serviceaccount:other:hypervisor", ON_NODE), RefusalReason.FORBIDDEN),
        (Review("system:admin", ON_NODE), RefusalReason.FORBIDDEN),
        (Review("", None, "expired"), RefusalReason.UNAUTHENTICATED),
        (Review(HYPERVISOR, ON_NODE, "expired"), RefusalReason.UNAUTHENTICATED),
    ],
)
def test_what_a_review_means(review: Review, expected: Identity | RefusalReason) -> None:
    if isinstance(expected, Identity):
        assert identity_of(review, ACCOUNTS) == expected
        return
    with pytest.raises(Refusal) as caught:
        identity_of(review, ACCOUNTS)
    assert caught.value.reason is expected


class Server:
    """What the API server would say, and how often it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[], Review] = lambda: Review(HYPERVISOR, ON_NODE)
        self.asked: list[str] = []
        self.now = 1000.0
        self.tokens = Tokens(self.review, ACCOUNTS, monotonic=lambda: self.now)

    async def review(self, token: str) -> Review:
        self.asked.append(token)
        return self.answer()

    def identify(self, token: str = "t") -> Identity | RefusalReason:
        try:
            return asyncio.run(self.tokens.identify(token))
        except Refusal as refusal:
            return refusal.reason


def test_a_good_token_is_asked_about_once_a_minute() -> None:
    server = Server()
    assert {server.identify() for _ in range(10)} == {Identity(Role.NODE, "gpu-1")}
    assert len(server.asked) == 1
    server.now += REMEMBERED_SECONDS
    server.answer = lambda: Review(error="its Pod is gone")
    assert server.identify() is RefusalReason.UNAUTHENTICATED
    assert server.tokens.reviews_total == len(server.asked) == 2


def test_bad_tokens_are_no_flood_at_the_api_server() -> None:
    server = Server()
    server.answer = lambda: Review(error="unknown")
    assert {server.identify() for _ in range(10)} == {RefusalReason.UNAUTHENTICATED}
    assert len(server.asked) == 1
    server.now += REFUSED_SECONDS
    server.identify()
    assert len(server.asked) == 2
    assert server.identify("") is RefusalReason.UNAUTHENTICATED
    assert server.identify("x" * 100_000) is RefusalReason.UNAUTHENTICATED
    assert len(server.asked) == 2


def test_an_api_server_that_fails_is_asked_again() -> None:
    server = Server()

    def fail() -> Review:
        raise ReviewFailed("no route")

    server.answer = fail
    assert server.identify() is RefusalReason.NOT_READY
    server.answer = lambda: Review(HYPERVISOR, ON_NODE)
    assert server.identify() == Identity(Role.NODE, "gpu-1")
