"""Makes a hypervisor's Pod anew that has crashed too often, with back-off, and tells why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hypervisor.aggregator.kubernetes import crash_loops, names
from hypervisor.aggregator.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubernetesClient, Object
from hypervisor.aggregator.kubernetes.crash_loops import CrashLoop, Recreated, Recreation
from hypervisor.aggregator.recorder import Record

log = structlog.get_logger("kubernetes")

STEP_SECONDS = 5.0
# Less than how long an API server keeps events, an hour by default.
TOLD_AGAIN_SECONDS = 1_800.0
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
        """For ever. Whoever leads next tells of what was removed and not told."""
        caught_up = False
        while True:
            caught_up = caught_up or await self.tell_unfinished()
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
        told = Recreation(
            pod=crash.pod,
            uid=crash.uid,
            count=after.count,
            container=crash.container,
            restarts=crash.restarts,
            threshold=self._threshold,
            cause=cause,
        )
        # First what must survive us, or a crash of ours would forget the back-off and the event.
        node_uid = await self._remember(crash.node, after, told)
        self._recreated[crash.node] = after
        try:
            await self._client.delete(f"{names.pods(self._client.namespace)}/{crash.pod}", uid=crash.uid)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            self._crashing.pop(crash.uid, None)
            # Another Pod of this name by now, which is not our doing and is not to be told.
            await self._remember(crash.node, after, None)
            return
        self._crashing.pop(crash.uid, None)
        self.recreated_total += 1
        log.warning("a hypervisor's Pod is made anew", pod=crash.pod, node=crash.node, restarts=crash.restarts)
        self._tell(crash.node, node_uid, told)

    async def tell_unfinished(self) -> bool:
        """Tell of Pods that were removed lately, also before this life; those that are told already are not doubled.
        False when the API server could not be asked."""
        try:
            nodes, _ = await self._client.list_all(names.GPU_NODES, metadata_only=True)
            lately = [(node["metadata"], told) for node in nodes if (told := self._told_lately(node["metadata"]))]
            if not lately:
                return True
            query = {"labelSelector": SELECTOR}
            pods, _ = await self._client.list_all(names.pods(self._client.namespace), query, metadata_only=True)
        except ApiError as error:
            log.warning("it is not known which hypervisors' Pods were made anew", error=str(error))
            return False
        standing = {pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
        for metadata, told in lately:
            # Else it never came to the removal.
            if told.uid not in standing:
                self._tell(metadata["name"], metadata["uid"], told)
        return True

    def _told_lately(self, metadata: Object) -> Recreation | None:
        annotations = metadata.get("annotations") or {}
        at = crash_loops.recreated(annotations.get(names.RECREATED, "")).at
        # Later the API server may have forgotten the event, and it would be told twice.
        if not 0 <= self._wall() - at <= TOLD_AGAIN_SECONDS:
            return None
        return crash_loops.recreation(annotations.get(names.RECREATION, ""))

    def _tell(self, node: str, node_uid: str, told: Recreation) -> None:
        self._record(
            _Node(node),
            "HypervisorCrashLoopRecreate",
            "GPUNode",
            node,
            node_uid,
            told.message,
            warning=True,
            # The same in each life, so that the API server refuses a second one.
            origin=(told.uid, 1, max(1, told.count)),
            **told.fields,
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

    async def _remember(self, node: str, recreated: Recreated, told: Recreation | None) -> str:
        """On the GPUNode, which is made where the hypervisor never came so far as to report; returns its UID."""
        annotations = {names.RECREATED: recreated.text()}
        if told is not None:
            annotations[names.RECREATION] = told.text()
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": node, "annotations": annotations},
        }
        place = f"{names.GPU_NODES}/{node}"
        live = await self._client.apply(place, body, manager=names.RECREATE_MANAGER, force=True)
        if not live.get("status"):
            body = {**body, "metadata": {"name": node}, "status": {"phase": "Pending"}}
            await self._client.apply(f"{place}/status", body, manager=names.STATUS_MANAGER, force=True)
        return str(live["metadata"]["uid"])
