"""What the adapters have done, as frozen values; exported as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypervisor.model import Refusal, RefusalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatistics:
    """A feed since the start. watchers counts those of now; all else grows.

    published: states or events that came in. messages: sent to watchers. resets: answered with everything, since the
    watcher could not resume. coalesced: states that a slow watcher skipped on its way to a newer one. refused:
    watchers above the bound. tombstones: deletions that are remembered now.
    """

    watchers: int
    published: int
    messages: int
    heartbeats: int
    resets: int
    coalesced: int
    refused: int
    tombstones: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcStatistics:
    """All adapters of the node. calls: (method, status code, number of calls), ordered."""

    calls: tuple[tuple[str, str, int], ...]
    node_feed: FeedStatistics
    event_feed: FeedStatistics


class FeedCounters:
    """Counts for one feed; touched on one thread, read from any."""

    def __init__(self) -> None:
        self.watchers = 0
        self.published = 0
        self.messages = 0
        self.heartbeats = 0
        self.resets = 0
        self.coalesced = 0
        self.refused = 0

    @contextmanager
    def watcher(self, most: int) -> Iterator[None]:
        """Count one watcher for as long as it is served. Raises Refusal where so many are served already."""
        if self.watchers >= most:
            self.refused += 1
            raise Refusal(
                RefusalReason.TOO_MANY_WATCHERS,
                f"{most} watchers are served already",
                remedy="end some, or list instead of watching",
            )
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    def statistics(self, tombstones: int = 0) -> FeedStatistics:
        return FeedStatistics(
            watchers=self.watchers,
            published=self.published,
            messages=self.messages,
            heartbeats=self.heartbeats,
            resets=self.resets,
            coalesced=self.coalesced,
            refused=self.refused,
            tombstones=tombstones,
        )


class CallCounter:
    """Finished calls by method and status code."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()

    def count(self, method: str, code: str) -> None:
        self._calls[method, code] += 1

    def statistics(self) -> tuple[tuple[str, str, int], ...]:
        # One C call copies, so that another thread may count meanwhile.
        calls = self._calls.copy()
        return tuple(sorted((method, code, number) for (method, code), number in calls.items()))
