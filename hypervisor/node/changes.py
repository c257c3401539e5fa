"""What is worth an event in the step from one snapshot to the next; pure.

What the first reading after a start finds was there before the daemon looked, and is no event of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypervisor.model import (
    Allocation,
    Condition,
    ConditionStatus,
    EventType,
    Gpu,
    HealthState,
    NodeSnapshot,
    ObjectKind,
    ObjectReference,
    OwnerKind,
)

_ILL = frozenset({HealthState.UNHEALTHY, HealthState.LOST})
_WELL = frozenset({HealthState.HEALTHY, HealthState.DEGRADED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that has happened, as the journal takes it."""

    type: EventType
    reason: str
    regarding: ObjectReference
    message: str
    fields: tuple[tuple[str, str], ...] = ()


def changes(old: NodeSnapshot, new: NodeSnapshot) -> Iterator[Change]:
    """Events between two snapshots, the node's first."""
    yield from _readiness(old, new)
    before = {gpu.identity.uuid: gpu for gpu in old.gpus}
    after = {gpu.identity.uuid: gpu for gpu in new.gpus}
    if not before:
        return
    for uuid, gpu in after.items():
        if uuid not in before:
            yield _gpu(gpu, EventType.NORMAL, "GPUDiscovered", f"{gpu.identity.model} at {gpu.identity.pci_bus_id}")
        else:
            yield from _gpu_changes(before[uuid], gpu)
            yield from _told_to_its_workloads(before[uuid], gpu, new)
    for uuid, gpu in before.items():
        if uuid not in after:
            held = f"; it held {len(gpu.allocation_ids)} allocations" if gpu.allocation_ids else ""
            # An instance goes when somebody ends it, which is no trouble unless something is on it.
            usual = gpu.identity.partition is not None and not gpu.allocation_ids
            kind = EventType.NORMAL if usual else EventType.WARNING
            what = "card" if gpu.identity.partition is None else "instance"
            yield _gpu(gpu, kind, "GPURemoved", f"the driver no longer lists this {what}{held}")


def node_reference(snapshot: NodeSnapshot) -> ObjectReference:
    """The node as the object of an event."""
    return ObjectReference(kind=ObjectKind.NODE, name=snapshot.identity.name, uid=snapshot.identity.uid)


def gpu_reference(gpu: Gpu) -> ObjectReference:
    """A GPU as the object of an event; its name is that of the GPU object, the UUID in lower case."""
    return ObjectReference(kind=ObjectKind.GPU, name=gpu.identity.uuid.lower(), uid=gpu.identity.uuid)


def allocation_reference(allocation: Allocation) -> ObjectReference:
    """Whom an event about an allocation is about: its Pod, or itself."""
    owner = allocation.spec.owner
    if owner.kind is OwnerKind.POD:
        return ObjectReference(kind=ObjectKind.POD, name=owner.name, uid=owner.pod_uid, namespace=owner.namespace)
    return ObjectReference(kind=ObjectKind.ALLOCATION, name=allocation.spec.allocation_id, uid=allocation.uid)


def _gpu_changes(old: Gpu, new: Gpu) -> Iterator[Change]:
    if old.health is not new.health:
        well = new.health is HealthState.HEALTHY
        yield _gpu(
            new,
            EventType.NORMAL if well else EventType.WARNING,
            _reason(old.health, new.health),
            f"from {old.health.value} to {new.health.value}{_because(new)}",
            ("from", old.health.value),
            ("to", new.health.value),
        )
    elif old.allocatable and not new.allocatable:
        yield _gpu(new, EventType.WARNING, "GPUGrantsHeld", f"nothing new is granted on this card{_because(new)}")
    elif new.allocatable and not old.allocatable:
        yield _gpu(new, EventType.NORMAL, "GPUGrantsResumed", "shares of this card can be granted again")


def _told_to_its_workloads(old: Gpu, gpu: Gpu, snapshot: NodeSnapshot) -> Iterator[Change]:
    """Nothing else tells a Pod that its card has failed: the kubelet leaves running containers as they are."""
    ill, was_ill = gpu.health in _ILL, old.health in _ILL
    if ill is was_ill:
        return
    uuid = gpu.identity.uuid
    fields = (("gpu", uuid), ("to", gpu.health.value))
    for allocation in snapshot.allocations:
        if allocation.spec.allocation_id not in gpu.allocation_ids:
            continue
        regarding = allocation_reference(allocation)
        if ill:
            text = f"its GPU {uuid} is {gpu.health.value}{_because(gpu)}; start it anew on another card"
            yield Change(
                type=EventType.WARNING, reason="GpuUnhealthy", regarding=regarding, message=text, fields=fields
            )
        else:
            text = f"its GPU {uuid} is {gpu.health.value} again"
            yield Change(type=EventType.NORMAL, reason="GpuRecovered", regarding=regarding, message=text, fields=fields)


def _reason(old: HealthState, new: HealthState) -> str:
    """The two changes that people wait for have names of their own; all others are changes."""
    if new in _ILL:
        return "GpuUnhealthy" if old not in _ILL else "GPUHealthChanged"
    return "GpuRecovered" if old in _ILL and new in _WELL else "GPUHealthChanged"


def _gpu(gpu: Gpu, kind: EventType, reason: str, message: str, *fields: tuple[str, str]) -> Change:
    return Change(type=kind, reason=reason, regarding=gpu_reference(gpu), message=message, fields=fields)


def _because(gpu: Gpu) -> str:
    told = [condition.message for condition in gpu.conditions if condition.status is ConditionStatus.TRUE]
    return f": {'; '.join(told)}" if told else ""


def _readiness(old: NodeSnapshot, new: NodeSnapshot) -> Iterator[Change]:
    before, after = _ready(old), _ready(new)
    if after is None or (before is not None and (before.status, before.code) == (after.status, after.code)):
        return
    ready = after.status is ConditionStatus.TRUE
    yield Change(
        type=EventType.NORMAL if ready else EventType.WARNING,
        reason="NodeReady" if ready else "NodeNotReady",
        regarding=node_reference(new),
        message=f"{len(new.gpus)} GPUs can be shared" if ready else after.message,
        fields=(("code", after.code.value), ("gpus", str(len(new.gpus)))),
    )


def _ready(snapshot: NodeSnapshot) -> Condition | None:
    return next((condition for condition in snapshot.conditions if condition.type == "Ready"), None)
