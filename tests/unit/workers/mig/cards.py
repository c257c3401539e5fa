"""A card that is divided, in memory: the rules of NVML's own calls, with failures and a killer for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypervisor.gpu import wire
from hypervisor.gpu.mig_control import MigError, PhysicalCard
from hypervisor.workers.mig.geometry import Geometry, bits, instance_of, profile_of

GIB = 2**30
# Ids, names, slices, most and places of an H100 80GB, as nvidia-smi lists them.
H100 = (
    wire.MigProfile(19, "1g.10gb", 1, 7, 16, 9984, [(at, 1) for at in range(7)]),
    wire.MigProfile(20, "1g.10gb+me", 1, 1, 16, 9984, [(at, 1) for at in range(7)]),
    wire.MigProfile(15, "1g.20gb", 1, 4, 26, 20096, [(at, 2) for at in (0, 2, 4, 6)]),
    wire.MigProfile(14, "2g.20gb", 2, 3, 32, 20096, [(at, 2) for at in (0, 2, 4)]),
    wire.MigProfile(9, "3g.40gb", 3, 2, 60, 40448, [(at, 4) for at in (0, 4)]),
    wire.MigProfile(5, "4g.40gb", 4, 1, 64, 40448, [(0, 4)]),
    wire.MigProfile(0, "7g.80gb", 7, 1, 132, 81152, [(0, 8)]),
)


class Killed(BaseException):
    """The daemon was killed at this point: nothing of ours runs after it."""


@dataclass(slots=True)
class FakeCards:
    """Cards by bus id. Each call first asks `before`, which may raise."""

    instances: dict[str, list[wire.MigInstance]] = field(default_factory=dict)
    enabled: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    failing: dict[str, wire.MigDone] = field(default_factory=dict)  # create, destroy or enable -> its answer
    idle_success: bool = False  # create says yes and does nothing
    trouble: wire.MigTold | None = None  # what each look is answered with, in place of the truth
    leaving: bool = False  # a create that fails leaves a GPU instance behind
    before: Callable[[str], None] = lambda _call: None
    calls: list[str] = field(default_factory=list)
    _next: int = 1

    def add(self, bus_id: str, profile_id: int, start: int) -> wire.MigInstance:
        profile = next(each for each in H100 if each.profile_id == profile_id)
        number, self._next = self._next, self._next + 1
        made = wire.MigInstance(number, profile_id, start, profile.placements[0][1], [0], f"MIG-{bus_id}-{number}")
        self.instances.setdefault(bus_id, []).append(made)
        return made

    def _step(self, call: str) -> None:
        self.before(call)
        self.calls.append(call)

    async def look(self, bus_ids: Sequence[str]) -> Mapping[str, wire.MigTold | MigError]:
        self._step("look")
        if self.trouble is not None:
            return dict.fromkeys(bus_ids, self.trouble)
        return {
            bus_id: wire.MigTold(
                wire.Answer((int(bus_id in self.enabled), int(bus_id in self.enabled or bus_id in self.pending))),
                list(H100),
                list(self.instances.get(bus_id, [])),
            )
            for bus_id in bus_ids
        }

    async def create(self, bus_id: str, *, profile_id: int, start: int, size: int) -> wire.MigDone:
        self._step("create")
        if "create" in self.failing:
            if self.leaving:  # its compute instance failed, and then its end too
                made = self.add(bus_id, profile_id, start)
                self.instances[bus_id][-1] = wire.MigInstance(made.gpu_instance, profile_id, start, size, [], "")
            return self.failing["create"]
        if self.idle_success:
            return wire.MigDone(0, "done")
        taken = 0
        for each in self.instances.get(bus_id, []):
            taken |= bits(each.start, each.size)
        if bits(start, size) & taken:
            return wire.MigDone(23, "nvmlDeviceCreateGpuInstanceWithPlacement")
        self.add(bus_id, profile_id, start)
        self.before("created")
        return wire.MigDone(0, "done")

    async def destroy(self, bus_id: str, gpu_instance: int) -> wire.MigDone:
        self._step("destroy")
        if "destroy" in self.failing:
            return self.failing["destroy"]
        found = self.instances.get(bus_id, [])
        self.instances[bus_id] = [each for each in found if each.gpu_instance != gpu_instance]
        self.before("destroyed")
        return wire.MigDone(0, "done")

    async def enable(self, bus_id: str) -> wire.MigDone:
        self._step("enable")
        if "enable" in self.failing:
            return self.failing["enable"]
        self.enabled.add(bus_id)
        return wire.MigDone(0, "done")


def a_card(index: int = 0, **parts: object) -> PhysicalCard:
    values: dict[str, object] = {
        "uuid": f"GPU-{index}",
        "bus_id": f"bus{index}",
        "index": index,
        "model": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "multiprocessors": 132,
        "memory_bytes": 80 * GIB,
        "tflops": 989.0,
        "usable": True,
        "processes": False,
    }
    return PhysicalCard(**{**values, **parts})  # type: ignore[arg-type]


def a_geometry(*instances: tuple[int, int], **parts: object) -> Geometry:
    """An H100 with instances as (profile id, start)."""
    cards = FakeCards()
    made = [cards.add("bus0", profile_id, start) for profile_id, start in instances]
    values: dict[str, object] = {
        "parent_uuid": "GPU-0",
        "index": 0,
        "bus_id": "bus0",
        "model": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "enabled": True,
        "pending": False,
        "profiles": tuple(profile_of(each) for each in H100),
        "instances": tuple(instance_of(each) for each in made),
        "complete": True,
        "multiprocessors": 132,
        "memory_bytes": 80 * GIB,
        "tflops": 989.0,
    }
    return Geometry(**{**values, **parts})  # type: ignore[arg-type]
