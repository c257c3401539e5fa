"""GPUs that are not a card in a server: each poses on one simulated machine, before the whole daemon.

What is expected is nvidia-stack.md 1.11: what such a GPU does not tell is not known, and no sign of illness.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypervisor.gpu.session import HOST_MEMORY_BYTES
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.environment import environment
from hypervisor.simulation.faults import parse_fault_text
from hypervisor.simulation.machine import create
from hypervisor.v1 import types_pb2
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls

NOT_SUPPORTED, SENTINEL = "return=3", "return=sentinel"
MIB = 2**20
MACHINE = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus:
  - {count: 5, profile: t4}
"""
CONTEXT_BYTES = 105 * MIB
# By what a GPU of the platform is called: which calls answer how.
PLATFORMS: dict[str, dict[str, str]] = {
    "NVIDIA GB10": {
        "nvmlDeviceGetMemoryInfo*": NOT_SUPPORTED,
        "nvmlDeviceGetEnforcedPowerLimit": NOT_SUPPORTED,
        "nvmlDeviceGetPcieReplayCounter": NOT_SUPPORTED,
        "nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED,
        "nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED,
        "nvmlDeviceGetClockInfo": NOT_SUPPORTED,
    },
    "Orin (nvgpu)": {
        "nvmlDeviceGetMemoryInfo*": NOT_SUPPORTED,
        "nvmlDeviceGetPciInfo*": NOT_SUPPORTED,
        "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
        "nvmlDeviceGet*Power*": NOT_SUPPORTED,
        "nvmlDeviceGetTemperature*": NOT_SUPPORTED,
        "nvmlDeviceGetMinorNumber": NOT_SUPPORTED,
        "nvmlDeviceGetPcie*": NOT_SUPPORTED,
        "nvmlDeviceGetTotalE*": NOT_SUPPORTED,
        "nvmlDeviceGetProcessUtilization*": NOT_SUPPORTED,
        "nvmlDeviceGetSupportedEventTypes": NOT_SUPPORTED,
        "nvmlDeviceRegisterEvents": NOT_SUPPORTED,
    },
    "NVIDIA GH200 480GB": {"nvmlDeviceGetPcieReplayCounter": NOT_SUPPORTED},
    "NVIDIA GeForce RTX 4090": {  # under WSL 2
        "nvmlDeviceGetMinorNumber": NOT_SUPPORTED,
        "nvmlDeviceGetSupportedEventTypes": NOT_SUPPORTED,
        "nvmlDeviceRegisterEvents": NOT_SUPPORTED,
        "nvmlDeviceGet*RunningProcesses*": SENTINEL,
        "nvmlDeviceGetProcessUtilization*": NOT_SUPPORTED,
    },
    "NVIDIA A40-8Q": {  # in a guest
        "nvmlDeviceGetVirtualizationMode": "value=2",
        "nvmlDeviceGetMigMode": NOT_SUPPORTED,
        "nvmlDeviceGetPcie*": NOT_SUPPORTED,
        "nvmlDeviceGetTotalE*": NOT_SUPPORTED,
        "nvmlDeviceGetRemappedRows": NOT_SUPPORTED,
        "nvmlDeviceGetRetiredPages*": NOT_SUPPORTED,
        "nvmlDeviceGet*Power*": NOT_SUPPORTED,
        "nvmlDeviceGetTemperature*": NOT_SUPPORTED,
        "nvmlDeviceGetSerial": NOT_SUPPORTED,
    },
}
# Of those with memory of their own: its size, for a vGPU that of its profile.
MEMORY = {"NVIDIA GH200 480GB": 97871 * MIB, "NVIDIA GeForce RTX 4090": 24564 * MIB, "NVIDIA A40-8Q": 8192 * MIB}
WORKLOAD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
for gpu in (0, 1, 3):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), 64 << 20) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    spec = parse_machine(MACHINE, "platforms", profile="platforms")
    gpus = tuple(
        replace(gpu, name=name, memory_total_bytes=MEMORY.get(name, gpu.memory_total_bytes))
        for gpu, name in zip(spec.gpus, PLATFORMS, strict=True)
    )
    faults = tuple(
        parse_fault_text(f"gpu={at},call={call},{answer}", len(gpus))
        for at, answers in enumerate(PLATFORMS.values())
        for call, answer in answers.items()
    )
    create(tmp_path / "machine", replace(spec, gpus=gpus, faults=faults))
    (tmp_path / "daemon").mkdir()
    process = DaemonProcess(tmp_path / "daemon", "--simulate", str(tmp_path / "machine"))
    try:
        yield process.start()
    finally:
        process.close()


def test_each_platform_is_well_and_tells_what_it_can(daemon: DaemonProcess, tmp_path: Path) -> None:
    daemon.wait_ready()
    program = subprocess.Popen(
        [sys.executable, "-c", WORKLOAD],
        env=environment(tmp_path / "machine", {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        held = 64 * MIB + CONTEXT_BYTES

        def seen() -> dict[str, Any] | None:
            told = {gpu.model: gpu for gpu in calls.list_gpus(daemon)}
            return told if told["NVIDIA GB10"].readings.memory_used.bytes >= held else None

        gpus = wait_until(seen, "what the program holds")
    finally:
        program.kill()
        program.communicate()
    assert list(gpus) == list(PLATFORMS)
    for name, gpu in gpus.items():
        assert gpu.health == types_pb2.HEALTH_STATE_HEALTHY, (name, gpu)
    # Memory that is the host's: a share of it, and of its use what the processes tell.
    for name in ("NVIDIA GB10", "Orin (nvgpu)"):
        assert gpus[name].capacity.vram.bytes == int(0.8 * HOST_MEMORY_BYTES)
        assert gpus[name].capacity.vram.source == types_pb2.FIGURE_SOURCE_SYSTEM
        assert gpus[name].readings.memory_used.bytes == held
        assert gpus[name].capacity.unattributed.bytes == held
    for name, total in MEMORY.items():
        assert gpus[name].capacity.vram.bytes == total
        assert gpus[name].capacity.vram.source == types_pb2.FIGURE_SOURCE_DRIVER
    # WSL 2 names no device node and no memory of a process: the card's own figure says what is taken.
    windows = gpus["NVIDIA GeForce RTX 4090"]
    assert not windows.HasField("minor")
    assert windows.readings.memory_used.bytes == held
    assert windows.capacity.unattributed.bytes == held
    # A guest can't know its share of the card's compute, so none is made up; that is told, and is no illness.
    assert not gpus["NVIDIA A40-8Q"].capacity.tflops.HasField("value")
    assert {name: [each.type for each in gpu.conditions] for name, gpu in gpus.items() if gpu.conditions} == {
        "NVIDIA A40-8Q": ["ModelUnknown"]
    }
    assert all(gpu.allocatable for gpu in gpus.values())
    # What is not supported is absent with its reason, and never zero.
    assert gpus["Orin (nvgpu)"].readings.utilization_ratio.absent_reason
    assert gpus["NVIDIA GB10"].readings.power_limit_watts.absent_reason
    assert calls.list_events(daemon)
    assert not [event for event in calls.list_events(daemon) if event.type == types_pb2.EVENT_TYPE_WARNING]
