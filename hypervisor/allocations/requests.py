"""Reading a request: are its names and its owner usable, does it repeat an earlier one, what does a change change?"""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum

from hypervisor.limits import checked_name
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    DeviceGrant,
    DeviceRequest,
    Owner,
    OwnerKind,
    Refusal,
    RefusalReason,
    Resources,
)
from hypervisor.model.quantity import MAX_BYTES, format_bytes


def check_spec(spec: AllocationSpec) -> None:
    """Raises Refusal when a name would leave its directory, or when the owner is not complete."""
    _check_name(spec.allocation_id, "allocation_id", most=63)
    _check_owner(spec.owner)
    quota = spec.host_memory_limit_bytes
    if quota is not None and not 0 < quota <= MAX_BYTES:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{quota} is not an amount of host memory that can be limited",
            field="host_memory_limit_bytes",
            remedy="give a number of bytes above 0, or leave it out for no quota",
        )


def _check_owner(owner: Owner) -> None:
    if owner.kind is OwnerKind.PROCESS and (owner.pid <= 0 or owner.start_time_ticks <= 0):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            "the owner is a process, and which one was not learned from the kernel",
            field="owner.process",
            remedy="ask over the owner socket, or let the allocation be owned by a name",
        )
    if owner.kind is OwnerKind.POD:
        _check_name(owner.namespace, "owner.pod.namespace", most=253)
        _check_name(owner.name, "owner.pod.name", most=253)
        if owner.namespace == "by-uid":
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                "a namespace called by-uid can't have allocations: the limit files use that name",
                field="owner.pod.namespace",
                remedy="use another namespace",
            )


def _check_name(name: str, field: str, *, most: int) -> None:
    if not name:
        raise Refusal(RefusalReason.INVALID_ARGUMENT, "the name is empty", field=field, remedy="give a name")
    try:
        checked_name(name, most=most)
    except ValueError as error:
        raise Refusal(RefusalReason.INVALID_ARGUMENT, str(error), field=field, remedy="use another name") from error


def check_repeat(held: Allocation, spec: AllocationSpec) -> None:
    """Raises Refusal unless spec repeats the request that was granted, so that the same allocation is the answer."""
    if held.phase is not AllocationPhase.ACTIVE:
        raise Refusal(
            RefusalReason.ALLOCATION_EXISTS,
            f"allocation '{spec.allocation_id}' is being given up and still has processes",
            field="allocation_id",
            remedy="wait until its processes have ended, or use another id",
        )
    differing = [
        part.name for part in fields(AllocationSpec) if getattr(held.spec, part.name) != getattr(spec, part.name)
    ]
    if differing:
        told = "; ".join(
            f"its {_SPOKEN.get(name, name)} {_figures(getattr(held.spec, name))}, not {_figures(getattr(spec, name))}"
            for name in differing
        )
        raise Refusal(
            RefusalReason.ALLOCATION_EXISTS,
            f"allocation '{spec.allocation_id}' exists with other figures than are asked for: {told}",
            field=differing[0],
            remedy="change its limits with set-limits, release it first, or use another id",
        )


_SPOKEN = {"devices": "share is", "owner": "owner is", "isolation": "isolation is", "policy": "policy is"}


def _figures(value: object) -> str:
    """A part of a request, in words that tell it from another."""
    match value:
        case tuple():
            return " and ".join(_figures(part) for part in value) or "none"
        case DeviceRequest():
            where = f" on GPU {value.gpu[:96]}" if value.gpu else ""
            limits, requests = _resources(value.limits), _resources(value.requests)
            return (f"{limits}, of which {requests} promised" if value.requests != Resources() else limits) + where
        case Owner():
            name = f"{value.namespace}/{value.name}" if value.namespace else value.name
            return f"{value.kind.value} {name[:96]}" + (f" (pid {value.pid})" if value.pid else "")
        case Enum():
            return str(value.value)
    return str(value)[:96]


def _resources(resources: Resources) -> str:
    compute = "all compute" if resources.compute is None else str(resources.compute)
    vram = "all VRAM" if resources.vram_bytes is None else f"{resources.vram_bytes} bytes"
    return f"{compute} with {vram}"


def merged(allocation: Allocation, changes: tuple[DeviceRequest, ...]) -> tuple[DeviceRequest, ...]:
    """The device requests of an allocation with changes by device, in its order; what is absent stays as it is.

    Raises Refusal when a change names a device that the allocation does not have, or one twice.
    """
    result = list(allocation.spec.devices)
    changed: set[int] = set()
    if len(changes) > len(result):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{len(changes)} devices are given, and the allocation has {len(result)}",
            field="devices",
            remedy="give each device of the allocation once, in its order",
        )
    for position, change in enumerate(changes):
        place = _place(allocation.grants, change.gpu, position)
        if place in changed:
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                f"{allocation.grants[place].gpu_uuid} is given twice",
                field=f"devices[{position}].gpu",
                remedy="give each device of the allocation once",
            )
        changed.add(place)
        result[place] = replace(
            result[place],
            requests=_over(result[place].requests, change.requests),
            limits=_over(result[place].limits, change.limits),
        )
    return tuple(result)


def _place(grants: tuple[DeviceGrant, ...], gpu: str, position: int) -> int:
    wanted = gpu.strip().lower()
    if not wanted:
        return position
    for place, grant in enumerate(grants):
        if grant.gpu_uuid.lower() == wanted or (
            str(grant.gpu_index) == wanted and not grant.gpu_uuid.startswith("MIG-")
        ):
            return place
    raise Refusal(
        RefusalReason.INVALID_ARGUMENT,
        f"the allocation has no device {gpu[:96]!r}",
        field=f"devices[{position}].gpu",
        remedy=f"give one of {', '.join(grant.gpu_uuid for grant in grants)}; to move to another GPU, release it and "
        "ask anew",
    )


def _over(now: Resources, change: Resources) -> Resources:
    return Resources(
        compute=change.compute if change.compute is not None else now.compute,
        vram_bytes=change.vram_bytes if change.vram_bytes is not None else now.vram_bytes,
    )


def described(grants: tuple[DeviceGrant, ...]) -> str:
    """Grants for people: 40% and 8Gi on GPU-..., for each device."""
    return "; ".join(
        f"{grant.limit_share_ppm / 10_000:g}% and "
        f"{'the whole VRAM' if grant.limit_vram_bytes is None else format_bytes(grant.limit_vram_bytes)} "
        f"on {grant.gpu_uuid}"
        for grant in grants
    )
