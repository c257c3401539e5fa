"""MIG in descriptions: a model's table of profiles, and layouts of instances, which are refused when they can't be.

The rules are those of simulator/core/mig.c; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypervisor.simulation.document import Value
from hypervisor.simulation.spec import MAX_INSTANCES, MAX_MIG_PROFILES, GpuSpec, MigInstanceSpec, MigProfileSpec

COMPUTE_SIZES = (1, 2, 3, 4, 7)
_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MigTable:
    """How a model can be cut: its memory slices and its profiles. No profiles: it has no MIG."""

    memory_slices: int = 0
    profiles: tuple[MigProfileSpec, ...] = ()


def parse_table(value: Value) -> MigTable:
    """Read the `mig` of a model's data sheet.

    Raises:
        DocumentError: a key, type or figure is wrong.
    """
    if not value.is_mapping:
        value.choice({"none": None})
        return MigTable()
    with value.section() as section:
        slices = section.need("memory_slices").integer(1, MAX_INSTANCES)
        listed = section.need("profiles")
        profiles = tuple(_profile(entry, slices) for entry in listed.items())
    if not 0 < len(profiles) <= MAX_MIG_PROFILES:
        raise listed.error(f"must have 1 to {MAX_MIG_PROFILES} entries, not {len(profiles)}")
    return MigTable(slices, profiles)


def _profile(value: Value, slices: int) -> MigProfileSpec:
    with value.section() as section:
        size = section.need("memory_slices").integer(1, slices)
        return MigProfileSpec(
            name=section.need("name").text(),
            id=section.need("id").integer(0, 255),
            kind=section.need("kind").integer(0, 17),
            compute_slices=section.need("slices").choice({str(each): each for each in COMPUTE_SIZES}),
            memory_slices=size,
            starts=sum(1 << start.integer(0, slices - size) for start in section.need("starts").items()),
            most=section.need("most").integer(1, MAX_INSTANCES),
            sm_count=section.need("sms").integer(1, 1024),
            copy_engines=section.need("copy_engines").integer(0, 32),
            decoders=section.need("decoders").integer(0, 32),
            encoders=0,
            jpegs=section.need("jpegs").integer(0, 32),
            optical_flows=section.need("optical_flows").integer(0, 32),
            memory_bytes=section.need("memory").size(64 * _MIB, 1024 * _GIB),
        )


def _run(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def _block(taken: int, start: int, size: int, slices: int) -> int:
    """The free block of 1, 2, 4 … slices that a place lies in."""
    block = 1
    while block < size:
        block *= 2
    while block * 2 <= slices and not taken & _run(start // (block * 2) * (block * 2), block * 2):
        block *= 2
    return block


def places(gpu: GpuSpec, profile: MigProfileSpec, taken: int) -> list[int]:
    """Where an instance may begin beside what is taken (bit n: slice n), the place that breaks the least first."""
    free = [
        start
        for start in range(gpu.mig_memory_slices - profile.memory_slices + 1)
        if profile.starts >> start & 1 and not taken & _run(start, profile.memory_slices)
    ]
    return sorted(free, key=lambda start: (_block(taken, start, profile.memory_slices, gpu.mig_memory_slices), start))


def parse_instances(value: Value, gpu: GpuSpec) -> tuple[MigInstanceSpec, ...]:
    """Read the `instances` of one GPU: profile names, or mappings with `profile`, `start` and `compute`.

    Raises:
        DocumentError: there is no such profile, or the instances don't fit beside each other.
    """
    laid: list[MigInstanceSpec] = []
    for entry in value.items():
        laid.append(_instance(entry, gpu, laid))
    return tuple(laid)


def _described(gpu: GpuSpec, laid: Sequence[MigInstanceSpec]) -> str:
    return ", ".join(f"{gpu.mig_profiles[one.profile].name} at slice {one.start}" for one in laid) or "nothing"


def _instance(entry: Value, gpu: GpuSpec, laid: Sequence[MigInstanceSpec]) -> MigInstanceSpec:
    names = {profile.name: at for at, profile in enumerate(gpu.mig_profiles)}
    start_value = compute_value = None
    named = entry
    if entry.is_mapping:
        with entry.section("profile", "start", "compute") as section:
            named = section.need("profile")
            start_value, compute_value = section.get("start"), section.get("compute")
    which = named.choice(names)
    profile = gpu.mig_profiles[which]
    if profile.memory_bytes > gpu.memory_total_bytes:
        given, there = profile.memory_bytes >> 20, gpu.memory_total_bytes >> 20
        raise named.error(f"{profile.name} has {given}Mi of memory, and this GPU {there}Mi in all")
    if sum(one.profile == which for one in laid) >= profile.most:
        raise named.error(f"{gpu.name} has at most {profile.most} instances of {profile.name}")
    taken = 0
    for one in laid:
        taken |= _run(one.start, gpu.mig_profiles[one.profile].memory_slices)
    free = places(gpu, profile, taken)
    if start_value is not None:
        start = start_value.integer(0, gpu.mig_memory_slices - 1)
        if not profile.starts >> start & 1:
            allowed = [str(at) for at in range(gpu.mig_memory_slices) if profile.starts >> at & 1]
            raise start_value.error(f"{profile.name} may begin at slice {', '.join(allowed)}, not {start}")
        if start not in free:
            raise start_value.error(f"{profile.name} at slice {start} overlaps {_described(gpu, laid)}")
    elif not free:
        raise named.error(
            f"{profile.name} has no place beside {_described(gpu, laid)}; "
            "name larger instances first, give 'start' to each, or leave one out"
        )
    else:
        start = free[0]
    compute = _compute(compute_value, profile) if compute_value is not None else (profile.compute_slices,)
    return MigInstanceSpec(profile=which, start=start, compute=compute)


def _compute(value: Value, profile: MigProfileSpec) -> tuple[int, ...]:
    sizes = {str(size): size for size in COMPUTE_SIZES if size <= profile.compute_slices}
    taken = 0
    found = []
    for item in value.items():
        size = item.choice(sizes)
        step = {1: 1, 2: 2}.get(size, 4)
        free = [at for at in range(0, profile.compute_slices - size + 1, step) if not taken & _run(at, size)]
        if not free:
            raise item.error(f"{profile.name} has {profile.compute_slices} compute slices; {size} more have no place")
        taken |= _run(free[0], size)
        found.append(size)
    return tuple(found)
