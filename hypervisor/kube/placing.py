"""Which cards may a Pod have? From its demand and the node's devices to device requests that admission grants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from decimal import Decimal

from hypervisor.kube.annotations import Demand
from hypervisor.model import (
    Compute,
    DeviceRequest,
    GpuIdentity,
    IsolationMode,
    Refusal,
    RefusalReason,
    Resources,
)

# Raises Refusal when these can't be granted, and changes nothing.
Fits = Callable[[tuple[DeviceRequest, ...]], object]


def place(
    demand: Demand,
    container: str,
    devices: Sequence[GpuIdentity],
    *,
    held: Collection[str],
    fits: Fits,
    given: Sequence[str] = (),
    existing: bool = False,
) -> tuple[DeviceRequest, ...]:
    """Requests for one container of a Pod. held: UUIDs of cards with allocations; given: the cards that the container
    has already. Raises Refusal.

    Named cards are taken as named. Where nothing narrows the choice it is left to admission, which takes the card with
    the least room that fits; else the first eligible ones that fit are taken. An instance for a partitioned Pod is made
    where there is none, unless only existing ones are asked for.
    """
    named = _named(demand, container)
    if given:
        _check_given(demand, container, named, given)
        if demand.isolation is IsolationMode.PARTITIONED:
            _check_instances(demand, given, devices)
        named = tuple(uuid.lower() for uuid in given)
    if named:
        return tuple(_request(demand, _by_name(name, devices).uuid) for name in named)
    count = dict(demand.container_counts).get(container, demand.count)
    if demand.isolation is IsolationMode.PARTITIONED and not existing and not demand.gpu_indices:
        return tuple(replace(_request(demand, ""), partition=demand.partition) for _ in range(count))
    eligible = [device for device in devices if _is_eligible(device, demand, held)]
    if len(eligible) < count:
        raise Refusal(
            RefusalReason.GPU_NOT_FOUND,
            f"{len(eligible)} of {len(devices)} GPUs {_narrowed(demand)}, and {count} are asked for",
            field="devices",
            remedy="ask for other GPUs, or for another node",
        )
    if len(eligible) == len(devices) and demand.isolation is not IsolationMode.PARTITIONED:
        return tuple(_request(demand, "") for _ in range(count))
    chosen: list[DeviceRequest] = []
    for _ in range(count):
        chosen.append(_first_that_fits(demand, eligible, chosen, fits))
    return tuple(chosen)


def shares_of_containers(demand: Demand) -> frozenset[str]:
    """The containers that the Pod gives GPUs of their own; empty where it says nothing of that."""
    return frozenset(name for name, _ in (*demand.container_counts, *demand.container_gpus))


def _check_given(demand: Demand, container: str, named: Sequence[str], given: Sequence[str]) -> None:
    wanted = len(named) or dict(demand.container_counts).get(container, demand.count)
    if (named and set(named) != {uuid.lower() for uuid in given}) or wanted != len(given):
        raise Refusal(
            RefusalReason.GPU_NOT_FOUND,
            f"the container was given {', '.join(given)} before the Pod's annotations were known, and they ask for "
            f"{', '.join(named) or f'{wanted} GPUs'}",
            field="devices",
            remedy="delete the Pod, so that it is made anew",
        )


def _check_instances(demand: Demand, given: Sequence[str], devices: Sequence[GpuIdentity]) -> None:
    """What the container was given may have been made for another Pod, of which ours was taken to be one."""
    for uuid in given:
        if not _is_eligible(_by_name(uuid.lower(), devices), demand, ()):
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"the container was given {uuid} before the Pod's annotations were known, and it is no instance "
                f"{demand.partition}".rstrip(),
                field="devices",
                remedy="delete the Pod, so that it is made anew",
            )


def _named(demand: Demand, container: str) -> tuple[str, ...]:
    by_container = dict(demand.container_gpus)
    if by_container:
        return by_container.get(container, ())
    if demand.container_counts and demand.gpu_ids:
        # In the order of the containers' names, as the counts are kept.
        start = 0
        for name, count in demand.container_counts:
            if name == container:
                return demand.gpu_ids[start : start + count]
            start += count
    return demand.gpu_ids


def _by_name(name: str, devices: Sequence[GpuIdentity]) -> GpuIdentity:
    for device in devices:
        if device.uuid.lower() == name:
            return device
    raise Refusal(
        RefusalReason.GPU_NOT_FOUND,
        f"the scheduler chose {name[:96]}, which is not a GPU of this node",
        field="devices",
        remedy="delete the Pod, so that it is scheduled anew",
    )


def _is_eligible(identity: GpuIdentity, demand: Demand, held: Collection[str]) -> bool:
    if demand.isolation is IsolationMode.PARTITIONED and identity.partition is None:
        return False
    if demand.partition:
        profile = identity.partition.profile if identity.partition is not None else ""
        return bool(profile) and profile.lower().removeprefix("mig ") == demand.partition.lower()
    if demand.gpu_model and identity.model != demand.gpu_model:
        return False
    if demand.gpu_indices and identity.index not in demand.gpu_indices:
        return False
    return not (demand.exclusive and identity.uuid in held)


def _first_that_fits(
    demand: Demand, eligible: Sequence[GpuIdentity], chosen: Sequence[DeviceRequest], fits: Fits
) -> DeviceRequest:
    taken = {request.gpu for request in chosen}
    refused: Refusal | None = None
    for device in eligible:
        if device.uuid in taken:
            continue
        request = _request(demand, device.uuid)
        try:
            fits((*chosen, request))
        except Refusal as refusal:
            refused = refused or refusal
            continue
        return request
    if refused is None:
        raise Refusal(RefusalReason.TOO_MANY_DEVICES, "more GPUs are asked for than there are", field="devices")
    raise refused


def _request(demand: Demand, gpu: str) -> DeviceRequest:
    if demand.isolation is IsolationMode.PARTITIONED and gpu:
        # An instance that is there is given whole.
        return DeviceRequest(gpu=gpu, requests=Resources(compute=Compute(percent=Decimal(100))))
    return DeviceRequest(gpu=gpu, requests=demand.requests, limits=demand.limits)


def _narrowed(demand: Demand) -> str:
    parts = []
    if demand.partition:
        parts.append(f"are MIG instances of profile {demand.partition}")
    if demand.gpu_model:
        parts.append(f"are a {demand.gpu_model}")
    if demand.gpu_indices:
        parts.append(f"have an index of {', '.join(map(str, demand.gpu_indices))}")
    if demand.exclusive:
        parts.append("are idle, for a whole card")
    return " and ".join(parts) or "can be used"
