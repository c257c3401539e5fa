"""What an allocation uses, by its own account and by the driver's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hypervisor.model.figure import Figure


class Enforcement(Enum):
    """How sure it is that a limit holds; see the API."""

    NONE = "none"
    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    COOPERATIVE = "cooperative"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """What one launch of a function is charged; launches by the function that paid for them."""

    name: str
    seconds: float
    launches: int
    samples: int
    graph: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How a compute limit is kept on one device; see the API for each field."""

    achieved_ratio: Figure[float]
    balance_seconds: Figure[float]
    correction: float = 1.0
    correction_frozen: str = ""
    lent_ratio: float = 0.0
    costs: tuple[LearnedCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """Use of one device by one allocation. busy_ratio: share of GPU time over the last window, 0 to 1."""

    gpu_uuid: str
    reserved_bytes: Figure[int]
    overhead_bytes: Figure[int]
    busy_ratio: Figure[float]
    throttled_seconds_total: Figure[float]
    launches_total: Figure[int]
    denials_total: Figure[int]
    over: bool
    pacing: Pacing | None = None
    effective_sm_percent: float | None = None  # of a hard share: what the driver rounds it to


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedProcess:
    """A process that has attached to a limit file; host_pid is found by the daemon, None when it could not be."""

    slot: int
    pid: int
    pid_namespace: int
    start_time_ticks: int
    host_pid: int | None
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationUsage:
    """Use of an allocation, with a finding when its usage file can't be trusted any more."""

    allocation_id: str
    devices: tuple[DeviceUsage, ...]
    processes: tuple[AttachedProcess, ...]
    enforcement: Enforcement
    tampering: str = ""
    bypassing_pids: tuple[int, ...] = ()  # on the host: use a GPU and have not attached
