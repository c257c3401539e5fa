"""The nouns of a divided card; pure. Places count memory slices, as NVML's placements do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.gpu import wire

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the driver offers to divide a card into. name as NVML has it, for instance 1g.10gb."""

    profile_id: int
    name: str
    slices: int
    most: int
    multiprocessors: int
    memory_bytes: int
    # (start, size) of each place that it may take.
    placements: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Memory slices that it takes; 0 where the driver offers no place."""
        return self.placements[0][1] if self.placements else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance that is there; uuid is "" while it has no compute instance."""

    gpu_instance: int
    profile_id: int
    start: int
    size: int
    uuid: str
    compute_instances: int

    @property
    def taken(self) -> int:
        """The memory slices that it takes, as bits."""
        return bits(self.start, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How one card is divided, and could be. complete: all instances were told."""

    parent_uuid: str
    index: int
    bus_id: str
    model: str
    architecture: str
    enabled: bool
    # The mode after the next reset differs from the one now.
    pending: bool
    profiles: tuple[Profile, ...]
    instances: tuple[Instance, ...]
    complete: bool
    # Multiprocessors of the whole card; 0 where not known.
    multiprocessors: int
    memory_bytes: int
    # Dense FP16 TFLOPS of the whole card; 0 where not known.
    tflops: float

    def profile(self, profile_id: int) -> Profile | None:
        """The profile of an id."""
        return next((each for each in self.profiles if each.profile_id == profile_id), None)

    @property
    def taken(self) -> int:
        """Memory slices that are taken, as bits."""
        return taken_by((each.start, each.size) for each in self.instances)


def bits(start: int, size: int) -> int:
    """Memory slices start .. start + size - 1 as bits."""
    return ((1 << size) - 1) << start


def taken_by(places: Iterable[tuple[int, int]]) -> int:
    """All memory slices of some places, as bits."""
    taken = 0
    for start, size in places:
        taken |= bits(start, size)
    return taken


def profile_of(told: wire.MigProfile) -> Profile:
    """A profile as the gpu room tells it. Without a name of the driver's own, it is made of its figures."""
    gigabytes = -(-told.memory_mebibytes // 1024)
    return Profile(
        profile_id=told.profile_id,
        name=told.name or f"{told.slices}g.{gigabytes}gb",
        slices=told.slices,
        most=told.most,
        multiprocessors=told.multiprocessors,
        memory_bytes=told.memory_mebibytes * MEBIBYTE,
        placements=tuple(sorted(told.placements)),
    )


def instance_of(told: wire.MigInstance) -> Instance:
    """An instance as the gpu room tells it."""
    return Instance(
        gpu_instance=told.gpu_instance,
        profile_id=told.profile_id,
        start=told.start,
        size=told.size,
        uuid=told.uuid,
        compute_instances=len(told.compute_instances),
    )
