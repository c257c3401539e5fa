"""The limits of one allocation as values, and as the struct that the limiter reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from hypervisor.limits._abi import ffi, lib

NO_LIMIT = 2**64 - 1


class FileIsolation(IntEnum):
    """enum hv_isolation_mode."""

    NONE = 0
    SHARED = 1
    SOFT = 2
    HARD = 3
    PARTITIONED = 4


class FilePolicy(IntEnum):
    """enum hv_compute_policy."""

    HARD_CAP = 0
    WORK_CONSERVING = 1


class DeviceFlags(IntFlag):
    """enum hv_device_flags."""

    NONE = 0
    MIG = 1
    CHARGE_COPIES = 2
    MANAGED_UNCOUNTED = 4
    SCALE_UTILIZATION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """One device. Shares are in parts per million of GPU time; a VRAM limit of None means the card is the limit."""

    uuid: str
    host_index: int
    vram_limit_bytes: int | None
    vram_request_bytes: int
    limit_share_ppm: int
    request_share_ppm: int
    weight: int
    policy: FilePolicy
    burst_ns: int
    debt_limit_ns: int
    flags: DeviceFlags = DeviceFlags.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSet:
    """All that an allocation may have. revision is the allocation's, for people who look into the file."""

    isolation: FileIsolation
    devices: tuple[DeviceLimits, ...]
    host_memory_limit_bytes: int | None
    revision: int


def encode(limits: LimitSet, *, updated_at_ns: int) -> Any:
    """A struct hv_limits; all that is not set is zero, so equal limits are equal bytes."""
    into = ffi.new("struct hv_limits *")
    into.device_count = len(limits.devices)
    into.isolation_mode = int(limits.isolation)
    into.host_memory_limit_bytes = _or_no_limit(limits.host_memory_limit_bytes)
    into.updated_at_ns = updated_at_ns
    into.revision = limits.revision
    for entry, device in zip(into.devices, limits.devices, strict=False):
        entry.uuid = device.uuid.encode("ascii")
        entry.vram_limit_bytes = _or_no_limit(device.vram_limit_bytes)
        entry.vram_request_bytes = device.vram_request_bytes
        entry.limit_share_ppm = device.limit_share_ppm
        entry.request_share_ppm = device.request_share_ppm
        entry.weight = device.weight
        entry.policy = int(device.policy)
        entry.burst_ns = device.burst_ns
        entry.debt_limit_ns = device.debt_limit_ns
        entry.flags = int(device.flags)
        entry.host_index = device.host_index
    return into


def decode(struct: Any) -> LimitSet:
    """What a struct hv_limits says. Raises ValueError when it says what can't be."""
    count = int(struct.device_count)
    if count > lib.HV_MAX_DEVICES:
        raise ValueError(f"{count} devices")
    return LimitSet(
        isolation=FileIsolation(int(struct.isolation_mode)),
        devices=tuple(_device(struct.devices[index]) for index in range(count)),
        host_memory_limit_bytes=_limit(struct.host_memory_limit_bytes),
        revision=int(struct.revision),
    )


def _device(entry: Any) -> DeviceLimits:
    return DeviceLimits(
        uuid=bytes(ffi.buffer(entry.uuid)).split(b"\0", 1)[0].decode("ascii"),
        host_index=int(entry.host_index),
        vram_limit_bytes=_limit(entry.vram_limit_bytes),
        vram_request_bytes=int(entry.vram_request_bytes),
        limit_share_ppm=int(entry.limit_share_ppm),
        request_share_ppm=int(entry.request_share_ppm),
        weight=int(entry.weight),
        policy=FilePolicy(int(entry.policy)),
        burst_ns=int(entry.burst_ns),
        debt_limit_ns=int(entry.debt_limit_ns),
        flags=DeviceFlags(int(entry.flags)),
    )


def _or_no_limit(value: int | None) -> int:
    return NO_LIMIT if value is None else value


def _limit(value: int) -> int | None:
    return None if value == NO_LIMIT else int(value)
