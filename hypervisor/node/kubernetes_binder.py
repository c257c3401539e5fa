"""Brings Pods and allocations together: answers kubelet at once, and learns afterwards whose each grant is.

Allocate makes limit files that are empty and not armed, so that it needs to know nothing of the Pod; a process that
starts in them waits. step() then compares what is with what should be, and does what is missing; it may be called at
any time and as often as one likes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog
import trio

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, unknown_keys
from hypervisor.kube.answers import CONTAINER_MPS_PIPE, ContainerAnswer, HostFiles, MpsShare, answer
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.demands import Demands, changed_requests, spec_of
from hypervisor.kube.grants import Grant, grant_uid
from hypervisor.kube.indices import bucket_of, device_ids
from hypervisor.kube.pod import Pod
from hypervisor.kube.reconcile import (
    Bind,
    Compare,
    Discard,
    Release,
    World,
    by_index,
    container_of,
    held_indices,
    steps,
)
from hypervisor.kube.refused import event_reason
from hypervisor.model import (
    Allocation,
    EventType,
    GpuIdentity,
    HealthState,
    Inventory,
    IsolationMode,
    OwnerKind,
    Refusal,
    RefusalReason,
)
from hypervisor.node.commands import Commands
from hypervisor.node.kubernetes_bell import Bell
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_host import Host
from hypervisor.node.kubernetes_recovery import recover, replace_owner
from hypervisor.node.kubernetes_tentative import Tentative
from hypervisor.node.kubernetes_view import Pods
from hypervisor.rpc.pod_resources import PodResourcesError

log = structlog.get_logger("kubernetes")
# What was refused is tried again: others may have ended meanwhile. A change of the Pod is tried at once.
RETRY_SECONDS = 5.0
# Kubelet is asked at least so often, for what other plugins have given.
ASK_SECONDS = 5.0
# A long answer is not asked for so often: it shall take no more than this part of the time.
ASK_PART = 0.05
LOOK_SECONDS = 2.0
UNBOUND_LOOK_SECONDS = 0.1
# What rings meanwhile is done in one go: a node that fills up is compared ten times a second and not for each Pod.
REST_SECONDS = 0.1
MOST_CONTAINERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderStatistics:
    """Grants now, and counters since the start; last_step_seconds is the time of the last comparison."""

    grants: int
    unbound: int
    bound_total: int
    released_total: int
    discarded_total: int
    changed_total: int
    refused_total: int
    steps_total: int
    last_step_seconds: float


class Binder:
    """For the trio main thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        allocations: Allocations,
        commands: Commands,
        inventory: Callable[[], Inventory],
        pods: Pods,
        host: Host,
        files: HostFiles,
        grants: GrantStore,
        events: PodEvents,
        ask_kubelet: Callable[[], Awaitable[tuple[Assignment, ...]]],
        learned: Callable[[tuple[Assignment, ...]], object],
        publish: Callable[[], object],
        bell: Bell,
    ) -> None:
        """learned is told what kubelet has given, before anything is granted by it; publish shows what was granted."""
        self._settings = settings
        self._allocations = allocations
        self._commands = commands
        self._inventory = inventory
        self._pods = pods
        self._host = host
        self._files = files
        self._grants = grants
        self._events = events
        self._ask_kubelet = ask_kubelet
        self._learned = learned
        self._publish = publish
        self._unpublished = False
        self._demands = Demands()
        self._tentative = Tentative(
            settings,
            allocations=allocations,
            commands=commands,
            inventory=inventory,
            pods=pods,
            grants=grants,
            demands=self._demands,
        )
        self._refused: dict[str, tuple[object, float]] = {}  # by key: what was refused, and when it is tried again
        self._assignments: tuple[Assignment, ...] | None = None
        self._asked_at = self._ask_seconds = 0.0
        self._native: frozenset[str] = frozenset()  # Pods that ask other plugins, known at the last question
        self._bell = bell
        self._unasked = True
        self._recovered = False
        self.kubelet_failing = ""
        self._bound = self._released = self._discarded = self._changed = self._refusals = self._steps = 0
        self._last_seconds = 0.0

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """What kubelet last said that it has given."""
        return self._assignments or ()

    def wake(self) -> None:
        """Something has changed: compare now."""
        self._bell.ring()

    async def run(self) -> None:
        """Compare for ever: when something changed, soon after a grant, and now and then. Cancel-safe."""
        while True:
            await self.step()
            waiting = any(not grant.pod_uid for grant in self._grants.all)
            recent = waiting and time.time() - max(grant.created_at for grant in self._grants.all) < RETRY_SECONDS
            await trio.sleep(REST_SECONDS)
            await self._bell.wait(UNBOUND_LOOK_SECONDS if recent else LOOK_SECONDS)

    async def allocate(self, resource: str, containers: Sequence[tuple[str, ...]]) -> tuple[ContainerAnswer, ...]:
        """Answer kubelet for each container. Raises Refusal, and then nothing is left of it."""
        self._check_ids(resource, containers)
        self._usable_cards()
        made: list[Grant] = []
        try:
            for ids in containers:
                made.append(self._reserve(resource, ids))  # noqa: PERF401 - what was made before an error must be known
        except Refusal:
            for grant in made:
                self._discard(grant)
            raise
        answers = []
        for grant in made:
            allocation = await self._bind_by_index(grant) or await self._tentative.prepare(grant)
            if allocation is not None and allocation.spec.isolation is IsolationMode.PARTITIONED:
                self._describe_cards()  # a name that the CDI file does not have yet would stop the container
            answers.append(self._answer(grant, allocation))
        self._unasked = True
        self.wake()
        return tuple(answers)

    async def step(self) -> None:
        """One comparison, and what follows from it. A refusal is an event on its Pod and stops nothing else."""
        began = time.monotonic()
        if self._pods.complete and not self._recovered:
            self._recovered = True
            recover(self._grants, self._allocations, self._pods.pods, await self._host.checkpoint() or ())
        await self._ask()
        world = World(
            pods=self._pods.pods,
            complete=self._pods.complete,
            grants=self._grants.all,
            allocations=self._allocations.all,
            assignments=self._assignments,
            asked_at=self._asked_at,
            now=time.time(),
            living=self._host.living_pods() if self._pods.failing else None,
            unarmed=self._unarmed(),
        )
        for each in steps(world):
            match each:
                case Bind():
                    await self._bind(each.grant, each.pod, each.container)
                case Compare():
                    await self._compare(each.allocation, each.pod)
                case Release():
                    await self._release(each.allocation_id, each.why)
                case Discard():
                    self._discard(each.grant)
        if self._unpublished:
            self._unpublished = False
            self._publish()
        await self._grants.sync()
        self._demands.forget_all_but(self._pods.pods)
        self._tell_held_indices()
        self._steps += 1
        self._last_seconds = time.monotonic() - began

    def _tell_held_indices(self) -> None:
        """A scheduler gave an index anew before the Pod that has it was gone."""
        pods = self._pods.pods
        holding = frozenset(grant.pod_uid for grant in self._grants.all)
        for held in held_indices(pods.values(), self._demands.indices(pods), holding):
            self._events.tell(
                held.waiting,
                EventType.NORMAL,
                "PodIndexAllocationPending",
                f"index {held.index} is still held by Pod {held.holder.label} on node {held.waiting.node}",
                index=str(held.index),
                node=held.waiting.node,
            )

    def _unarmed(self) -> frozenset[str]:
        """Names of grants that have a Pod and whose files wait; looked for only where one has no allocation."""
        held = {allocation.uid for allocation in self._allocations.all}
        bare = frozenset(grant.uid for grant in self._grants.all if grant.pod_uid and grant.uid not in held)
        return bare & frozenset(self._allocations.reserved) if bare else bare

    def statistics(self) -> BinderStatistics:
        """Counters since the start."""
        grants = self._grants.all
        return BinderStatistics(
            grants=len(grants),
            unbound=sum(not grant.pod_uid for grant in grants),
            bound_total=self._bound,
            released_total=self._released,
            discarded_total=self._discarded,
            changed_total=self._changed,
            refused_total=self._refusals,
            steps_total=self._steps,
            last_step_seconds=self._last_seconds,
        )

    def promised(self) -> Collection[str]:
        """UUIDs of instances that containers were given whose grants are not bound yet."""
        return self._tentative.promised()

    # --- Allocate

    def _check_ids(self, resource: str, containers: Sequence[tuple[str, ...]]) -> None:
        bucket = bucket_of(resource)
        known = set(device_ids(bucket)) if bucket is not None else set()
        if not 0 < len(containers) <= MOST_CONTAINERS:
            raise Refusal(RefusalReason.INVALID_ARGUMENT, f"{len(containers)} containers are asked for in one call")
        for ids in containers:
            strange = [each for each in ids if each not in known]
            if strange or not ids:
                what = f"{strange[0][:63]!r} is no id of {resource}" if strange else "no id is given"
                raise Refusal(RefusalReason.INVALID_ARGUMENT, what, field="devices_ids")

    def _usable_cards(self) -> tuple[GpuIdentity, ...]:
        inventory = self._inventory()
        usable = (HealthState.HEALTHY, HealthState.DEGRADED)
        cards = tuple(device.identity for device in inventory.devices if device.health in usable)
        if not cards:
            raise Refusal(
                RefusalReason.NOT_READY,
                "no GPU of this node can be used now",
                remedy="`hypervisor get gpus` on the node says why",
            )
        return cards

    def _reserve(self, resource: str, ids: Sequence[str]) -> Grant:
        grant = Grant(
            uid=grant_uid(resource, ids, secrets.token_hex(4)),
            resource=resource,
            device_ids=tuple(sorted(ids)),
            created_at=time.time(),
        )
        self._allocations.reserve(grant.uid)
        try:
            if self._pod_by_index(grant) is None:
                grant = self._tentative.choose(grant)
            self._grants.save(grant)
        except Refusal:
            self._allocations.discard_reserved(grant.uid)
            raise
        return grant

    def _pod_by_index(self, grant: Grant) -> tuple[Pod, str] | None:
        """The Pod to which a scheduler gave this index, and its container."""
        count = len(grant.device_ids)
        pod = by_index(self._pods.pods.values(), grant.resource, count, self._demands.indices(self._pods.pods))
        container = container_of(pod, grant.resource, count) if pod is not None else None
        if pod is None or container is None or any(each.pod_uid == pod.uid for each in self._grants.all):
            return None
        return pod, container

    async def _bind_by_index(self, grant: Grant) -> Allocation | None:
        """Where a scheduler wrote the index, whose it is is known already."""
        found = self._pod_by_index(grant)
        return await self._bind(grant, *found, answering=True) if found is not None else None

    def _answer(self, grant: Grant, allocation: Allocation | None) -> ContainerAnswer:
        """allocation: also a draft of what it will be."""
        granted = {each.gpu_uuid for each in allocation.grants} if allocation is not None else set(grant.cards)
        cards = self._usable_cards()  # with an instance that was made for this grant
        if granted:
            cards = tuple(card for card in cards if card.uuid in granted)
        elif self._tentative.may_be_partitioned(grant):
            cards = ()
        return answer(
            str(self._allocations.directory_of(grant.uid)),
            self._files,
            cards=cards,
            isolation=allocation.spec.isolation if allocation is not None else None,
            chosen=bool(granted),
            existing_nodes=self._host.existing_nodes(cards),
            mig_minors=self._host.mig_minors,
            mps=self._mps_share(allocation),
        )

    def _describe_cards(self) -> None:
        inventory = self._inventory()
        self._host.write_cdi(
            tuple(device.identity for device in inventory.devices),
            self._allocations.all,
            self._files,
            driver_version=inventory.system.driver_version,
        )

    def _mps_share(self, allocation: Allocation | None) -> MpsShare | None:
        if allocation is None or allocation.spec.isolation is not IsolationMode.HARD:
            return None
        found = self._allocations.environment(allocation)
        ours = tuple(pair for pair in found.items() if pair[0].startswith(("CUDA_MPS_", "TF_CUDA_", "TF_GPU_")))
        return MpsShare(
            environment=ours,
            pipe_directory=found.get("CUDA_MPS_PIPE_DIRECTORY", ""),
            shared_memory=self._host.mps_shared_memory,
        )

    # --- comparing

    async def _ask(self) -> None:
        """Ask kubelet what it has given, when there is a reason to."""
        unbound = any(not grant.pod_uid for grant in self._grants.all)
        native = frozenset(uid for uid, pod in self._pods.pods.items() if pod.native_gpus)
        due = time.time() - self._asked_at > max(ASK_SECONDS, self._ask_seconds / ASK_PART)
        if not (self._unasked or unbound or due or native != self._native):
            return
        asked_at = time.time()
        try:
            found = await self._ask_kubelet()
        except PodResourcesError as error:
            self.kubelet_failing = str(error)
            checkpoint = await self._host.checkpoint()
            if checkpoint is None:
                return
            found = checkpoint
        else:
            self.kubelet_failing = ""
        self._assignments, self._asked_at, self._unasked, self._native = found, asked_at, False, native
        self._ask_seconds = time.time() - asked_at
        self._learned(found)

    async def _bind(self, grant: Grant, pod: Pod, container: str, *, answering: bool = False) -> Allocation | None:
        """answering: its container has not been told anything yet."""
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
        self._bound += 1
        names = ", ".join(each.gpu_uuid for each in allocation.grants)
        self._events.tell(
            pod,
            EventType.NORMAL,
            "GPUDeviceAllocated",
            f"container {container} has {names}, allocation {allocation.uid}",
            allocation=allocation.uid,
        )
        for key in unknown_keys(dict(pod.annotations)):
            self._events.tell(pod, EventType.WARNING, "AnnotationUnknown", f"annotation {key} means nothing here")
        return allocation

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
        self._unpublished = True
        if allocation.uid != grant.uid:
            raise Refusal(
                RefusalReason.ALLOCATION_EXISTS,
                f"kubelet has given container {container} new device ids while its old ones are in use; "
                "restart the Pod to take the new ones",
            )
        return allocation

    async def _compare(self, allocation: Allocation, pod: Pod) -> None:
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
        self._changed += 1
        self._events.tell(pod, EventType.NORMAL, "GPULimitsChanged", "the limits of the annotations are in force")

    async def _release(self, allocation_id: str, why: str) -> None:
        try:
            await self._commands.release(allocation_id)
        except Refusal as refusal:
            log.warning("an allocation could not be released and is tried again", id=allocation_id, reason=str(refusal))
            return
        self._released += 1
        log.info("released", id=allocation_id, why=why)

    def _discard(self, grant: Grant) -> None:
        try:
            self._allocations.discard_reserved(grant.uid)
            self._grants.remove(grant.uid)
        except Refusal as refusal:
            log.warning("a grant could not be discarded and is tried again", uid=grant.uid, reason=str(refusal))
            return
        self._refused.pop(grant.uid, None)
        self._discarded += 1

    # --- what was refused

    def _waits(self, key: str, attempt: object) -> bool:
        known = self._refused.get(key)
        return known is not None and known[0] == attempt and time.monotonic() < known[1]

    def _tell_refused(
        self, key: str, attempt: object, pod: Pod, error: Exception, *, reason: str | None = None
    ) -> None:
        self._refused[key] = (attempt, time.monotonic() + RETRY_SECONDS)
        self._refusals += 1
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


def granted_by_pod(allocations: Sequence[Allocation]) -> Mapping[str, frozenset[str]]:
    """By Pod UID, the GPUs that it was given."""
    found: dict[str, frozenset[str]] = {}
    for allocation in allocations:
        owner = allocation.spec.owner
        if owner.kind is OwnerKind.POD:
            uuids = frozenset(each.gpu_uuid for each in allocation.grants)
            found[owner.pod_uid] = found.get(owner.pod_uid, frozenset()) | uuids
    return found
