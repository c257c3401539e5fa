"""Inventories, requests and a registry on temporary directories, for tests of allocations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.model import (
    AllocationSpec,
    Compute,
    Condition,
    ConditionStatus,
    DeviceObservation,
    DeviceRequest,
    EventType,
    Figure,
    FigureSource,
    HealthCode,
    HealthState,
    Inventory,
    NodeIdentity,
    ObjectReference,
    Owner,
    OwnerKind,
    Partition,
    ProcessOnGpu,
    Resources,
    Revision,
    SystemInfo,
)
from tests.builders import make_identity, make_unread

GIB = 2**30
CARD_TFLOPS = 989.0
CARD_BYTES = 80 * GIB
BOOT = "11111111-2222-3333-4444-555555555555"


def uuid_of(index: int) -> str:
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000"


def device(
    index: int = 0,
    *,
    tflops: float | None = CARD_TFLOPS,
    vram_bytes: int | None = CARD_BYTES,
    health: HealthState = HealthState.HEALTHY,
    code: HealthCode = HealthCode.OK,
    processes: tuple[ProcessOnGpu, ...] | None = (),
    used_bytes: int | None = 0,
    partition: Partition | None = None,
) -> DeviceObservation:
    absent: Figure[Any] = Figure.absent("not read")
    return DeviceObservation(
        identity=make_identity(
            index, uuid=uuid_of(index) if partition is None else f"MIG-{index:08d}", partition=partition
        ),
        tflops=Figure.absent("not in the catalogue") if tflops is None else Figure(tflops, FigureSource.CATALOGUE),
        vram_bytes=Figure.absent("not read") if vram_bytes is None else Figure(vram_bytes, FigureSource.DRIVER),
        readings=make_unread(
            memory_used_bytes=absent if used_bytes is None else Figure(used_bytes, FigureSource.DRIVER),
            memory_reserved_bytes=Figure(0, FigureSource.DRIVER),
            processes=processes,
            processes_absent_reason="" if processes is not None else "the driver lists none",
        ),
        topology=None,
        health=health,
        conditions=(
            Condition(
                type="Ready",
                status=ConditionStatus.TRUE if code is HealthCode.OK else ConditionStatus.FALSE,
                code=code,
                message="" if code is HealthCode.OK else f"because of {code.value}",
                last_transition_at=0.0,
            ),
        ),
    )


def inventory(*devices: DeviceObservation, sequence: int = 1, observed_at: float = 1.0) -> Inventory:
    return Inventory(
        sequence=sequence,
        observed_at=observed_at,
        system=SystemInfo(
            driver_version="580", nvml_version="13", cuda_version="13.0", kernel_version="6", host_memory_bytes=GIB
        ),
        devices=devices,
        conditions=(),
        simulated=True,
    )


def percent(value: str | float) -> Compute:
    return Compute(percent=Decimal(str(value)))


def tflops(value: str | float) -> Compute:
    return Compute(tflops=Decimal(str(value)))


def request(
    gpu: str = "",
    *,
    compute: Compute | None = None,
    vram: int | None = None,
    compute_request: Compute | None = None,
    vram_request: int | None = None,
) -> DeviceRequest:
    return DeviceRequest(
        gpu=gpu,
        requests=Resources(compute=compute_request, vram_bytes=vram_request),
        limits=Resources(compute=compute, vram_bytes=vram),
    )


def named(name: str = "job", *devices: DeviceRequest, **more: Any) -> AllocationSpec:
    return AllocationSpec(
        allocation_id=name,
        owner=Owner(kind=OwnerKind.NAMED, name=name),
        devices=devices or (request("0", compute=percent(40), vram=8 * GIB),),
        **more,
    )


def start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def owned_by(pid: int, name: str = "job", *devices: DeviceRequest) -> AllocationSpec:
    spec = named(name, *devices)
    owner = Owner(
        kind=OwnerKind.PROCESS,
        name="sleep",
        pid=pid,
        start_time_ticks=start_time(pid),
        uid=os.geteuid(),
        boot_id=BOOT,
    )
    return replace(spec, owner=owner)


def pod(namespace: str = "team", name: str = "pod-a", allocation_id: str = "pod-uid") -> AllocationSpec:
    owner = Owner(kind=OwnerKind.POD, name=name, namespace=namespace, pod_uid=allocation_id, container="main")
    return replace(named(allocation_id), owner=owner)


@dataclass
class Told:
    """An event as it was emitted."""

    kind: EventType
    reason: str
    regarding: ObjectReference
    message: str
    fields: dict[str, str]


@dataclass
class Node:
    """What the node gives to Allocations: directories, revisions, a place for events; and starts of the daemon."""

    root: Path
    boot_id: str = BOOT
    events: list[Told] = field(default_factory=list)
    epoch: int = 0
    revision: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> Path:
        return self.root / "shm"

    @property
    def records(self) -> Path:
        return self.root / "state" / "allocations"

    def start(self, **more: Any) -> Allocations:
        self.epoch += 1
        return Allocations.open(
            settings=Settings(base_dir=str(self.base), state_dir=str(self.root / "state"), **self.settings),
            identity=NodeIdentity(name="node", uid="node-uid", boot_id=self.boot_id),
            epoch=self.epoch,
            next_revision=self.next_revision,
            emit=self.emit,
            **more,
        )

    def next_revision(self) -> Revision:
        self.revision += 1
        return Revision(self.epoch, self.revision)

    def emit(self, kind: EventType, reason: str, regarding: ObjectReference, message: str, **fields: str) -> None:
        self.events.append(Told(kind, reason, regarding, message, fields))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Content and time of change of each file below the root."""
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files_below(self.root)}


def files_below(root: Path) -> Iterable[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
