"""Watches of GPU objects: a watcher is a cursor, so a slow one skips states and never queues.

What it has not seen follows from the order of versions in the registry, deletions from the tombstones; when those no
longer reach back far enough, it begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from hypervisor.aggregator.filters import Predicate
from hypervisor.aggregator.masks import Mask
from hypervisor.aggregator.records import GpuObject
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.views import Moment, cluster_gpu
from hypervisor.v1 import cluster_pb2

# Changes within this time are told together.
GATHER_SECONDS = 0.05
MAX_CHUNK_BYTES = 1 << 20
NAMES_AT_ONCE = 5_000
# A watcher with a filter knows what it has told up to so many names; beyond, it names more deletions than it must.
TOLD_LIMIT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatistics:
    """watchers: now; the rest grows."""

    watchers: int
    messages_total: int
    resets_total: int


class GpuFeed:
    """Wakes watchers when objects change. Only the loop's tasks call it."""

    def __init__(self, registry: Registry, *, moment: Callable[[], Moment]) -> None:
        self._registry = registry
        self._moment = moment
        self._changed = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._closed = False
        self._watchers = self._messages = self._resets = 0
        self._unobserve = registry.observe(self._note)

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return self._watchers

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._unobserve()
        if self._waking is not None:
            self._waking.cancel()
        self._wake()

    async def watch(
        self, *, matches: Predicate | None, mask: Mask, resume_after: int | None
    ) -> AsyncIterator[cluster_pb2.WatchGpusResponse]:
        """Messages for one watcher, for ever; ends when the feed is closed. Cancelling it leaves nothing behind.

        resume_after: the version that the watcher holds; None, or a version that can't be continued: from scratch.
        """
        self._watchers += 1
        # None: not known, so that every deletion is named.
        told: set[str] | None = None
        cursor = resume_after
        try:
            while not self._closed:
                if cursor is None or not self._registry.can_resume(cursor):
                    self._resets += 1
                    told = set() if matches is not None else None
                    target, gpus = self._everything(matches)
                    removed: list[str] = []
                    reset = True
                elif cursor == self._registry.version:
                    await self._changed.wait()
                    continue
                else:
                    target, gpus, removed = self._changes(cursor, matches, told)
                    reset = False
                told = _remember(told, gpus, removed)
                cursor = target
                if reset or gpus or removed:
                    for message in self._chunks(target, gpus, removed, mask, reset=reset):
                        self._messages += 1
                        yield message
        finally:
            self._watchers -= 1

    def statistics(self) -> FeedStatistics:
        """Watchers now and counters since the start."""
        return FeedStatistics(watchers=self._watchers, messages_total=self._messages, resets_total=self._resets)

    # --- inside

    def _note(self, name: str, old: GpuObject | None, new: GpuObject | None) -> None:
        if self._waking is None and self._watchers:
            self._waking = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._changed.set()
        self._changed = asyncio.Event()

    def _everything(self, matches: Predicate | None) -> tuple[int, list[GpuObject]]:
        gpus = self._registry.gpus.values()
        return self._registry.version, [gpu for gpu in gpus if matches is None or matches(gpu)]

    def _changes(
        self, cursor: int, matches: Predicate | None, told: set[str] | None
    ) -> tuple[int, list[GpuObject], list[str]]:
        gpus: list[GpuObject] = []
        removed = self._registry.removed_after(cursor)
        for gpu in self._registry.changed_after(cursor):
            if matches is None or matches(gpu):
                gpus.append(gpu)
            else:
                removed.append(gpu.name)
        if told is not None:
            removed = [name for name in removed if name in told]
        return self._registry.version, gpus, removed

    def _chunks(
        self, version: int, gpus: list[GpuObject], removed: list[str], mask: Mask, *, reset: bool
    ) -> Iterable[cluster_pb2.WatchGpusResponse]:
        """The answer in parts that fit into messages; only the last one has the version."""
        store_id = self._registry.store_id
        message = cluster_pb2.WatchGpusResponse(store_id=store_id, reset=reset)
        while len(removed) > NAMES_AT_ONCE:
            message.removed.extend(removed[:NAMES_AT_ONCE])
            message.more = True
            yield message
            message = cluster_pb2.WatchGpusResponse(store_id=store_id)
            removed = removed[NAMES_AT_ONCE:]
        message.removed.extend(removed)
        now = self._moment()
        size = 0
        for gpu in gpus:
            size += len(gpu.latest) + 256
            if size > MAX_CHUNK_BYTES:
                message.more = True
                yield message
                message = cluster_pb2.WatchGpusResponse(store_id=store_id)
                size = len(gpu.latest)
            message.gpus.append(mask(cluster_gpu(gpu, now)))
        message.version = version
        yield message


def _remember(told: set[str] | None, gpus: list[GpuObject], removed: list[str]) -> set[str] | None:
    if told is None:
        return None
    told.difference_update(removed)
    told.update(gpu.name for gpu in gpus)
    return told if len(told) <= TOLD_LIMIT else None
