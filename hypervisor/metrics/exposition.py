"""From a view to the bytes of /metrics: collected and rendered in a worker thread, kept for up to a second.

The rendering of thousands of series takes tens of milliseconds, which would be a stall of the same length in the
daemon's own thread. One rendering runs at a time; who comes meanwhile waits for it and gets its page.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog
import trio
from prometheus_client.core import Metric

from hypervisor.metrics.collectors import COLLECTORS, Collect
from hypervisor.metrics.family import Families
from hypervisor.metrics.text import Format, wanted_format, wants_gzip, write
from hypervisor.metrics.view import MetricsView

KEEP_SECONDS = 1.0
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
        self._kept: dict[tuple[Format, str], tuple[float, Page]] = {}
        self._last_success: dict[str, float] = {}

    async def render(self, accept: str, accept_encoding: str) -> Page:
        """The page in the format and encoding that the request's headers ask for. Cancel-safe."""
        encoding = "gzip" if wants_gzip(accept_encoding) else ""
        form = wanted_format(accept)
        key = (form, encoding)
        async with self._lock:
            made_at, page = self._kept.get(key, (float("-inf"), None))
            if page is None or trio.current_time() - made_at > self._keep_seconds:
                view = self._take_view()
                page = await trio.to_thread.run_sync(self._make, view, form, encoding)
                self._kept[key] = (trio.current_time(), page)
            return page

    def _make(self, view: MetricsView, form: Format, encoding: str) -> Page:
        body = write(self._collect(view), form)
        if encoding:
            body = gzip.compress(body, _GZIP_LEVEL)
        return Page(content_type=form.value, encoding=encoding, body=body)

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
