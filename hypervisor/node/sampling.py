"""Between the allocations and the gpu-reader: whose processes are to be looked at, and what was seen of them."""

from __future__ import annotations

from typing import Protocol

from hypervisor.allocations.parts import Parts
from hypervisor.model import Allocation, AllocationUsage, Inventory, Windows


class Sampler(Protocol):
    """What is needed of the gpu-reader."""

    @property
    def windows(self) -> Windows: ...

    def sample(self, uuids: frozenset[str]) -> None: ...


class Sampled(Protocol):
    """What is needed of the allocations."""

    @property
    def all(self) -> tuple[Allocation, ...]: ...

    @property
    def sampled(self) -> frozenset[str]: ...

    @property
    def calm(self) -> bool: ...

    def parts(self, inventory: Inventory, windows: Windows) -> Parts[tuple[AllocationUsage, ...]]: ...


class SampledSteps:
    """The steps of the allocations with the windows of those GPUs that they have a use for."""

    def __init__(self, allocations: Sampled, sampler: Sampler) -> None:
        self._allocations = allocations
        self._sampler = sampler

    @property
    def all(self) -> tuple[Allocation, ...]:
        """All allocations."""
        return self._allocations.all

    @property
    def calm(self) -> bool:
        """Whether nothing has to be done between two readings."""
        return self._allocations.calm

    def parts(self, inventory: Inventory) -> Parts[tuple[AllocationUsage, ...]]:
        """One step; from the next round on, the GPUs are sampled that it asked for."""
        usages = yield from self._allocations.parts(inventory, self._sampler.windows)
        self._sampler.sample(self._allocations.sampled)
        return usages
