"""What the driver said in one round of reading, before allocations are put beside it."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model.figure import Figure
from hypervisor.model.gpu import GpuIdentity, GpuReadings
from hypervisor.model.health import Condition, HealthState
from hypervisor.model.snapshot import SystemInfo
from hypervisor.model.topology import GpuTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceObservation:
    """One device. tflops is dense FP16; a device that can't be read keeps its identity and last good figures."""

    identity: GpuIdentity
    tflops: Figure[float]
    vram_bytes: Figure[int]
    readings: GpuReadings
    topology: GpuTopology | None
    health: HealthState
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One round. observed_at is CLOCK_MONOTONIC in seconds; conditions are those of the node as a whole.

    sequence grows with each round; a round that failed repeats the devices of the last good one, marked stale.
    """

    sequence: int
    observed_at: float
    system: SystemInfo
    devices: tuple[DeviceObservation, ...]
    conditions: tuple[Condition, ...]
    simulated: bool
