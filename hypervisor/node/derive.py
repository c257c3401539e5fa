"""GPUs as published: what the driver observed, put beside what was granted. Pure.

Invariants kept here: a reading that failed lowers no capacity; unknown is absent with a reason and never zero; unknown
use of a card holds new grants on it; outside Kubernetes a process of nobody's doesn't make a card foreign, what it
holds is subtracted; a device keeps its revision until something about it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from hypervisor.model import (
    Allocation,
    Condition,
    ConditionStatus,
    DeviceGrant,
    DeviceObservation,
    Figure,
    FigureSource,
    Gpu,
    HealthCode,
    HealthState,
    Inventory,
    IsolationMode,
    Revision,
)
from hypervisor.model.allocation import SHARE_FULL_PPM

NEVER = Revision(0, 0)
# States in which a card takes new grants; in all others its conditions say why it doesn't.
_GRANTABLE = frozenset({HealthState.HEALTHY, HealthState.DEGRADED})
# Conditions that hold new grants, whatever the health.
_HOLDING = frozenset({HealthCode.USE_UNKNOWN, HealthCode.FOREIGN_USE, HealthCode.FABRIC_NOT_READY})
USED_BY_US = "tensor-fusion"  # as the product's users know it
USED_BY_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Requests may sum up to capacity times these."""

    tflops: float
    vram: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """What the allocations on one device come to."""

    ids: tuple[str, ...] = ()
    share_ppm: int = 0
    vram_bytes: int = 0
    isolation: IsolationMode | None = None


def derive_gpus(
    inventory: Inventory,
    allocations: Iterable[Allocation],
    *,
    foreign: Mapping[str, int | None],
    ratios: Ratios,
    previous: Mapping[str, Gpu],
    now: float,
    used_by: Mapping[str, str] | None = None,
) -> tuple[Gpu, ...]:
    """The devices ordered by index. now is wall time, for new conditions.

    foreign: by UUID, the bytes that processes of no allocation hold, None where that can't be said. used_by: by UUID,
    who else has the card, where Kubernetes knows.

    A device equal to the one in previous (by UUID) is that very object; one that changed has the revision NEVER, for
    the caller to fill in when it publishes.
    """
    granted = _granted_by_device(allocations)
    gpus = []
    for device in sorted(inventory.devices, key=lambda device: device.identity.index):
        uuid = device.identity.uuid
        before = previous.get(uuid)
        gpu = _derive(device, granted.get(uuid, _Granted()), foreign, ratios, (used_by or {}).get(uuid, ""))
        gpu = replace(gpu, conditions=settle(gpu.conditions, before.conditions if before else (), now))
        unchanged = before is not None and replace(gpu, revision=before.revision) == before
        gpus.append(before if unchanged and before is not None else gpu)
    return tuple(gpus)


def settle(conditions: Iterable[Condition], previous: Iterable[Condition], now: float) -> tuple[Condition, ...]:
    """Conditions with the time of their last transition: kept while status and code stay, now when they change.

    A condition that brings a time of its own keeps it.
    """
    known = {condition.type: condition for condition in previous}
    settled = []
    for condition in conditions:
        before = known.get(condition.type)
        if condition.last_transition_at:
            settled.append(condition)
        elif before is not None and (before.status, before.code) == (condition.status, condition.code):
            settled.append(replace(condition, last_transition_at=before.last_transition_at))
        else:
            settled.append(replace(condition, last_transition_at=now))
    return tuple(settled)


def _granted_by_device(allocations: Iterable[Allocation]) -> Mapping[str, _Granted]:
    found: dict[str, _Granted] = {}
    for allocation in allocations:
        for grant in allocation.grants:
            found[grant.gpu_uuid] = _with_grant(found.get(grant.gpu_uuid, _Granted()), allocation, grant)
    return found


def _with_grant(granted: _Granted, allocation: Allocation, grant: DeviceGrant) -> _Granted:
    return _Granted(
        ids=(*granted.ids, allocation.spec.allocation_id),
        share_ppm=granted.share_ppm + grant.request_share_ppm,
        vram_bytes=granted.vram_bytes + grant.request_vram_bytes,
        isolation=granted.isolation or allocation.spec.isolation,
    )


def _derive(
    device: DeviceObservation, granted: _Granted, foreign: Mapping[str, int | None], ratios: Ratios, used_by: str
) -> Gpu:
    unattributed = _unattributed(device, foreign)
    conditions = device.conditions
    codes = {condition.code for condition in conditions}
    allocatable = device.health in _GRANTABLE and not codes & _HOLDING
    used_by = used_by or (USED_BY_US if granted.ids else "")
    if unattributed.value is None:
        allocatable = False
        used_by = used_by or USED_BY_UNKNOWN
        if HealthCode.USE_UNKNOWN not in codes:
            conditions = (*conditions, _use_unknown(unattributed.absent_reason))
    share = granted.share_ppm / SHARE_FULL_PPM
    return Gpu(
        identity=device.identity,
        tflops=device.tflops,
        vram_bytes=device.vram_bytes,
        readings=device.readings,
        topology=device.topology,
        health=device.health,
        conditions=conditions,
        active_isolation=granted.isolation,
        used_by=used_by,
        allocation_ids=granted.ids,
        requested_share_ppm=granted.share_ppm,
        requested_tflops=round(share * (device.tflops.value or 0.0), 6),
        requested_vram_bytes=granted.vram_bytes,
        available_tflops=_available_tflops(device, share, ratios),
        available_vram_bytes=_available_vram(device, granted.vram_bytes, unattributed, ratios),
        unattributed_bytes=unattributed,
        tflops_ratio=ratios.tflops,
        vram_ratio=ratios.vram,
        allocatable=allocatable,
        revision=NEVER,
    )


def _unattributed(device: DeviceObservation, foreign: Mapping[str, int | None]) -> Figure[int]:
    readings = device.readings
    held = foreign.get(device.identity.uuid)
    if held is not None:
        used = readings.memory_used_bytes
        observed_at = used.observed_at if used.value is not None else 0.0
        return Figure(value=held, source=FigureSource.DRIVER, observed_at=observed_at, stale=used.stale)
    return Figure.absent(
        readings.processes_absent_reason
        or readings.memory_used_bytes.absent_reason
        or "the driver does not say what the card's processes hold"
    )


def _use_unknown(reason: str) -> Condition:
    return Condition(
        type=HealthCode.USE_UNKNOWN.value,
        status=ConditionStatus.TRUE,
        code=HealthCode.USE_UNKNOWN,
        message=f"nothing new is granted on this card until its use is known: {reason}",
        last_transition_at=0.0,
    )


def _available_tflops(device: DeviceObservation, share: float, ratios: Ratios) -> Figure[float]:
    capacity = device.tflops
    if capacity.value is None:
        return Figure.absent(capacity.absent_reason)
    # Six decimals are a microTFLOPS: what the decimal amounts of requests resolve.
    free = max(0.0, round(capacity.value * (ratios.tflops - share), 6))
    return Figure(value=free, source=capacity.source, observed_at=capacity.observed_at, stale=capacity.stale)


def _available_vram(
    device: DeviceObservation, requested: int, unattributed: Figure[int], ratios: Ratios
) -> Figure[int]:
    capacity = device.vram_bytes
    if capacity.value is None:
        return Figure.absent(capacity.absent_reason)
    if unattributed.value is None:
        return Figure.absent(unattributed.absent_reason)
    # What driver and firmware keep for themselves is part of the capacity and can't be had.
    reserved = device.readings.memory_reserved_bytes.value or 0
    free = int(capacity.value * _exact(ratios.vram)) - requested - unattributed.value - reserved
    return Figure(
        value=max(0, free), source=capacity.source, observed_at=unattributed.observed_at, stale=capacity.stale
    )


def _exact(ratio: float) -> Fraction:
    """A ratio as the decimal that was written, as admission takes it: 1.1 is eleven tenths."""
    return Fraction(Decimal(repr(ratio)))
