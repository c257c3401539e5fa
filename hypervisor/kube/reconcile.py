"""What is to be done, from what is: Pods, grants, kubelet's assignments and allocations. Pure and level-triggered: the
same state always gives the same steps, whatever came before, and a state that is right gives none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.grants import Grant
from hypervisor.kube.indices import BadIndexError, index_of
from hypervisor.kube.pod import Pod
from hypervisor.model import Allocation, AllocationPhase, OwnerKind

# A grant that kubelet gave to no container for so long was for a Pod that failed admission.
UNCLAIMED_SECONDS = 120.0
# A time that lies further ahead than this is of a clock that was set back since.
CLOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Give a grant to a container, and put the Pod's limits in force."""

    grant: Grant
    pod: Pod
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """End an allocation, because its Pod is over."""

    allocation_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Forget a grant that is nobody's, with its files."""

    grant: Grant
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """See whether a Pod's annotations still say what its allocation has."""

    allocation: Allocation
    pod: Pod
    container: str


Step = Bind | Release | Discard | Compare


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is. Times are wall time in seconds.

    pods: by UID. complete: they are all of this node's, so that one that is not there is over. living: UIDs that
    kubelet's own records still have, for when the API server can't be asked; None where that is not known.
    assignments: None when kubelet could not be asked; asked_at: when it was. unarmed: names of limit files that wait
    for an allocation.
    """

    pods: Mapping[str, Pod]
    complete: bool
    grants: Sequence[Grant]
    allocations: Sequence[Allocation]
    assignments: Sequence[Assignment] | None
    asked_at: float
    now: float
    living: frozenset[str] | None = None
    unarmed: frozenset[str] = frozenset()


def steps(world: World) -> tuple[Step, ...]:
    """All that is to be done, ends before beginnings, so that what is freed can be given again."""
    ours = [each for each in world.allocations if each.spec.owner.kind is OwnerKind.POD]
    found: list[Step] = [*_releases(world, ours), *_discards(world, {each.uid for each in ours})]
    found += _rebinds(world)
    found += _binds(world)
    found += _comparisons(world, ours)
    return tuple(found)


def pod_at(assignment: Assignment, pods: Iterable[Pod]) -> Pod | None:
    """The living Pod that an assignment is of."""
    for pod in pods:
        if pod.ended:
            continue
        if assignment.pod_uid:
            if assignment.pod_uid == pod.uid:
                return pod
        elif (assignment.namespace, assignment.pod_name) == (pod.namespace, pod.name):
            return pod
    return None


def by_index(pods: Iterable[Pod], resource: str, quantity: int, index_annotation: Mapping[str, int]) -> Pod | None:
    """The only living Pod to which a scheduler gave this index; None when that is not one Pod.

    index_annotation: by Pod UID, the index that its annotation says.
    """
    try:
        wanted = index_of(resource, quantity)
    except BadIndexError:
        return None
    found = [pod for pod in pods if not pod.ended and index_annotation.get(pod.uid) == wanted]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class IndexHeld:
    """A Pod whose index another living Pod of the node has still."""

    waiting: Pod
    holder: Pod
    index: int


def held_indices(pods: Iterable[Pod], index_annotation: Mapping[str, int], holding: frozenset[str]) -> list[IndexHeld]:
    """Pods that wait for an index. holding: UIDs of the Pods that were given what they asked for."""
    by_number: dict[int, list[Pod]] = {}
    for pod in pods:
        if not pod.ended and pod.uid in index_annotation:
            by_number.setdefault(index_annotation[pod.uid], []).append(pod)
    return [
        IndexHeld(pod, holder, index)
        for index, found in by_number.items()
        for holder in found
        if holder.uid in holding
        for pod in found
        if pod.uid not in holding
    ]


def container_of(pod: Pod, resource: str, quantity: int) -> str | None:
    """The only container of a Pod that asks for this; None when that is not one."""
    found = [each.name for each in pod.containers if each.index_resource == ((resource, quantity),)]
    return found[0] if len(found) == 1 else None


def _releases(world: World, ours: Iterable[Allocation]) -> Iterable[Release]:
    for allocation in ours:
        if allocation.phase is AllocationPhase.REVOKED:
            continue
        pod_uid = allocation.spec.owner.pod_uid
        pod = world.pods.get(pod_uid)
        if pod is not None and pod.ended:
            yield Release(allocation_id=allocation.spec.allocation_id, why=f"Pod {pod.label} has ended")
        elif pod is None and world.complete:
            yield Release(allocation_id=allocation.spec.allocation_id, why="its Pod is no longer on this node")
        elif pod is None and world.living is not None and pod_uid not in world.living:
            yield Release(allocation_id=allocation.spec.allocation_id, why="kubelet has no record of its Pod any more")


def _discards(world: World, bound: set[str]) -> Iterable[Discard]:
    newest = _newest(world)
    assigned = {_key(each) for each in world.assignments or ()}
    for grant in world.grants:
        if grant.uid in bound:
            continue
        if grant.pod_uid:
            pod = world.pods.get(grant.pod_uid)
            if (pod is None and world.complete) or (pod is not None and pod.ended):
                yield Discard(grant=grant, why="its Pod is over")
        elif newest[grant.key] is not grant:
            yield Discard(grant=grant, why="kubelet has given its device ids again")
        elif (
            world.assignments is not None
            and world.asked_at > grant.created_at + UNCLAIMED_SECONDS
            and grant.key not in assigned
        ):
            yield Discard(grant=grant, why="no container has its device ids")


def _rebinds(world: World) -> Iterable[Bind]:
    """Grants of Pods that live and whose allocation was lost, in a power cut for instance: their files still wait."""
    for grant in world.grants:
        pod = world.pods.get(grant.pod_uid) if grant.uid in world.unarmed else None
        if pod is not None and not pod.ended:
            yield Bind(grant=grant, pod=pod, container=grant.container)


def _binds(world: World) -> Iterable[Bind]:
    """Of grants without a Pod, those of which kubelet says whose they are."""
    if world.assignments is None or world.asked_at > world.now + CLOCK_SECONDS:
        return
    taken = {(grant.pod_uid, grant.container) for grant in world.grants if grant.pod_uid}
    newest = _newest(world)
    assigned = {_key(each): each for each in world.assignments}
    for grant in world.grants:
        # What kubelet said before it gave these ids may be of the Pod that had them before.
        if grant.pod_uid or newest[grant.key] is not grant or world.asked_at <= _made_at(grant, world):
            continue
        assignment = assigned.get(grant.key)
        pod = pod_at(assignment, world.pods.values()) if assignment is not None else None
        if assignment is None or pod is None:
            continue
        # The name may be of a predecessor whose end is not known yet: then its container has a grant already.
        if (pod.uid, assignment.container) not in taken:
            taken.add((pod.uid, assignment.container))
            yield Bind(grant=grant, pod=pod, container=assignment.container)


def _comparisons(world: World, ours: Iterable[Allocation]) -> Iterable[Compare]:
    for allocation in ours:
        pod = world.pods.get(allocation.spec.owner.pod_uid)
        if pod is not None and not pod.ended and allocation.phase is AllocationPhase.ACTIVE:
            yield Compare(allocation=allocation, pod=pod, container=allocation.spec.owner.container)


def _newest(world: World) -> Mapping[tuple[str, tuple[str, ...]], Grant]:
    found: dict[tuple[str, tuple[str, ...]], Grant] = {}
    for grant in world.grants:
        known = found.get(grant.key)
        if known is None or _made_at(grant, world) > _made_at(known, world):
            found[grant.key] = grant
    return found


def _made_at(grant: Grant, world: World) -> float:
    """When a grant was made, by the clock as it is now: before all else where the clock was set back since."""
    return grant.created_at if grant.created_at <= world.now + CLOCK_SECONDS else 0.0


def _key(assignment: Assignment) -> tuple[str, tuple[str, ...]]:
    return assignment.resource, tuple(sorted(assignment.device_ids))
