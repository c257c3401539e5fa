"""From a view to the bytes of /metrics: collected and rendered in a worker thread, kept for up to a second.

The rendering of thousands of series takes tens of milliseconds, which would be a stall of the same length in the
daemon's own thread. One rendering runs at a time; who comes meanwhile waits for it and gets its page.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import structlog
import trio
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hypervisor.metrics.collectors import COLLECTORS, Collect
from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView

KEEP_SECONDS = 1.0
_KEPT_PAGES = 4
_GZIP_LEVEL = 1  # level 9 takes 20 times as long for a tenth less


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A rendered page; encoding is "gzip" or ""."""

    content_type: str
    encoding: str
    body: bytes


class Exposition:
    """Renders the page on demand. take_view is called in the trio thread, so that all in a page is of one moment."""

    def __init__(
        self,
        take_view: Callable[[], MetricsView],
        *,
        collectors: Mapping[str, Collect] = COLLECTORS,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._take_view = take_view
        self._collectors = collectors
        self._keep_seconds = keep_seconds
        self._lock = trio.Lock()
        self._kept: dict[tuple[str, str], tuple[float, Page]] = {}
        self._last_success: dict[str, float] = {}

    async def render(self, accept: str, accept_encoding: str) -> Page:
        """The page in the format and encoding that the request's headers ask for. Cancel-safe."""
        encoding = "gzip" if _accepts_gzip(accept_encoding) else ""
        _, content_type = choose_encoder(accept)
        key = (content_type, encoding)
        async with self._lock:
            made_at, page = self._kept.get(key, (float("-inf"), None))
            if page is None or trio.current_time() - made_at > self._keep_seconds:
                view = self._take_view()
                page = await trio.to_thread.run_sync(self._make, view, accept, encoding)
                if len(self._kept) >= _KEPT_PAGES:
                    self._kept.clear()  # the client chooses part of the key; it must not choose our memory
                self._kept[key] = (trio.current_time(), page)
            return page

    def _make(self, view: MetricsView, accept: str, encoding: str) -> Page:
        families = tuple(self._collect(view))
        encode, content_type = choose_encoder(accept)
        # The encoders only call collect(); the class is prometheus_client's word for that.
        body = encode(cast("Collector", _Collected(families)))
        if encoding:
            body = gzip.compress(body, _GZIP_LEVEL)
        return Page(content_type=content_type, encoding=encoding, body=body)

    def _collect(self, view: MetricsView) -> Iterator[Metric]:
        own = Families()
        for name, collect in self._collectors.items():
            began = time.perf_counter()
            try:
                families = tuple(collect(view))
            except Exception:  # noqa: BLE001 - logged with its traceback
                # One subject that can't be told must not take the others with it; its metric and the log tell it.
                structlog.get_logger("metrics").exception("a collector failed", collector=name)
                families = ()
                own.gauge("collector_success", "1 when the collector's last run worked", 0.0, collector=name)
            else:
                self._last_success[name] = view.wall_time
                own.gauge("collector_success", "1 when the collector's last run worked", 1.0, collector=name)
            yield from families
            own.gauge("collector_duration_seconds", "Time of the last run", time.perf_counter() - began, collector=name)
            own.gauge(
                "collector_last_success_timestamp_seconds",
                "When the collector last worked, seconds since 1970",
                self._last_success.get(name),
                collector=name,
            )
        yield from own.families()


class _Collected:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header allows gzip; a weight of 0 refuses it."""
    for part in header.split(","):
        name, _, parameters = part.partition(";")
        if name.strip().lower() in {"gzip", "*"}:
            weight = parameters.replace(" ", "").removeprefix("q=")
            return weight.strip("0.") != "" or parameters == ""
    return False
