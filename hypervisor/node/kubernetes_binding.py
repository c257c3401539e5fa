"""Puts single steps into effect: a grant becomes a container's allocation, limits change, shares are given back.

What is refused is an event on its Pod, stops nothing else, and is tried again after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import structlog

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, unknown_keys
from hypervisor.kube.answers import CONTAINER_MPS_PIPE
from hypervisor.kube.demands import Demands, changed_requests, spec_of
from hypervisor.kube.grants import Grant
from hypervisor.kube.pod import Pod
from hypervisor.kube.refused import event_reason
from hypervisor.model import Allocation, EventType, Inventory, IsolationMode, Refusal, RefusalReason
from hypervisor.node.commands import Commands
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_recovery import replace_owner
from hypervisor.node.kubernetes_tentative import Tentative

log = structlog.get_logger("kubernetes")
# What was refused is tried again: others may have ended meanwhile. A change of the Pod is tried at once, and so is all
# when a share was given back or a card has come into other hands.
RETRY_SECONDS = 5.0
# So many annotations that nobody knows are told one by one.
MOST_UNKNOWN = 5


class Binding:
    """For the trio main thread. Nothing is published: whoever calls does, once for many."""

    def __init__(
        self,
        settings: Settings,
        *,
        allocations: Allocations,
        commands: Commands,
        inventory: Callable[[], Inventory],
        grants: GrantStore,
        events: PodEvents,
        demands: Demands,
        tentative: Tentative,
    ) -> None:
        self._settings = settings
        self._allocations = allocations
        self._commands = commands
        self._inventory = inventory
        self._grants = grants
        self._events = events
        self._demands = demands
        self._tentative = tentative
        self._refused: dict[str, tuple[object, float]] = {}  # by key: what was refused, and when it is tried again
        self.unpublished = False  # something was granted that the node's state does not show yet
        self.bound = self.released = self.discarded = self.changed = self.refusals = 0  # since the start

    def try_again(self) -> None:
        """Something has changed by which what was refused may fit now."""
        self._refused = {key: (attempt, 0.0) for key, (attempt, _) in self._refused.items()}

    async def bind(self, grant: Grant, pod: Pod, container: str, *, answering: bool = False) -> Allocation | None:
        """Give a grant to a container; None where that is refused. answering: it has not been told anything yet."""
        if not self._inventory().devices:
            return None  # after a start: the driver has not answered yet, and no GPU of the node is known
        attempt = (pod.annotations, pod.containers)
        if self._waits(grant.uid, attempt):
            return None
        try:
            grant = self._in_its_mode(grant, pod, answering=answering)
            allocation = await self._granted(grant, pod, container)
            self._grants.save(replace_owner(grant, pod, container))
        except (AnnotationError, Refusal) as error:
            self._tell_refused(grant.uid, attempt, pod, error)
            return None
        self._refused.pop(grant.uid, None)
        self.bound += 1
        names = ", ".join(each.gpu_uuid for each in allocation.grants)
        self._events.tell(
            pod,
            EventType.NORMAL,
            "GPUDeviceAllocated",
            f"container {container} has {names}, allocation {allocation.uid}",
            allocation=allocation.uid,
        )
        self._tell_unknown(pod)
        return allocation

    def _tell_unknown(self, pod: Pod) -> None:
        """A Pod may have thousands of annotations, and other Pods' events wait behind its own."""
        unknown = unknown_keys(dict(pod.annotations))
        for key in unknown[:MOST_UNKNOWN]:
            self._events.tell(pod, EventType.WARNING, "AnnotationUnknown", f"annotation {key} means nothing here")
        if more := len(unknown[MOST_UNKNOWN:]):
            self._events.tell(pod, EventType.WARNING, "AnnotationUnknown", f"{more} more annotations mean nothing here")

    def _in_its_mode(self, grant: Grant, pod: Pod, *, answering: bool) -> Grant:
        """The grant with the mode that its container is made for. Raises Refusal for one that was made for another:
        cards that it sees can't be taken from it, nor can an instance or a server be given to it; AnnotationError."""
        demanded = self._demands.of(pod).isolation
        wanted = demanded.value if demanded in (IsolationMode.HARD, IsolationMode.PARTITIONED) else ""
        if answering:
            return msgspec.structs.replace(grant, isolation=wanted)
        if grant.isolation != wanted:
            lacking = f" and lacks the mount {CONTAINER_MPS_PIPE}" if demanded is IsolationMode.HARD else ""
            raise Refusal(
                RefusalReason.ISOLATION_CONFLICT,
                f"the container was started for {grant.isolation or 'soft or shared'} isolation, and its Pod asks for "
                f"{demanded.value}{lacking}: {self._tentative.why_unprepared(grant) or 'that was not known then'}",
                field="isolation",
                remedy="delete the Pod, so that it is made anew",
            )
        return grant

    async def _granted(self, grant: Grant, pod: Pod, container: str) -> Allocation:
        """Raises AnnotationError or Refusal."""
        demand = self._demands.of(pod)
        inventory = self._inventory()
        spec = spec_of(
            pod,
            container,
            demand,
            [device.identity for device in inventory.devices],
            settings=self._settings,
            held={each.gpu_uuid for allocation in self._allocations.all for each in allocation.grants},
            fits=lambda some: self._allocations.allocate(some, inventory, dry_run=True),
            given=grant.cards,
        )
        allocation, _, _ = await self._commands.allocate(spec, dry_run=False, reserved=grant.uid, publish=False)
        self.unpublished = True
        if allocation.uid != grant.uid:
            raise Refusal(
                RefusalReason.ALLOCATION_EXISTS,
                f"kubelet has given container {container} new device ids while its old ones are in use; "
                "restart the Pod to take the new ones",
            )
        return allocation

    async def compare(self, allocation: Allocation, pod: Pod) -> None:
        """Put in force what the annotations say now."""
        key, attempt = allocation.uid, (pod.annotations, allocation.revision)
        if self._waits(key, attempt):
            return
        try:
            demand = self._demands.of(pod)
            wanted = changed_requests(allocation, demand)
            if wanted is None:
                return
            await self._commands.update_limits(allocation.spec.allocation_id, wanted, None)
        except (AnnotationError, Refusal) as error:
            self._tell_refused(key, attempt, pod, error, reason="GPULimitsRefused")
            return
        self._refused.pop(key, None)
        self.changed += 1
        self._events.tell(pod, EventType.NORMAL, "GPULimitsChanged", "the limits of the annotations are in force")

    async def release(self, allocation_id: str, why: str) -> None:
        """End an allocation."""
        try:
            await self._commands.release(allocation_id)
        except Refusal as refusal:
            log.warning("an allocation could not be released and is tried again", id=allocation_id, reason=str(refusal))
            return
        self.released += 1
        uids = {grant.uid for grant in self._grants.all} | {each.uid for each in self._allocations.all}
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in uids}
        self.try_again()
        log.info("released", id=allocation_id, why=why)

    def discard(self, grant: Grant) -> None:
        """Forget a grant, with its files."""
        try:
            self._allocations.discard_reserved(grant.uid)
            self._grants.remove(grant.uid)
        except Refusal as refusal:
            log.warning("a grant could not be discarded and is tried again", uid=grant.uid, reason=str(refusal))
            return
        self._refused.pop(grant.uid, None)
        self.discarded += 1

    def _waits(self, key: str, attempt: object) -> bool:
        known = self._refused.get(key)
        return known is not None and known[0] == attempt and time.monotonic() < known[1]

    def _tell_refused(
        self, key: str, attempt: object, pod: Pod, error: Exception, *, reason: str | None = None
    ) -> None:
        self._refused[key] = (attempt, time.monotonic() + RETRY_SECONDS)
        self.refusals += 1
        if isinstance(error, AnnotationError):
            self._events.tell(pod, EventType.WARNING, "AnnotationInvalid", str(error), annotation=error.key)
        elif isinstance(error, Refusal):
            self._events.tell(
                pod,
                EventType.WARNING,
                reason or event_reason(error),
                str(error),
                refusal=error.reason.value,
                cause=str(error),
            )
