"""The Pods of this node: listed once, then followed by a watch that is resumed where it ended.

While the API server can't be asked, what was known stays; only what it says ends a Pod.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import structlog
import trio

from hypervisor.kube.pod import Pod, PodObject, to_pod
from hypervisor.node.kubernetes_api import GONE, ApiFailure, Change, KubernetesApi

log = structlog.get_logger("kubernetes")
WATCH_SECONDS = (300.0, 600.0)
SHORTEST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsStatistics:
    """Counters since the start; requests are all that went to the API server, of events too."""

    pods: int
    lists_total: int
    watches_total: int
    changes_total: int
    failures_total: int
    requests_total: int


class PodWatch:
    """All Pods of a node by UID. changed is called after each change, in trio."""

    def __init__(self, api: KubernetesApi, node: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._node = node
        self._changed = changed
        self._pods: dict[str, Pod] = {}
        self._version = ""
        self._complete = False
        self._failing = "the Pods of this node have not been listed yet"
        self._waits = 0
        self._lists = self._watches = self._changes = self._failures = 0

    @property
    def pods(self) -> Mapping[str, Pod]:
        """What is known now."""
        return self._pods

    @property
    def complete(self) -> bool:
        """Are they all? False only before the first list."""
        return self._complete

    @property
    def failing(self) -> str:
        """Why the API server is not followed now; "" when it is."""
        return self._failing

    def statistics(self) -> PodsStatistics:
        """Counters since the start."""
        return PodsStatistics(
            pods=len(self._pods),
            lists_total=self._lists,
            watches_total=self._watches,
            changes_total=self._changes,
            failures_total=self._failures,
            requests_total=self._api.requests,
        )

    async def run(self) -> None:
        """Follow for ever. Cancelling ends the watch."""
        while True:
            wait = await self.step()
            await trio.sleep(wait)

    async def step(self) -> float:
        """One list where there is no version, and one watch until it ends. Gives the seconds to wait before the next:
        none after a watch that worked."""
        try:
            if not self._version:
                await self._list()
            worked = await self._watch()
        except ApiFailure as failure:
            return self._after(failure)
        if not worked:
            return self._wait()  # it was ended at once: no reason to ask as fast as we can
        return 0.0

    async def _list(self) -> None:
        self._lists += 1
        found, version = await self._api.list_pods(self._node)
        self._pods = {}
        for each in found:
            self._take(to_pod(each))
        self._version, self._complete = version, True
        self._well()
        self._changed()

    async def _watch(self) -> bool:
        began, heard = trio.current_time(), False
        self._watches += 1
        seconds = random.uniform(*WATCH_SECONDS)  # noqa: S311 - spread over the nodes, no secret
        async with self._api.watch_pods(self._node, self._version, seconds) as changes, aclosing(changes):  # type: ignore[type-var]
            async for change in changes:
                heard = True
                self._well()
                self.follow(change)
        self._well()
        return heard or trio.current_time() - began >= SHORTEST_WAIT_SECONDS

    def follow(self, change: Change) -> None:
        """Take one change over."""
        self._version = change.pod.resource_version or self._version
        if change.kind == "BOOKMARK":
            return
        self._changes += 1
        if change.kind == "DELETED":
            self._drop(change.pod)
        else:
            self._take(to_pod(change.pod))
        self._changed()

    def _take(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if pod.node != self._node or not pod.uid:
            log.warning("a Pod that is not of this node is left out", pod=pod.label, node=pod.node)
            return
        if known is not None and known.label != pod.label:
            log.warning("a Pod has the UID of another one and is left out", pod=pod.label, uid=pod.uid, of=known.label)
            return
        self._pods[pod.uid] = pod

    def _drop(self, found: PodObject) -> None:
        pod = to_pod(found)
        known = self._pods.get(pod.uid)
        if known is not None and known.label == pod.label:
            del self._pods[pod.uid]

    def _well(self) -> None:
        self._failing, self._waits = "", 0

    def _after(self, failure: ApiFailure) -> float:
        self._failures += 1
        if failure.code == GONE:
            self._version = ""  # what is known stays until the list is there
            return self._wait()
        self._failing = str(failure)
        if failure.retry_after_seconds is not None:
            return min(failure.retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS) * random.uniform(1, 1.2)  # noqa: S311
        return self._wait()

    def _wait(self) -> float:
        self._waits += 1
        longest: float = min(LONGEST_WAIT_SECONDS, SHORTEST_WAIT_SECONDS * 2 ** (self._waits - 1))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311
