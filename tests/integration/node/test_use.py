"""What the daemon says of GPUs in use: by its own workloads, by strangers, by nobody any more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hypervisor
from hypervisor.simulation.environment import environment
from hypervisor.v1 import node_pb2
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls

GIB = 2**30
LOAD = Path(hypervisor.__file__).parent / "native" / "clients" / "load"


@contextmanager
def client(
    daemon: DaemonProcess, *arguments: str, variables: dict[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """The load client on the daemon's machine; ended with the block."""
    if not LOAD.exists():
        pytest.skip("the load client is not built")
    with subprocess.Popen(
        [str(LOAD), *arguments],
        env=environment(daemon.machine) | (variables or {}),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ledger(daemon: DaemonProcess) -> dict:
    """The simulator's own account."""
    done = subprocess.run(
        [sys.executable, "-m", "hypervisor", "sim", "show", "--machine", str(daemon.machine), "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def fault(daemon: DaemonProcess, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "hypervisor", "sim", "fault", "--machine", str(daemon.machine), *arguments],
        check=True,
        capture_output=True,
    )


def gpu(daemon: DaemonProcess, index: int = 0):
    return calls.list_gpus(daemon)[index]


def test_memory_of_strangers_is_subtracted_and_comes_back(daemon: DaemonProcess) -> None:
    card, whole = gpu(daemon).capacity.vram.bytes, gpu(daemon).capacity.available_vram.bytes
    assert whole == card - ledger(daemon)["gpus"][0]["memory"]["reserved_bytes"]
    with client(daemon, "--idle", f"--hold={4 * GIB}", "--seconds=60"):
        wait_until(lambda: gpu(daemon).capacity.unattributed.bytes >= 4 * GIB, "the stranger to be seen")
        used = gpu(daemon)
        assert used.capacity.unattributed.bytes == ledger(daemon)["gpus"][0]["memory"]["used_bytes"]
        assert used.capacity.available_vram.bytes == whole - used.capacity.unattributed.bytes
        assert used.allocatable
        assert used.used_by == ""
        assert used.capacity.vram.bytes == card
        with pytest.raises(calls.Refused) as refused:
            calls.allocate(daemon, "whole", vram_bytes=whole, percent="10", gpu="0")
        assert refused.value.reason == "INSUFFICIENT_VRAM"
        left = gpu(daemon).capacity.available_vram.bytes
        calls.allocate(daemon, "rest", vram_bytes=left, percent="10", gpu="0")
    calls.release(daemon, "rest")
    wait_until(lambda: gpu(daemon).capacity.available_vram.bytes == whole, "the memory to come back")


def test_a_workload_of_ours_is_no_stranger_and_outlives_the_daemon(daemon: DaemonProcess) -> None:
    answer = calls.allocate(daemon, "worker", vram_bytes=8 * GIB, percent="50", gpu="0")
    variables = dict(answer.environment)
    assert Path(variables["SIM_MACHINE"]) == daemon.machine
    with client(daemon, "--idle", f"--hold={2 * GIB}", "--seconds=60", variables=variables) as process:

        def reserved() -> int:
            (allocation,) = calls.list_allocations(daemon)
            return allocation.devices[0].usage.reserved.bytes

        # Until its context is measured, what stands for it is accounted too.
        wait_until(lambda: reserved() == 2 * GIB, "the workload's account")
        wait_until(lambda: gpu(daemon).readings.process_count.value == 1, "the driver to list it")
        assert gpu(daemon).capacity.unattributed.bytes == 0
        assert gpu(daemon).used_by == "tensor-fusion"
        before = reserved()
        daemon.kill()
        assert process.poll() is None
        daemon.start().wait_ready()
        wait_until(lambda: reserved() == before, "the account after the restart")
        wait_until(lambda: gpu(daemon).capacity.unattributed.bytes == 0, "the process to be known again")
        assert process.poll() is None


HEALTH_REASONS = {"GPUHealthChanged", "GpuUnhealthy", "GpuRecovered"}


def test_a_lost_card_keeps_its_capacity_gets_no_grants_and_is_told_once(daemon: DaemonProcess) -> None:
    whole = gpu(daemon, 3).capacity.vram.bytes
    fault(daemon, "gpu=3,xid=79,lost")
    wait_until(lambda: not gpu(daemon, 3).allocatable, "the loss")
    lost = gpu(daemon, 3)
    assert lost.capacity.vram.bytes == whole
    assert lost.conditions
    with pytest.raises(calls.Refused):
        calls.allocate(daemon, "on-lost", vram_bytes=GIB, percent="10", gpu="3")
    calls.allocate(daemon, "elsewhere", vram_bytes=GIB, percent="10")
    assert daemon.get("/readyz")[0] == 200
    told = [event for event in calls.list_events(daemon) if event.regarding.uid == lost.uuid]
    assert [event.reason for event in told if event.reason in HEALTH_REASONS] == ["GpuUnhealthy"]
    assert len(calls.list_gpus(daemon)) == 8


def test_a_reading_of_zero_lowers_nothing(daemon: DaemonProcess) -> None:
    before = [each.capacity.vram.bytes for each in calls.list_gpus(daemon)]
    fault(daemon, "call=nvmlDeviceGetMemoryInfo*,return=zero,for=3s")

    def rejected() -> bool:
        return "gpuhv_reading_rejected_total{" in daemon.get("/metrics")[1]

    wait_until(rejected, "the rejected reading")
    assert [each.capacity.vram.bytes for each in calls.list_gpus(daemon)] == before
    wait_until(lambda: all(each.allocatable for each in calls.list_gpus(daemon)), "all cards to be grantable again")


def test_a_card_is_let_go_of_and_taken_back(daemon: DaemonProcess) -> None:
    uuid = gpu(daemon, 5).uuid
    with calls.stub(daemon, admin=True) as node:
        node.DetachGpu(node_pb2.DetachGpuRequest(gpu_uuid=uuid, reason="reset"), timeout=30)
    assert not gpu(daemon, 5).allocatable
    with pytest.raises(calls.Refused):
        calls.allocate(daemon, "on-detached", vram_bytes=GIB, percent="10", gpu=uuid)
    with calls.stub(daemon, admin=True) as node:
        node.AttachGpu(node_pb2.AttachGpuRequest(gpu_uuid=uuid), timeout=30)
    wait_until(lambda: gpu(daemon, 5).allocatable, "the card to be back")
    reasons = [event.reason for event in calls.list_events(daemon)]
    assert reasons.count("GPUDetached") == 1
    assert reasons.count("GPUAttached") == 1
