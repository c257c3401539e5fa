"""Who may use what: the request for a share, and the grant."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum

from hypervisor.model.revision import Revision

SHARE_FULL_PPM = 1_000_000


class IsolationMode(Enum):
    """How a share is enforced; see the API for what each mode promises."""

    SHARED = "shared"
    SOFT = "soft"
    HARD = "hard"
    PARTITIONED = "partitioned"


class QosClass(Enum):
    """Weight among those who borrow idle time: low 1, medium 2, high 3, critical 4."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def weight(self) -> int:
        return {"low": 1, "medium": 2, "high": 3, "critical": 4}[self.value]


class ComputePolicy(Enum):
    """What may be used above the limit: nothing, or idle time that is given back."""

    HARD_CAP = "hard-cap"
    WORK_CONSERVING = "work-conserving"


class AllocationPhase(Enum):
    """Life of an allocation: active, revoked (last limits hold, new memory refused), ending (owner gone)."""

    ACTIVE = "active"
    REVOKED = "revoked"
    ENDING = "ending"


class OwnerKind(Enum):
    """What an allocation belongs to and ends with."""

    PROCESS = "process"
    POD = "pod"
    DECLARED = "declared"
    NAMED = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner of an allocation. For a process: pid, start time in clock ticks since boot, and uid, from the kernel.

    name is the command of a process, the Pod's name, the file of a declared one, or the given name.
    """

    kind: OwnerKind
    name: str
    pid: int = 0
    start_time_ticks: int = 0
    uid: int = 0
    boot_id: str = ""
    namespace: str = ""
    pod_uid: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """An amount of compute, exact: dense FP16 TFLOPS, or percent of GPU time. Exactly one is set."""

    tflops: Decimal | None = None
    percent: Decimal | None = None

    def __post_init__(self) -> None:
        if (self.tflops is None) == (self.percent is None):
            raise ValueError("compute is given in TFLOPS or in percent, and in one of them")

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent is not None else f"{self.tflops} TFLOPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A request or a limit on one device. None: for a request the limit's figure, for a limit the card."""

    compute: Compute | None = None
    vram_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One device as asked for. gpu is a UUID (case ignored), an index ("0"), or "" to let the daemon choose.

    partition: with partitioned isolation the profile of the MIG instance, by name or id; "": what fits best.
    """

    gpu: str = ""
    requests: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSpec:
    """What was asked for."""

    allocation_id: str
    owner: Owner
    devices: tuple[DeviceRequest, ...]
    isolation: IsolationMode = IsolationMode.SOFT
    qos: QosClass = QosClass.MEDIUM
    policy: ComputePolicy = ComputePolicy.HARD_CAP
    host_memory_limit_bytes: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """One device as granted: what the decimals came to. vram None: the card is the limit."""

    gpu_uuid: str
    gpu_index: int
    request_share_ppm: int
    limit_share_ppm: int
    request_vram_bytes: int
    limit_vram_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A granted share. uid is made by the daemon and names the directory of the limit files."""

    spec: AllocationSpec
    uid: str
    phase: AllocationPhase
    grants: tuple[DeviceGrant, ...]
    created_at: float
    revision: Revision
    directory: str
    simulated: bool = False
