"""Health: how soon a lost card is told, what a hang costs the others, what zeros change, and what watching costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import trio

from hypervisor.config import Settings
from hypervisor.gpu import open_gpu_reader
from hypervisor.gpu.health.monitor import HealthMonitor
from hypervisor.gpu.session import Session
from hypervisor.model import HealthState
from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import create
from hypervisor.simulation.profiles import load_description
from hypervisor.v1 import node_pb2
from tests.bench.figure import Figure, median
from tests.daemon_process import wait_until
from tests.integration.health.conftest import Node, start
from tests.integration.node import calls

LOSSES = 5
HANG_SECONDS = 45.0  # over a retry of a card that was left out for half a minute
BESIDE_SECONDS = 15.0
ZERO_SECONDS = 30.0
WATCH_SECONDS = 15.0
DOCTOR_RUNS = 3


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="hypervisor-bench-") as directory, _node(Path(directory)) as node:
        figures = [*_losses(node), _zeros(node), *_hang(node), _doctor(node)]
    return [*figures, _watching()]


@contextmanager
def _node(directory: Path) -> Iterator[Node]:
    """Settings as they come: a reading each second. Sixteen cards."""
    started = start(directory, "--reading-interval-seconds", "1", "--reading-timeout-seconds", "10")
    node = next(started)
    try:
        yield node
    finally:
        started.close()


def _losses(node: Node) -> list[Figure]:
    taken: dict[str, list[float]] = {"API": [], "events": [], "/metrics": []}
    for index in range(LOSSES):
        uuid = node.gpu(index).uuid
        begun = time.monotonic()
        node.fault(f"gpu={index},lost")
        wait_until(lambda uuid=uuid: node.state(uuid) is HealthState.LOST, "the API")
        taken["API"].append(time.monotonic() - begun)
        wait_until(lambda uuid=uuid: "GpuUnhealthy" in node.events(uuid), "the event")
        taken["events"].append(time.monotonic() - begun)
        wait_until(lambda uuid=uuid: node.metric("gpu_health_state", uuid=uuid, state="lost") == 1, "the metric")
        taken["/metrics"].append(time.monotonic() - begun)
    node.clear()
    wait_until(lambda: all(node.state(index) is HealthState.HEALTHY for index in range(LOSSES)), "all cards")
    return [
        Figure(
            name=f"a lost GPU is lost in {where}",
            value=median(seconds),
            least=min(seconds),
            most=max(seconds),
            unit="s",
            target="<= 2",
            holds=max(seconds) <= 2,
        )
        for where, seconds in taken.items()
    ]


def _zeros(node: Node) -> Figure:
    before = {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(node.daemon)}
    node.fault("call=nvmlDeviceGetMemoryInfo*,return=zero")
    begun, changed, looks = time.monotonic(), 0, 0
    while time.monotonic() - begun < ZERO_SECONDS:
        changed += {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(node.daemon)} != before
        looks += 1
        time.sleep(0.1)
    rejected = node.metric("reading_rejected_total", field="total_memory", reason="zero") or 0
    node.clear()
    wait_until(lambda: not node.codes(0), "the readings to be believed again")
    return Figure(
        name=f"published capacities that {ZERO_SECONDS:g} s of zero readings change",
        value=changed,
        unit="",
        target="0",
        holds=changed == 0 and rejected > 0,
        note=f"{looks} looks at {len(before)} cards, {rejected:g} readings of a card rejected",
    )


def _hang(node: Node) -> list[Figure]:
    hung = 15
    answer_before, age_before = _worst(node, BESIDE_SECONDS, hung)
    node.fault(f"gpu={hung},call=nvmlDeviceGetMemoryInfo*,hang=forever")
    answer, age = _worst(node, HANG_SECONDS, hung)
    node.clear()
    note = f"a call that hangs for {HANG_SECONDS:g} s; the baseline is without it"
    return [
        Figure(
            name="the longest answer beside a hang",
            value=answer,
            baseline=answer_before,
            unit="s",
            target="<= 1",
            holds=answer <= 1,
            note=note,
        ),
        Figure(
            name="the oldest figure of the other cards beside a hang",
            value=age,
            baseline=age_before,
            unit="s",
            target="<= 1 s over the baseline",
            holds=age - age_before <= 1,
            note=note,
        ),
    ]


def _worst(node: Node, seconds: float, hung: int) -> tuple[float, float]:
    """The longest answer, and the oldest figure of a card that does not hang. Over one connection: to open one each
    time is the client's work and several times that of an answer."""
    begun = time.monotonic()
    answer = age = 0.0
    with calls.stub(node.daemon) as service:
        while time.monotonic() - begun < seconds:
            asked = time.monotonic()
            gpus = service.ListGpus(node_pb2.ListGpusRequest(), timeout=calls.SECONDS).gpus
            answer = max(answer, time.monotonic() - asked)
            age = max(age, *(gpu.capacity.vram.age_seconds for gpu in gpus if gpu.index != hung))
            time.sleep(0.05)
    return answer, age


def _doctor(node: Node) -> Figure:
    command = [sys.executable, "-m", "hypervisor", "doctor", "node", "--server", node.daemon.read_address]
    seconds = []
    for _ in range(DOCTOR_RUNS):
        begun = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60)
        seconds.append(time.monotonic() - begun)
    return Figure(
        name="hypervisor doctor node",
        value=median(seconds),
        least=min(seconds),
        most=max(seconds),
        unit="s",
        target="<= 3",
        holds=median(seconds) <= 3,
        note="with a daemon, on this machine; the start of the program included",
    )


def _watching() -> Figure:
    """Reader and daemon's side on eight cards, with the watching of health and without, one after the other twice."""
    with tempfile.TemporaryDirectory(prefix="hypervisor-bench-") as directory:
        machine = Path(directory) / "machine"
        create(machine, load_description("h100-sxm-80gb"))
        variables = environment(machine, dict(os.environ))
        whole, without = [], []
        for _ in range(2):
            whole.append(_cost(variables))
            with (
                mock.patch.object(Session, "_look_after_health", _nothing),
                mock.patch.object(HealthMonitor, "look", return_value=False),
            ):
                without.append(_cost(variables))
    share = max(0.0, min(whole) - min(without))
    return Figure(
        name="idle cost of watching the health of 8 GPUs",
        value=share * 100,
        unit="% of a core",
        target="<= 0.5",
        holds=share <= 0.005,
        baseline=min(without) * 100,
        note=f"reading with it {min(whole) * 100:.2f} %",
    )


async def _nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


def _cost(variables: dict[str, str]) -> float:
    """CPU time of the reader and of this process, as a share of the time."""

    async def main() -> float:
        async with open_gpu_reader(Settings(), environment=variables) as reader:
            sequence = 0
            while len(reader.inventory.devices) < 8:
                sequence = (await reader.next_inventory(sequence)).sequence
            child = reader.statistics().child_pid
            assert child is not None
            begun, before = time.monotonic(), _cpu_seconds(child) + time.process_time()
            await trio.sleep(WATCH_SECONDS)
            used = _cpu_seconds(child) + time.process_time() - before
            return used / (time.monotonic() - begun)

    return trio.run(main)


def _cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
