"""What admission and accounts need of hard isolation; who gives it lies in another room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from hypervisor.model import (
    Allocation,
    AllocationUsage,
    DeviceGrant,
    DeviceObservation,
    Enforcement,
    IsolationMode,
    Owner,
    Refusal,
)


class HardCards(Protocol):
    """Cards whose limits the driver enforces."""

    def refusal(
        self, device: DeviceObservation, grant: DeviceGrant, *, holders: int, owner: Owner, field: str
    ) -> Refusal | None:
        """Why a grant can't be hard on a card that has so many allocations; None when it can."""
        ...

    def environment(self, allocation: Allocation) -> Mapping[str, str]:
        """What a process of a hard allocation needs besides what every process of an allocation does."""
        ...

    def effective_percent(self, allocation: Allocation) -> float | None:
        """The percentage of the SMs that each process of a hard allocation can use; None where that is not known."""
        ...

    def enforcement(self, allocation: Allocation) -> Enforcement:
        """How sure it is that a hard allocation's limits hold."""
        ...


def judged(usage: AllocationUsage, allocation: Allocation, hard: HardCards | None) -> AllocationUsage:
    """The account of an allocation; of a hard one, who keeps its server knows how sure its limits are."""
    if allocation.spec.isolation is not IsolationMode.HARD or hard is None:
        return usage
    percent = hard.effective_percent(allocation)
    devices = tuple(replace(device, effective_sm_percent=percent) for device in usage.devices)
    if usage.enforcement is Enforcement.VIOLATED:
        return replace(usage, devices=devices)
    enforcement = hard.enforcement(allocation)
    # The server bounds each process. That several of them together keep to the share is up to the limiter in them
    # (VRAM), or to nobody (SMs).
    several = len({(each.pid_namespace, each.pid) for each in usage.processes}) > 1
    if several and enforcement is Enforcement.VERIFIED:
        enforcement = Enforcement.COOPERATIVE
    return replace(usage, devices=devices, enforcement=enforcement)
