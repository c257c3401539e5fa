"""A node for the tests: a state of its own, a real journal, and the real reporter, without a driver."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    DeviceGrant,
    DeviceRequest,
    EventType,
    Figure,
    FigureSource,
    Gpu,
    GpuTopology,
    HealthState,
    NodeIdentity,
    NodeSnapshot,
    ObjectKind,
    ObjectReference,
    Owner,
    OwnerKind,
    Revision,
    SystemInfo,
    TopologyLink,
)
from hypervisor.node.journal import Journal
from tests.builders import make_identity, make_unread
from tests.fleet.messages import GIB, uuid


def gpu(node: str, index: int, count: int) -> Gpu:
    mine = uuid(node, index)
    return Gpu(
        identity=make_identity(index, uuid=mine),
        tflops=Figure(989.0, FigureSource.CATALOGUE),
        vram_bytes=Figure(80 * GIB, FigureSource.DRIVER, observed_at=1.0),
        readings=make_unread(temperature_celsius=Figure(40.0, FigureSource.DRIVER, observed_at=1.0)),
        topology=GpuTopology(
            gpu_uuid=mine,
            numa_node=None,
            cpu_affinity="",
            links=tuple(
                TopologyLink(peer_uuid=uuid(node, peer), tier=0, pcie_level=None)
                for peer in range(count)
                if peer != index
            ),
        ),
        health=HealthState.HEALTHY,
        conditions=(),
        active_isolation=None,
        used_by="hypervisor",
        allocation_ids=(),
        requested_share_ppm=0,
        requested_tflops=0.0,
        requested_vram_bytes=0,
        available_tflops=Figure(989.0, FigureSource.CATALOGUE),
        available_vram_bytes=Figure(80 * GIB, FigureSource.DRIVER),
        unattributed_bytes=Figure(0, FigureSource.DRIVER),
        tflops_ratio=1.0,
        vram_ratio=1.0,
        allocatable=True,
        revision=Revision(1, 1),
    )


class FleetNode:
    """State and journal of one node, which survive restarts of its reporter; a new life is a new epoch."""

    def __init__(self, name: str, directory: Path, *, gpu_count: int = 8) -> None:
        self.name = name
        self.identity = NodeIdentity(name=name, uid=f"uid-{name}", boot_id=f"boot-{name}")
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._callbacks: list[Callable[[NodeSnapshot], None]] = []
        self._revision = 1
        self.epoch = 1
        self.gpu_count = gpu_count
        self.emitted = 0
        self.snapshot = NodeSnapshot(
            identity=self.identity,
            revision=Revision(1, 1),
            version="0.1.0",
            system=SystemInfo(
                driver_version="580.1",
                nvml_version="13.580.1",
                cuda_version="13.0",
                kernel_version="6",
                host_memory_bytes=1 << 40,
            ),
            started_at=1.0,
            conditions=(),
            gpus=tuple(gpu(name, index, gpu_count) for index in range(gpu_count)),
            allocations=(),
            usages=(),
            workers=(),
            simulated=True,
        )
        self.journal = self._open_journal()

    # --- what the reporter wants of a state

    def subscribe(self, callback: Callable[[NodeSnapshot], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # --- what happens on the node

    def restart(self) -> None:
        """The daemon was killed: the journal is opened anew, as it lies on the disk, in a new epoch."""
        self.epoch += 1
        self.journal = self._open_journal()
        self._publish(self.snapshot.gpus, self.snapshot.allocations)

    def emit(self, reason: str = "GpuLost") -> None:
        """An event about an object of its own, so that it is no repeat."""
        self.emitted += 1
        self.journal.emit(
            EventType.WARNING, reason, ObjectReference(kind=ObjectKind.GPU, name=f"{self.name}-{self.emitted}"), "m"
        )

    def change_readings(self, temperature: float) -> None:
        """All GPUs were read again."""
        self._publish(
            tuple(
                replace(
                    each,
                    readings=replace(
                        each.readings, temperature_celsius=Figure(temperature, FigureSource.DRIVER, observed_at=2.0)
                    ),
                )
                for each in self.snapshot.gpus
            ),
            self.snapshot.allocations,
            changed=range(self.gpu_count),
        )

    def set_available(self, index: int, tflops: float) -> None:
        """A fact of one GPU changes."""
        gpus = tuple(
            replace(each, available_tflops=Figure(tflops, FigureSource.CATALOGUE))
            if each.identity.index == index
            else each
            for each in self.snapshot.gpus
        )
        self._publish(gpus, self.snapshot.allocations, changed=[index])

    def remove_gpu(self, index: int) -> None:
        gpus = tuple(each for each in self.snapshot.gpus if each.identity.index != index)
        self._publish(gpus, self.snapshot.allocations)

    def add_gpu(self, index: int) -> None:
        self.remove_gpu(index)
        gpus = sorted([*self.snapshot.gpus, gpu(self.name, index, self.gpu_count)], key=lambda g: g.identity.index)
        self._publish(tuple(gpus), self.snapshot.allocations, changed=[index])

    def allocate(self, allocation_id: str, index: int) -> None:
        """An allocation on one GPU; the GPU itself is left as it is."""
        made = Allocation(
            spec=AllocationSpec(
                allocation_id=allocation_id,
                owner=Owner(kind=OwnerKind.NAMED, name="test"),
                devices=(DeviceRequest(gpu=uuid(self.name, index)),),
            ),
            uid=f"uid-{allocation_id}",
            phase=AllocationPhase.ACTIVE,
            grants=(
                DeviceGrant(
                    gpu_uuid=uuid(self.name, index),
                    gpu_index=index,
                    request_share_ppm=1,
                    limit_share_ppm=1,
                    request_vram_bytes=1,
                    limit_vram_bytes=1,
                ),
            ),
            created_at=1.0,
            revision=Revision(self.epoch, self._revision + 1),
            directory="/",
        )
        self._publish(self.snapshot.gpus, (*self.snapshot.allocations, made))

    def release(self, allocation_id: str) -> None:
        kept = tuple(each for each in self.snapshot.allocations if each.spec.allocation_id != allocation_id)
        self._publish(self.snapshot.gpus, kept)

    def change_something(self, chance: random.Random) -> None:
        """One of all that can happen."""
        index = chance.randrange(self.gpu_count)
        match chance.randrange(6):
            case 0 | 1:
                self.set_available(index, float(chance.randrange(990)))
            case 2:
                self.change_readings(float(chance.randrange(90)))
            case 3:
                self.remove_gpu(index)
            case 4:
                self.add_gpu(index)
            case 5:
                self.emit()

    def expected(self) -> dict[str, float | None]:
        """Available TFLOPS by the name of each GPU object: what an aggregator that has caught up shows."""
        return {each.identity.uuid.lower(): each.available_tflops.value for each in self.snapshot.gpus}

    def _open_journal(self) -> Journal:
        return Journal.open(self._directory, identity=self.identity, epoch=self.epoch, capacity=100_000)

    def _publish(self, gpus: tuple[Gpu, ...], allocations: tuple[Allocation, ...], changed: object = ()) -> None:
        self._revision += 1
        revision = Revision(self.epoch, self._revision)
        marked = frozenset(changed)  # type: ignore[call-overload]
        gpus = tuple(replace(each, revision=revision) if each.identity.index in marked else each for each in gpus)
        self.snapshot = replace(self.snapshot, revision=revision, gpus=gpus, allocations=allocations)
        for callback in tuple(self._callbacks):
            callback(self.snapshot)
