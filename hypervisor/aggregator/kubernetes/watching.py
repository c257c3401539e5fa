"""List, then watch, for ever: one collection's objects, level-triggered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from hypervisor.aggregator.kubernetes.client import GONE, ApiError, KubernetesClient, Object

log = structlog.get_logger("watch")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Follower(Protocol):
    """Takes what a collection holds. Nothing it does may wait."""

    def listed(self, objects: list[Object]) -> None:
        """All objects: what is not among them is gone."""
        ...

    def changed(self, kind: str, object_: Object) -> None:
        """One object; kind is ADDED, MODIFIED or DELETED."""
        ...


class Watch:
    """Follows one collection. failing: why it can't now, "" while it can."""

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        follower: Follower,
        *,
        query: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._path = path
        self._follower = follower
        self._query = dict(query or {})
        self._metadata_only = metadata_only
        self._jitter = jitter
        self._failed_in_a_row = 0
        self.failing = ""
        self.lists_total = 0
        # Set when the collection has been listed once.
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """For ever. Cancelling it leaves the follower with what it was told."""
        version = ""
        while True:
            version = await self.step(version)

    async def step(self, version: str) -> str:
        """One list, when no version is known, or one watch; the version to go on from, "" to list anew."""
        try:
            if not version:
                objects, version = await self._client.list_all(
                    self._path, self._query, metadata_only=self._metadata_only
                )
                self.lists_total += 1
                self._follower.listed(objects)
                self.synced.set()
            else:
                version = await self._watch(version)
        except ApiError as error:
            if error.code == GONE:
                return ""
            if not self.failing:
                log.warning("a collection can't be followed", path=self._path, error=str(error))
            self.failing = str(error)
            await asyncio.sleep(self._pause())
            return version if version and error.code == 0 else ""
        self.failing = ""
        self._failed_in_a_row = 0
        return version

    async def _watch(self, version: str) -> str:
        watch = self._client.watch(self._path, version, self._query, metadata_only=self._metadata_only)
        async for change in watch:
            version = str(change.object["metadata"]["resourceVersion"])
            if change.kind != "BOOKMARK":
                self._follower.changed(change.kind, change.object)
        return version

    def _pause(self) -> float:
        self._failed_in_a_row += 1
        longest: float = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._failed_in_a_row, 8))
        return longest * (0.5 + self._jitter() / 2)
