"""The nouns of the product, as frozen values: nothing here does I/O, and nothing of ours is imported.

They are what crosses rooms, threads and loops. A value that is not known is None with a reason beside it, never zero.
"""

from hypervisor.model.allocation import (
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
)
from hypervisor.model.busy import BusyWindow, DeviceWindow, Windows
from hypervisor.model.diagnosis import CheckResult, Diagnosis, SkipReason, Verdict
from hypervisor.model.event import Event, EventType, ObjectKind, ObjectReference
from hypervisor.model.figure import Figure, FigureSource
from hypervisor.model.gpu import Gpu, GpuIdentity, GpuReadings, Partition, ProcessOnGpu
from hypervisor.model.health import Condition, ConditionStatus, HealthCode, HealthState
from hypervisor.model.inventory import DeviceObservation, Inventory
from hypervisor.model.refusal import Refusal, RefusalReason
from hypervisor.model.snapshot import NodeIdentity, NodeSnapshot, Revision, SystemInfo
from hypervisor.model.topology import GpuTopology, PcieLevel, TopologyLink
from hypervisor.model.usage import (
    AllocationUsage,
    AttachedProcess,
    DeviceUsage,
    Enforcement,
    LearnedCost,
    Pacing,
)
from hypervisor.model.worker import Probe, RestartPolicy, Worker, WorkerPhase, WorkerSpec

__all__ = [
    "Allocation",
    "AllocationPhase",
    "AllocationSpec",
    "AllocationUsage",
    "AttachedProcess",
    "BusyWindow",
    "CheckResult",
    "Compute",
    "ComputePolicy",
    "Condition",
    "ConditionStatus",
    "DeviceGrant",
    "DeviceObservation",
    "DeviceRequest",
    "DeviceUsage",
    "DeviceWindow",
    "Diagnosis",
    "Enforcement",
    "Event",
    "EventType",
    "Figure",
    "FigureSource",
    "Gpu",
    "GpuIdentity",
    "GpuReadings",
    "GpuTopology",
    "HealthCode",
    "HealthState",
    "Inventory",
    "IsolationMode",
    "LearnedCost",
    "NodeIdentity",
    "NodeSnapshot",
    "ObjectKind",
    "ObjectReference",
    "Owner",
    "OwnerKind",
    "Pacing",
    "Partition",
    "PcieLevel",
    "Probe",
    "ProcessOnGpu",
    "QosClass",
    "Refusal",
    "RefusalReason",
    "Resources",
    "RestartPolicy",
    "Revision",
    "SkipReason",
    "SystemInfo",
    "TopologyLink",
    "Verdict",
    "Windows",
    "Worker",
    "WorkerPhase",
    "WorkerSpec",
]
