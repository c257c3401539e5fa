"""The page of an object follows it, asks once at a time, and is left alone where the server is not heard."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypervisor.top.content import Content
from hypervisor.top.detail import Detail
from hypervisor.top.interfaces import Outside, Unavailable
from hypervisor.top.rows import pod_rows
from tests.unit.top.conftest import make_pod_message

MakeContent = Callable[..., Content]
SECONDS = 10.0


class Server:
    """Describes when it is let; each page is numbered by the achieved share of its message."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Any] = queue.Queue()
        self.let = threading.Semaphore(0)
        self.away = False
        self.changed = threading.Semaphore(0)

    def describe(self, kind: str, message: Any) -> list[str]:
        self.asked.put((kind, message))
        assert self.let.acquire(timeout=SECONDS)
        if self.away:
            raise Unavailable("away")
        return [f"{message.devices[0].usage.pacing.achieved_ratio.value}"]

    def detail(self, content: Content) -> Detail:
        outside = Outside(address="x", watch=iter, describe=self.describe, limit_change=None, cluster=False)  # type: ignore[arg-type]
        row = content.pods[0]
        return Detail(outside, kind="pods", key=row.key, message=row.message, changed=self.changed.release)

    def done(self) -> None:
        self.let.release()
        assert self.changed.acquire(timeout=SECONDS)


def with_share(make_content: MakeContent, achieved: float, **parts: object) -> Content:
    return replace(make_content(**parts), pods=pod_rows(make_pod_message("train", achieved=achieved)))


def test_a_page_is_made_anew_for_each_state_and_once_at_a_time(make_content: MakeContent) -> None:
    server = Server()
    first, second, third = (with_share(make_content, share) for share in (0.25, 0.5, 0.75))
    detail = server.detail(first)
    assert detail.newer(first) is None
    assert server.asked.empty()  # the page of this state is there
    assert detail.newer(second) is None
    assert detail.newer(third) is None  # while the last one is still being made
    server.done()
    assert server.asked.get(timeout=SECONDS)[0] == "pods"
    assert server.asked.empty()
    assert detail.newer(third) == ("0.5",)
    server.done()
    assert detail.newer(third) == ("0.75",)
    assert detail.newer(third) is None


def test_a_server_that_is_away_is_not_asked_and_the_page_stands(make_content: MakeContent) -> None:
    server = Server()
    detail = server.detail(with_share(make_content, 0.25))
    later = with_share(make_content, 0.5)
    silent = with_share(make_content, 0.5, trouble="silent")
    assert detail.newer(silent) is None
    assert not detail.gone(silent)
    server.away = True
    assert detail.newer(later) is None
    server.done()
    assert detail.newer(later) is None


def test_what_has_ended_is_told(make_content: MakeContent) -> None:
    here, ended = with_share(make_content, 0.25), make_content(pods=())
    detail = Server().detail(here)
    assert not detail.gone(here)
    assert detail.gone(ended)
    assert not detail.gone(make_content(pods=(), trouble="silent"))
    assert detail.newer(ended) is None
