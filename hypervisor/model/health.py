"""Health of a GPU, and conditions as Kubernetes has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HealthState(Enum):
    """What can be said of a GPU. Blind means that we can't see it, which says nothing about the card."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    BLIND = "blind"
    DRAINING = "draining"
    UNKNOWN = "unknown"


class HealthCode(Enum):
    """Reasons of conditions, of GPUs and of the node; machine-readable and stable."""

    OK = "Ok"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    NVML_NOT_FOUND = "NvmlNotFound"
    NVML_FAILED = "NvmlFailed"
    NO_GPUS = "NoGpus"
    READER_RESTARTING = "ReaderRestarting"
    READER_HUNG = "ReaderHung"
    READING_REJECTED = "ReadingRejected"
    GPU_LOST = "GpuLost"
    GPU_MISSING = "GpuMissing"
    GPU_UNREADABLE = "GpuUnreadable"
    GPU_DETACHED = "GpuDetached"
    CLOCKS_REDUCED = "ClocksReduced"
    XID_ERROR = "XidError"
    RECOVERY_NEEDED = "RecoveryNeeded"
    ECC_UNCORRECTED = "EccUncorrected"
    ROW_REMAP_PENDING = "RowRemapPending"
    ROW_REMAP_FAILED = "RowRemapFailed"
    PAGES_RETIRED = "PagesRetired"
    MEMORY_UNREPAIRABLE = "MemoryUnrepairable"
    NVLINK_DOWN = "NvLinkDown"
    FABRIC_NOT_READY = "FabricNotReady"
    FABRIC_DEGRADED = "FabricDegraded"
    VGPU_UNLICENSED = "VgpuUnlicensed"
    APPLICATION_FAULTS = "ApplicationFaults"
    ACCESS_DENIED = "AccessDenied"
    GPUS_NOT_SHOWN = "GpusNotShown"
    CAPACITY_HELD = "CapacityHeld"
    TOOLKIT_NOT_READY = "ToolkitNotReady"
    USE_UNKNOWN = "UseUnknown"
    FOREIGN_USE = "ForeignUse"
    MODEL_UNKNOWN = "ModelUnknown"
    DISK_FULL = "DiskFull"
    LIMIT_FILES_FAILED = "LimitFilesFailed"
    USAGE_TAMPERED = "UsageTampered"
    STARTING = "Starting"
    STOPPING = "Stopping"
    JOURNAL_FAILED = "JournalFailed"
    STORE_FAILED = "StoreFailed"
    STATE_DAMAGED = "StateDamaged"
    AGGREGATOR_UNREACHABLE = "AggregatorUnreachable"
    TIME_NAMESPACE = "TimeNamespace"
    KUBELET_UNREACHABLE = "KubeletUnreachable"
    POD_RESOURCES_UNREACHABLE = "PodResourcesUnreachable"
    CHECKPOINT_REJECTED = "CheckpointRejected"
    API_SERVER_UNREACHABLE = "ApiServerUnreachable"
    PROCESSES_HIDDEN = "ProcessesHidden"
    CDI_FAILED = "CdiFailed"
    DECLARATION_REJECTED = "DeclarationRejected"
    DOCTOR_FINDINGS = "DoctorFindings"


class ConditionStatus(Enum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition; last_transition_at is wall time in seconds since the epoch."""

    type: str
    status: ConditionStatus
    code: HealthCode
    message: str
    last_transition_at: float
