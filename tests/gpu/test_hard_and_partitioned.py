"""MPS, MIG and the checkpoint interface on a real GPU. Skips with the reason where there is none, or where the machine
does not let it: compute mode and MIG mode are read here and never changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import trio

from hypervisor.gpu.nvml_mig import MOST_KINDS, _placements, _profile_info
from hypervisor.workers.checkpoint.driver import CheckpointError, Driver, State
from hypervisor.workers.mps.control import Control
from hypervisor.workers.mps.shares import effective_sms

pytestmark = pytest.mark.gpu

MIB = 2**20
PERCENT = 25
# One context that holds memory, on stdout what it has; goes on until it is told to end.
CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def must(code, what):
    if code: sys.exit(f"{what} gives CUDA error {code}")
must(cuda.cuInit(0), "cuInit")
device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
must(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
must(cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device), "cuDeviceGetAttribute")
held, pointer = 0, ctypes.c_uint64()
while held < int(sys.argv[1]) and cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0:
    held += 64 << 20
print(count.value, held, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def card() -> Iterator[Any]:
    """NVML's handle of the first GPU."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"NVML can't be used: {error}")
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            pytest.skip("the driver has no GPU")
        yield pynvml.nvmlDeviceGetHandleByIndex(0)
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture
def client(card: Any) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int, int]]]:
    """Starts clients; gives each with the SMs that it sees and the bytes that it got."""
    started: list[subprocess.Popen[str]] = []

    def start(wanted: int, environment: dict[str, str]) -> tuple[subprocess.Popen[str], int, int]:
        made = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(wanted)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": pynvml.nvmlDeviceGetUUID(card), **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(made)
        assert made.stdout is not None
        count, held = made.stdout.readline().split()
        return made, int(count), int(held)

    yield start
    for made in started:
        made.communicate(timeout=60)


def test_a_real_server_gives_sms_and_memory_as_we_say(card: Any, client: Any, tmp_path: Path) -> None:
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        pytest.skip("nvidia-cuda-mps-control is not installed")
    if pynvml.nvmlDeviceGetCudaComputeCapability(card)[0] < 7:
        pytest.skip("the GPU is older than Volta")
    if _mig_enabled(card):
        pytest.skip("the GPU is in MIG mode")
    _, sms, _ = client(0, {})  # alone, without a server
    for name in ("pipe", "log"):
        (tmp_path / name).mkdir()
    control = Control(
        program=program, pipe_directory=tmp_path / "pipe", log_directory=tmp_path / "log",
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": pynvml.nvmlDeviceGetUUID(card)}, answer_seconds=20,
    )  # fmt: skip
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(PERCENT), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"}
    daemon = subprocess.Popen([program, "-f"], env={**control.variables, **limits}, stdout=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 20
        while not (tmp_path / "pipe" / "control").exists():
            assert daemon.poll() is None, (tmp_path / "log" / "control.log").read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        trio.run(control.ask, f"start_server -uid {os.getuid()}")
        _, seen, held = client(8192 * MIB, {"CUDA_MPS_PIPE_DIRECTORY": str(control.pipe_directory)})
        assert seen == effective_sms(PERCENT, sms)
        assert 0 < held <= 2048 * MIB
    finally:
        trio.run(control.ask, "quit -t 5")
        daemon.wait(timeout=60)


def test_what_mig_says_of_the_card_is_read(card: Any) -> None:
    """Profiles and placements as NVML tells them, and each placement within the slices of the card; nothing is
    changed."""
    if not _mig_enabled(card):
        pytest.skip("the GPU is not in MIG mode, and is not put into it here")
    profiles = []
    for kind in range(MOST_KINDS):
        try:
            profiles.append(_profile_info(kind, card))
        except pynvml.NVMLError:
            continue  # not every kind is on every card
    assert profiles
    for profile in profiles:
        placements = _placements(int(profile.id), card)
        assert len(placements) >= 1
        assert all(start >= 0 and size >= 1 for start, size in placements)
        assert profile.memorySizeMB > 0


def test_what_a_process_holds_goes_to_the_host_and_comes_back(card: Any, client: Any) -> None:
    try:
        driver = Driver.open()
    except CheckpointError as error:
        pytest.skip(str(error))
    process, _, held = client(1024 * MIB, {})
    assert held == 1024 * MIB
    before = _used_by(card, process.pid)
    if before < held:
        pytest.skip("the driver's processes are in another PID namespace")
    driver.freeze(process.pid)
    assert driver.state(process.pid) is State.CHECKPOINTED
    assert _used_by(card, process.pid) < before - held // 2
    driver.thaw(process.pid)
    assert driver.state(process.pid) is State.RUNNING
    assert _used_by(card, process.pid) == pytest.approx(before, rel=0.1)


def _mig_enabled(card: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(card)[0])
    except pynvml.NVMLError:
        return False


def _used_by(card: Any, pid: int) -> int:
    """Bytes that the driver attributes to a process; 0 for one that it does not see from here."""
    found = [each for each in pynvml.nvmlDeviceGetComputeRunningProcesses(card) if each.pid == pid]
    return int(found[0].usedGpuMemory or 0) if found else 0
