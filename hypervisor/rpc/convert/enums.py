"""Enumerations of the model beside those of the API. Each table is complete; a test holds that."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import (
    AllocationPhase,
    ComputePolicy,
    Enforcement,
    EventType,
    FigureSource,
    HealthState,
    IsolationMode,
    PcieLevel,
    QosClass,
    RestartPolicy,
    WorkerPhase,
)
from hypervisor.v1 import types_pb2 as pb

FIGURE_SOURCES: Mapping[FigureSource, pb.FigureSource] = {
    FigureSource.DRIVER: pb.FIGURE_SOURCE_DRIVER,
    FigureSource.CATALOGUE: pb.FIGURE_SOURCE_CATALOGUE,
    FigureSource.FORMULA: pb.FIGURE_SOURCE_FORMULA,
    FigureSource.OVERRIDE: pb.FIGURE_SOURCE_OVERRIDE,
    FigureSource.LIMITER: pb.FIGURE_SOURCE_LIMITER,
    FigureSource.SYSTEM: pb.FIGURE_SOURCE_SYSTEM,
    FigureSource.PARENT: pb.FIGURE_SOURCE_PARENT,
    FigureSource.GPM: pb.FIGURE_SOURCE_GPM,
}
HEALTH_STATES: Mapping[HealthState, pb.HealthState] = {
    HealthState.HEALTHY: pb.HEALTH_STATE_HEALTHY,
    HealthState.DEGRADED: pb.HEALTH_STATE_DEGRADED,
    HealthState.UNHEALTHY: pb.HEALTH_STATE_UNHEALTHY,
    HealthState.LOST: pb.HEALTH_STATE_LOST,
    HealthState.BLIND: pb.HEALTH_STATE_BLIND,
    HealthState.DRAINING: pb.HEALTH_STATE_DRAINING,
    HealthState.UNKNOWN: pb.HEALTH_STATE_UNKNOWN,
}
ISOLATION_MODES: Mapping[IsolationMode, pb.IsolationMode] = {
    IsolationMode.SHARED: pb.ISOLATION_MODE_SHARED,
    IsolationMode.SOFT: pb.ISOLATION_MODE_SOFT,
    IsolationMode.HARD: pb.ISOLATION_MODE_HARD,
    IsolationMode.PARTITIONED: pb.ISOLATION_MODE_PARTITIONED,
}
QOS_CLASSES: Mapping[QosClass, pb.QosClass] = {
    QosClass.LOW: pb.QOS_CLASS_LOW,
    QosClass.MEDIUM: pb.QOS_CLASS_MEDIUM,
    QosClass.HIGH: pb.QOS_CLASS_HIGH,
    QosClass.CRITICAL: pb.QOS_CLASS_CRITICAL,
}
POLICIES: Mapping[ComputePolicy, pb.ComputePolicy] = {
    ComputePolicy.HARD_CAP: pb.COMPUTE_POLICY_HARD_CAP,
    ComputePolicy.WORK_CONSERVING: pb.COMPUTE_POLICY_WORK_CONSERVING,
}
ALLOCATION_PHASES: Mapping[AllocationPhase, pb.AllocationPhase] = {
    AllocationPhase.ACTIVE: pb.ALLOCATION_PHASE_ACTIVE,
    AllocationPhase.REVOKED: pb.ALLOCATION_PHASE_REVOKED,
    AllocationPhase.ENDING: pb.ALLOCATION_PHASE_ENDING,
}
ENFORCEMENTS: Mapping[Enforcement, pb.Enforcement] = {
    Enforcement.NONE: pb.ENFORCEMENT_NONE,
    Enforcement.VERIFIED: pb.ENFORCEMENT_VERIFIED,
    Enforcement.UNVERIFIED: pb.ENFORCEMENT_UNVERIFIED,
    Enforcement.COOPERATIVE: pb.ENFORCEMENT_COOPERATIVE,
    Enforcement.VIOLATED: pb.ENFORCEMENT_VIOLATED,
}
PCIE_LEVELS: Mapping[PcieLevel, pb.PcieLevel] = {
    PcieLevel.INTERNAL: pb.PCIE_LEVEL_INTERNAL,
    PcieLevel.PIX: pb.PCIE_LEVEL_PIX,
    PcieLevel.PXB: pb.PCIE_LEVEL_PXB,
    PcieLevel.PHB: pb.PCIE_LEVEL_PHB,
    PcieLevel.NODE: pb.PCIE_LEVEL_NODE,
    PcieLevel.SYS: pb.PCIE_LEVEL_SYS,
}
EVENT_TYPES: Mapping[EventType, pb.EventType] = {
    EventType.NORMAL: pb.EVENT_TYPE_NORMAL,
    EventType.WARNING: pb.EVENT_TYPE_WARNING,
}
WORKER_PHASES: Mapping[WorkerPhase, pb.WorkerPhase] = {
    WorkerPhase.STARTING: pb.WORKER_PHASE_STARTING,
    WorkerPhase.RUNNING: pb.WORKER_PHASE_RUNNING,
    WorkerPhase.BACKING_OFF: pb.WORKER_PHASE_BACKING_OFF,
    WorkerPhase.STOPPING: pb.WORKER_PHASE_STOPPING,
    WorkerPhase.STOPPED: pb.WORKER_PHASE_STOPPED,
    WorkerPhase.FAILED: pb.WORKER_PHASE_FAILED,
}
RESTART_POLICIES: Mapping[RestartPolicy, pb.RestartPolicy] = {
    RestartPolicy.NEVER: pb.RESTART_POLICY_NEVER,
    RestartPolicy.ON_FAILURE: pb.RESTART_POLICY_ON_FAILURE,
    RestartPolicy.ALWAYS: pb.RESTART_POLICY_ALWAYS,
}
