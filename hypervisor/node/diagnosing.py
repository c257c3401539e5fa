"""The doctor in the daemon: its checks run on a worker thread, over the current snapshot and the machine's files.

It is imported when it is asked for the first time: a daemon that restarts has Pods to adopt before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from hypervisor.config import Settings
from hypervisor.model import Diagnosis, NodeSnapshot, Refusal, RefusalReason
from hypervisor.node.journal import Journal
from hypervisor.rpc import convert

if TYPE_CHECKING:
    from hypervisor.doctor.facts import NodeFacts
    from hypervisor.doctor.subject import NodeSubject

DEADLINE_SECONDS = 20.0
MOST_WAITING = 8
_EVENTS = 1000


class Diagnosing:
    """Runs one diagnosis at a time; in trio."""

    def __init__(
        self, snapshot: Callable[[], NodeSnapshot], journal: Journal, settings: Callable[[], Settings]
    ) -> None:
        self._snapshot = snapshot
        self._journal = journal
        self._settings = settings
        self._limiter = trio.CapacityLimiter(1)

    async def diagnose(self, subject: str) -> Diagnosis:
        """As rpc.Diagnose. Cancelling stops the waiting; a check that hangs in the kernel keeps its thread, and the
        next diagnosis is refused until it is back. Raises Refusal."""
        examine = _examination(subject, self._snapshot())
        if self._limiter.statistics().tasks_waiting >= MOST_WAITING:
            raise Refusal(RefusalReason.NOT_READY, f"{MOST_WAITING} diagnoses wait already", remedy="try again soon")
        with trio.move_on_after(DEADLINE_SECONDS):
            return await trio.to_thread.run_sync(
                self._run, examine, self._snapshot(), abandon_on_cancel=True, limiter=self._limiter
            )
        raise Refusal(
            RefusalReason.NOT_READY,
            f"the checks were not done within {DEADLINE_SECONDS:g} s: something they read hangs",
            remedy="run 'hypervisor doctor node' on the machine, and look for tasks in state D",
        )

    def _run(self, examine: Callable[[NodeSubject], Diagnosis], snapshot: NodeSnapshot) -> Diagnosis:
        from hypervisor.doctor.root import Root
        from hypervisor.doctor.subject import NodeSubject

        settings = self._settings()
        return examine(
            NodeSubject(
                root=Root(settings.host_root_path),
                facts=self._facts(snapshot),
                now=time.time(),
                http_port=settings.http_port,
                xid_policy_file=Path(settings.xid_policy) if settings.xid_policy else None,
            )
        )

    def _facts(self, snapshot: NodeSnapshot) -> NodeFacts:
        from hypervisor.doctor.facts import node_facts

        now = convert.Moment.now()
        usages = {usage.allocation_id: usage for usage in snapshot.usages}
        return node_facts(
            convert.node_to_proto(snapshot, now),
            gpus=[convert.gpu_to_proto(gpu, now) for gpu in snapshot.gpus],
            allocations=[
                convert.allocation_to_proto(allocation, usages.get(allocation.spec.allocation_id), now)
                for allocation in snapshot.allocations
            ],
            events=[convert.event_to_proto(event) for event in self._journal.read((0, 0), _EVENTS)],
        )


def _examination(subject: str, snapshot: NodeSnapshot) -> Callable[[NodeSubject], Diagnosis]:
    """What is to be run. Raises Refusal for a subject that there is not."""
    from hypervisor.doctor.diagnose import diagnose_gpu, diagnose_node, diagnose_pod

    kind, _, name = subject.partition("/")
    if not subject:
        return diagnose_node
    if kind == "gpu":
        gpu = snapshot.gpu(name)
        if gpu is None:
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"there is no GPU {name} on this node",
                field="subject",
                remedy="see 'hypervisor get gpus'",
            )
        uuid = gpu.identity.uuid
        return lambda node: diagnose_gpu(node, uuid)
    namespace, _, pod = name.partition("/")
    if kind == "pod" and namespace and pod and "/" not in pod:
        return lambda node: diagnose_pod(node, namespace, pod)
    raise Refusal(
        RefusalReason.INVALID_ARGUMENT,
        f"{subject!r} names nothing that can be examined",
        field="subject",
        remedy='leave it empty for the node, or give "pod/NAMESPACE/NAME" or "gpu/UUID"',
    )
