"""Makes a hypervisor's Pod anew that has crashed too often, with back-off, and tells why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hypervisor.aggregator.kubernetes import crash_loops, names
from hypervisor.aggregator.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubernetesClient, Object
from hypervisor.aggregator.kubernetes.crash_loops import CrashLoop, Recreated
from hypervisor.aggregator.recorder import Record

log = structlog.get_logger("kubernetes")

STEP_SECONDS = 5.0
SELECTOR = f"{names.COMPONENT}=hypervisor"


class _Node:
    """The node that an event is about, which may not have reported ever."""

    simulated = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = ""


class HypervisorPods:
    """Follows the hypervisor's Pods. Only the loop's tasks call it."""

    def __init__(self, client: KubernetesClient, *, threshold: int, record: Record, wall: Callable[[], float]) -> None:
        self._client = client
        self._threshold = threshold
        self._record = record
        self._wall = wall
        self._crashing: dict[str, CrashLoop] = {}
        self._recreated: dict[str, Recreated] = {}
        self.recreated_total = 0

    def listed(self, objects: list[Object]) -> None:
        """All of them."""
        self._crashing = {}
        for each in objects:
            self.changed("ADDED", each)

    def changed(self, kind: str, object_: Object) -> None:
        """One of them."""
        uid = object_["metadata"]["uid"]
        found = crash_loops.crash_loop(object_, self._threshold) if kind != "DELETED" else None
        if found is None:
            self._crashing.pop(uid, None)
        else:
            self._crashing[uid] = found

    async def run(self) -> None:
        """For ever. Cancelling between the removal of a Pod and its event loses the event."""
        while True:
            await self.step()
            await asyncio.sleep(STEP_SECONDS)

    async def step(self) -> None:
        """Make those anew whose back-off is over."""
        for crash in tuple(self._crashing.values()):
            try:
                await self._handle(crash)
            except ApiError as error:
                log.warning("a hypervisor's Pod can't be made anew", pod=crash.pod, node=crash.node, error=str(error))

    async def _handle(self, crash: CrashLoop) -> None:
        now = self._wall()
        before = self._recreated.get(crash.node)
        if before is None:
            before = self._recreated[crash.node] = await self._remembered(crash.node)
        if not before.allows(now):
            return
        cause = await self._cause(crash)
        after = before.next(now)
        # First what must survive us, or a crash of ours would forget the back-off.
        node_uid = await self._remember(crash.node, after)
        self._recreated[crash.node] = after
        try:
            await self._client.delete(f"{names.pods(self._client.namespace)}/{crash.pod}", uid=crash.uid)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            self._crashing.pop(crash.uid, None)
            return  # another Pod of this name by now
        self._crashing.pop(crash.uid, None)
        self.recreated_total += 1
        log.warning("a hypervisor's Pod is made anew", pod=crash.pod, node=crash.node, restarts=crash.restarts)
        self._record(
            _Node(crash.node),
            "HypervisorCrashLoopRecreate",
            "GPUNode",
            crash.node,
            node_uid,
            f"Pod {crash.pod} was removed to be made anew, time {after.count} in a row: container {crash.container} "
            f"has restarted {crash.restarts} times, more than {self._threshold}; last end: {cause}",
            warning=True,
            pod=crash.pod,
            container=crash.container,
            restarts=str(crash.restarts),
            threshold=str(self._threshold),
            cause=cause,
        )

    async def _cause(self, crash: CrashLoop) -> str:
        """With the last line of the container's log where its status has none."""
        if crash.output:
            return crash.cause
        query = {"container": crash.container, "previous": "true", "tailLines": "5"}
        try:
            text = await self._client.text(f"{names.pods(self._client.namespace)}/{crash.pod}/log", query)
        except ApiError:
            return crash.cause
        line = crash_loops.last_line(text)
        return f"{crash.cause}: {line}" if line else crash.cause

    async def _remembered(self, node: str) -> Recreated:
        try:
            live = await self._client.get(f"{names.GPU_NODES}/{node}")
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return Recreated()
        return crash_loops.recreated((live["metadata"].get("annotations") or {}).get(names.RECREATED, ""))

    async def _remember(self, node: str, recreated: Recreated) -> str:
        """On the GPUNode, which is made where the hypervisor never came so far as to report; returns its UID."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": node, "annotations": {names.RECREATED: recreated.text()}},
        }
        place = f"{names.GPU_NODES}/{node}"
        live = await self._client.apply(place, body, manager=names.RECREATE_MANAGER, force=True)
        if not live.get("status"):
            body = {**body, "metadata": {"name": node}, "status": {"phase": "Pending"}}
            await self._client.apply(f"{place}/status", body, manager=names.STATUS_MANAGER, force=True)
        return str(live["metadata"]["uid"])
