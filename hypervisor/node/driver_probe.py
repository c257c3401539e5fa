"""The gate of a new node as a Kubernetes Job: its failure is the event DriverProbeFailed on that Job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import trio

from hypervisor.model import CheckResult
from hypervisor.node.kubernetes_api import ApiFailure, open_api

COMPONENT = "gpu-hypervisor-driver-probe"
REASON = "DriverProbeFailed"
LONGEST_MESSAGE = 1000
TELL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """A Job of the cluster. Without its UID 'kubectl describe job' does not find the event."""

    namespace: str
    name: str
    uid: str = ""


def failure(job: Job, node: str, refused: Iterable[CheckResult], *, now: datetime) -> dict[str, Any]:
    """The event, as Kubernetes has it. Pure but for its name."""
    what = "; ".join(f"{each.check_id}: {each.cause or ' '.join(each.evidence)}" for each in refused)
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name[:200]}.{uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": f"node {node} does not pass: {what}"[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT, "host": node},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def tell(job: Job, node: str, refused: Iterable[CheckResult], *, kubeconfig: str) -> str:
    """Write the event; why it could not be written, "" where it was. Raises StartError without a way to Kubernetes."""

    async def main() -> str:
        with trio.move_on_after(TELL_SECONDS):
            async with open_api(kubeconfig) as api:
                try:
                    await api.create_event(job.namespace, failure(job, node, refused, now=datetime.now(UTC)))
                except ApiFailure as error:
                    return str(error)
                return ""
        return f"the API server did not answer within {TELL_SECONDS:g} s"

    return trio.run(main)
