"""From an allocation to what its limit file says, and back for an allocation whose record was lost."""

from __future__ import annotations

from decimal import Decimal

from hypervisor.config import Settings
from hypervisor.limits import DeviceFlags, DeviceLimits, FileIsolation, FilePolicy, LimitSet
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    Compute,
    ComputePolicy,
    DeviceGrant,
    DeviceRequest,
    IsolationMode,
    Owner,
    OwnerKind,
    QosClass,
    Resources,
    Revision,
)
from hypervisor.model.allocation import SHARE_FULL_PPM

_NS_PER_MS = 1_000_000
_ISOLATION = {
    IsolationMode.SHARED: FileIsolation.SHARED,
    IsolationMode.SOFT: FileIsolation.SOFT,
    IsolationMode.HARD: FileIsolation.HARD,
    IsolationMode.PARTITIONED: FileIsolation.PARTITIONED,
}
_POLICY = {
    ComputePolicy.HARD_CAP: FilePolicy.HARD_CAP,
    ComputePolicy.WORK_CONSERVING: FilePolicy.WORK_CONSERVING,
}


def limit_set(allocation: Allocation, settings: Settings) -> LimitSet:
    """What the limit file of an allocation says under these settings."""
    return LimitSet(
        isolation=_ISOLATION[allocation.spec.isolation],
        devices=tuple(_device(allocation, grant, settings) for grant in allocation.grants),
        host_memory_limit_bytes=allocation.spec.host_memory_limit_bytes,
        revision=allocation.revision.revision,
    )


def _device(allocation: Allocation, grant: DeviceGrant, settings: Settings) -> DeviceLimits:
    return DeviceLimits(
        uuid=grant.gpu_uuid,
        host_index=grant.gpu_index,
        vram_limit_bytes=grant.limit_vram_bytes,
        vram_request_bytes=grant.request_vram_bytes,
        limit_share_ppm=grant.limit_share_ppm,
        request_share_ppm=grant.request_share_ppm,
        weight=allocation.spec.qos.weight,
        policy=_POLICY[allocation.spec.policy],
        burst_ns=round(settings.burst_milliseconds * _NS_PER_MS),
        debt_limit_ns=round(settings.debt_milliseconds * _NS_PER_MS),
        flags=(DeviceFlags.MIG if grant.gpu_uuid.startswith("MIG-") else DeviceFlags.NONE)
        | (DeviceFlags.CHARGE_COPIES if settings.charge_copies else DeviceFlags.NONE),
    )


def recovered(
    limits: LimitSet, *, uid: str, allocation_id: str, directory: str, created_at: float, revision: Revision
) -> Allocation:
    """An allocation whose record was lost, from what its limit file still enforces.

    Its owner is not known any more, so it is kept under its name until somebody releases it.
    """
    grants = tuple(
        DeviceGrant(
            gpu_uuid=device.uuid,
            gpu_index=device.host_index,
            request_share_ppm=device.request_share_ppm,
            limit_share_ppm=device.limit_share_ppm,
            request_vram_bytes=device.vram_request_bytes,
            limit_vram_bytes=device.vram_limit_bytes,
        )
        for device in limits.devices
    )
    weights = {qos.weight: qos for qos in QosClass}
    first = limits.devices[0] if limits.devices else None
    spec = AllocationSpec(
        allocation_id=allocation_id,
        owner=Owner(kind=OwnerKind.NAMED, name=allocation_id),
        devices=tuple(_request(grant) for grant in grants),
        isolation={file: mode for mode, file in _ISOLATION.items()}.get(limits.isolation, IsolationMode.SOFT),
        qos=weights.get(first.weight, QosClass.MEDIUM) if first else QosClass.MEDIUM,
        policy=ComputePolicy.WORK_CONSERVING
        if first and first.policy is FilePolicy.WORK_CONSERVING
        else ComputePolicy.HARD_CAP,
        host_memory_limit_bytes=limits.host_memory_limit_bytes,
    )
    return Allocation(
        spec=spec,
        uid=uid,
        phase=AllocationPhase.ACTIVE,
        grants=grants,
        created_at=created_at,
        revision=revision,
        directory=directory,
    )


def _request(grant: DeviceGrant) -> DeviceRequest:
    return DeviceRequest(
        gpu=grant.gpu_uuid,
        requests=Resources(compute=_compute(grant.request_share_ppm), vram_bytes=grant.request_vram_bytes or None),
        limits=Resources(compute=_compute(grant.limit_share_ppm), vram_bytes=grant.limit_vram_bytes),
    )


def _compute(share_ppm: int) -> Compute | None:
    return Compute(percent=Decimal(share_ppm) * 100 / SHARE_FULL_PPM) if share_ppm else None
