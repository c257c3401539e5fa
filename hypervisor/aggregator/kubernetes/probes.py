"""Tells of driver probe Jobs that have failed all their tries.

A probe that comes to its end tells of it itself, with what it found; this is for those that never came so far: no
image, no time left, killed. So an event that is there, from whomever, is not told again.
"""

from __future__ import annotations

import asyncio

import structlog

from hypervisor.aggregator.kubernetes import crash_loops, names
from hypervisor.aggregator.kubernetes.client import ApiError, KubernetesClient, Object
from hypervisor.aggregator.recorder import Record

log = structlog.get_logger("kubernetes")

STEP_SECONDS = 2.0
SELECTOR = f"{names.COMPONENT}=driver-probe"
REASON = "DriverProbeFailed"


class _Node:
    """The node that a Job probed."""

    simulated = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = ""


def failure(job: Object) -> str | None:
    """Why a Job has failed for good; None when it has not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "failed")
    return None


def node_of(job: Object) -> str:
    """The node that a Job is for; "" when it does not say."""
    spec = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    return str(spec.get("nodeName") or (spec.get("nodeSelector") or {}).get(names.HOSTNAME, ""))


class ProbeJobs:
    """Follows the driver's probe Jobs. Only the loop's tasks call it."""

    def __init__(self, client: KubernetesClient, *, record: Record) -> None:
        self._client = client
        self._record = record
        self._told: set[str] = set()
        self._failed: dict[str, Object] = {}

    def listed(self, objects: list[Object]) -> None:
        """All of them."""
        self._failed = {}
        self._told &= {each["metadata"]["uid"] for each in objects}
        for each in objects:
            self.changed("ADDED", each)

    def changed(self, kind: str, object_: Object) -> None:
        """One of them."""
        uid = object_["metadata"]["uid"]
        if kind == "DELETED":
            self._told.discard(uid)
            self._failed.pop(uid, None)
        elif failure(object_) is not None and uid not in self._told:
            self._failed[uid] = object_

    async def run(self) -> None:
        """For ever. Cancelling leaves what was not told for the next start."""
        while True:
            await self.step()
            await asyncio.sleep(STEP_SECONDS)

    async def step(self) -> None:
        """Tell of those that have failed and were not told of."""
        for uid, job in tuple(self._failed.items()):
            try:
                if not await self._is_told(job):
                    await self._tell(job)
            except ApiError as error:
                log.warning("a probe can't be told of", job=job["metadata"]["name"], error=str(error))
                continue
            self._told.add(uid)
            self._failed.pop(uid, None)

    async def _is_told(self, job: Object) -> bool:
        events, _ = await self._client.list_all(names.events(job["metadata"]["namespace"]))
        uid = job["metadata"]["uid"]
        return any(each.get("reason") == REASON and (each.get("regarding") or {}).get("uid") == uid for each in events)

    async def _tell(self, job: Object) -> None:
        metadata, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
        node, cause = await self._cause(job)
        limit = str(spec.get("backoffLimit", 6))
        failed = str(status.get("failed") or 0)
        self._record(
            _Node(node),
            REASON,
            "Job",
            metadata["name"],
            metadata["uid"],
            f"the driver probe of node {node} has failed {failed} times, and {limit} retries are allowed: {cause}; "
            "check the GPU driver on that node",
            warning=True,
            namespace=metadata["namespace"],
            node=node,
            failed=failed,
            backoff_limit=limit,
            cause=cause,
        )

    async def _cause(self, job: Object) -> tuple[str, str]:
        """The node, and how the probe ended last; in the Job's own words where none of its Pods is left."""
        query = {"labelSelector": f"batch.kubernetes.io/job-name={job['metadata']['name']}"}
        pods, _ = await self._client.list_all(names.pods(job["metadata"]["namespace"]), query)
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        node = node_of(job)
        for pod in reversed(pods):
            node = node or str((pod.get("spec") or {}).get("nodeName") or "")
            for container in (pod.get("status") or {}).get("containerStatuses") or ():
                ended = (container.get("state") or {}).get("terminated")
                if ended:
                    return node, crash_loops.end_text(ended, crash_loops.last_line(str(ended.get("message") or "")))
        return node, failure(job) or "failed"
