"""Rows of the view, made from messages of the API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hypervisor.top.content import Content
from hypervisor.top.rows import gpu_row, pod_rows
from hypervisor.v1 import types_pb2 as pb

GIB = 2**30


def make_gpu_message(index: int, *, busy: float | None = 0.5, used: int = 8 * GIB, health: str = "HEALTHY") -> pb.Gpu:
    gpu = pb.Gpu(uuid=f"GPU-{index:08}", index=index, model="NVIDIA H100 80GB HBM3", allocatable=health == "HEALTHY")
    gpu.health = pb.HealthState.Value(f"HEALTH_STATE_{health}")
    gpu.capacity.vram.bytes = 80 * GIB
    gpu.readings.memory_used.bytes = used
    if busy is not None:
        gpu.readings.utilization_ratio.value = busy
    gpu.readings.temperature_celsius.value = 40 + index
    return gpu


def make_pod_message(name: str, *, gpu: int = 0, limit: float = 0.4, achieved: float | None = 0.4) -> pb.Allocation:
    allocation = pb.Allocation(phase=pb.ALLOCATION_PHASE_ACTIVE, enforcement=pb.ENFORCEMENT_VERIFIED)
    allocation.spec.allocation_id = name
    allocation.spec.owner.pod.namespace, allocation.spec.owner.pod.name = "team-a", name
    device = allocation.devices.add(gpu_uuid=f"GPU-{gpu:08}", gpu_index=gpu)
    device.limit_share_ppm, device.limit_vram_bytes = int(limit * 1e6), 8 * GIB
    device.usage.reserved.bytes = 3 * GIB
    if achieved is not None:
        device.usage.pacing.achieved_ratio.value = achieved
    return allocation


@pytest.fixture
def make_content() -> Callable[..., Content]:
    """A node with so many GPUs, and Pods of these names, the first on GPU 0 and so on."""

    def make(gpus: int = 2, pods: tuple[str, ...] = ("train", "infer"), **parts: object) -> Content:
        values: dict[str, object] = {
            "address": "unix:/run/x",
            "cluster": False,
            "clock": "12:00:00",
            "known": True,
            "gpus": tuple(gpu_row(make_gpu_message(index, busy=index / 10)) for index in range(gpus)),
            "pods": tuple(row for at, name in enumerate(pods) for row in pod_rows(make_pod_message(name, gpu=at))),
        }
        return Content(**{**values, **parts})  # type: ignore[arg-type]

    return make
