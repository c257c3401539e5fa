"""What admission and accounts need of hard isolation; who gives it lies in another room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hypervisor.model import Allocation, DeviceGrant, DeviceObservation, Enforcement, Owner, Refusal


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
