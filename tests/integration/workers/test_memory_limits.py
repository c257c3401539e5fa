"""VRAM limits that the driver keeps for cgroups (615 and newer), by the real daemon over real cgroups of this machine.

What could be held is judged by the simulated machine's own ledger; the programs do without the limiter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import opened
from hypervisor.workers.placing import AUTO, cgroup_for
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.workers.conftest import end_workers
from tests.simulated_load import LOAD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cgroup_for(AUTO, Path("/")) is None, reason="there is no tree of cgroups to write to"),
]
MIB = 2**20
GIB = 2**30
GROW = ("--idle", "--seconds", "0", "--grow", str(64 * MIB))
LIMIT = """
import pynvml as n, sys
n.nvmlInit()
told = n.c_nvmlGetMemoryLimits_v1_t(sys.argv[1].encode(), 0, 0, 0)
n.nvmlDeviceGetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(0), told)
print(told.hardLimit)
"""
LIFT = """
import pynvml as n, sys
n.nvmlInit()
n.nvmlDeviceSetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(0), n.c_nvmlSetMemoryLimits_v1_t(sys.argv[1].encode(), 0, 2**64 - 1))
"""  # noqa: E501
HOLD = "import time; time.sleep(600)"


class Node:
    """A daemon on a machine whose driver is of a given version."""

    def __init__(self, make_daemon: Callable[..., DaemonProcess], version: str, directory: Path) -> None:
        described = directory / "machine.yaml"
        described.write_text(
            f'version: 1\ndriver: {{version: "{version}", cuda: 13000}}\ngpus: [{{count: 1, profile: h100-sxm-80gb}}]\n'
        )
        self.daemon = make_daemon(simulate=str(described))
        self.home = cgroup_for(AUTO, self.daemon.state_directory)
        assert self.home is not None

    @cached_property
    def machine(self) -> Path:
        return self.daemon.machine

    def nvml(self, program: str, cgroup: Path) -> str:
        around = environment(self.machine)
        done = subprocess.run(
            [sys.executable, "-c", program, str(cgroup)], env=around, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def held_by(self, cgroup: Path) -> int:
        return int(self.nvml(LIMIT, cgroup))

    def peak_of_all(self) -> int:
        with opened(self.machine) as machine:
            return sum(use["bytes"] for each in machine.show()["groups"] for use in each["gpus"].values())

    def peak(self, name: str) -> int:
        with opened(self.machine) as machine:
            found = [each for each in machine.show()["groups"] if each["name"] == name]
        return sum(each["gpus"]["0"]["peak_bytes"] for each in found)

    def bypass(self, name: str, *flags: str) -> int:
        """The most that a program holds that was started by exec with 2 GiB, and drops the limiter."""
        around = ("env", "-u", "LD_PRELOAD", f"SIM_GROUP={name}")
        subprocess.run(self.exec(*flags, command=(*around, str(LOAD), *GROW)), timeout=60)
        return self.peak(name)

    def start_worker(self) -> dict[str, Any]:
        """A worker with the allocation "trainer"."""
        words = ("worker", "start", "--allocation", "trainer", "--server", self.daemon.admin_address, "-o", "json")
        command = [sys.executable, "-m", "hypervisor", *words, "one", "--", sys.executable, "-c", HOLD]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return dict(json.loads(done.stdout))

    def exec(self, *flags: str, command: tuple[str, ...]) -> list[str]:
        return [
            *(sys.executable, "-m", "hypervisor", "exec", "--server", self.daemon.owner_address, "--vram", "2Gi"),
            *(*flags, "--", *command),
        ]


@pytest.fixture
def make_node(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    made: list[Node] = []

    def make(version: str) -> Node:
        made.append(Node(make_daemon, version, tmp_path))
        made[-1].daemon.start().wait_ready()
        return made[-1]

    yield make
    for each in made:
        end_workers(each.daemon.state_directory)


def test_a_program_that_drops_the_limiter_is_bounded_by_the_driver(make_node) -> None:
    node = make_node("615.71.09")
    assert 2 * GIB - 64 * MIB < node.bypass("one") <= 2 * GIB
    # The cgroup goes with its allocation.
    wait_until(lambda: not (node.home / "_allocations").exists(), "the end of the allocation's cgroup")
    assert make_node("580.65.06").bypass("old") > 60 * GIB  # by a driver that has no such limits it is not


def test_limits_are_in_force_again_after_a_restart(make_node) -> None:
    node = make_node("615.71.09")
    daemon, worker = node.daemon, node.home / "one"
    daemon.cli("allocate", "trainer", "--gpu", "0", "--compute", "40%", "--vram", "8Gi", admin=True)
    pid = node.start_worker()["pid"]
    assert node.held_by(worker) == 8 * GIB
    with subprocess.Popen(node.exec("--name", "job", command=(str(LOAD), "--idle", "--seconds", "600"))) as job:
        try:

            def cgroups() -> list[Path]:
                return sorted((node.home / "_allocations").glob("*/"))

            (held,) = wait_until(cgroups, "the job's cgroup")
            wait_until(lambda: node.peak_of_all() > 0, "the job's context")
            assert node.held_by(held) == 2 * GIB
            daemon.kill()
            for each in (worker, held):
                node.nvml(LIFT, each)
                assert node.held_by(each) == 2**64 - 1
            daemon.start().wait_ready()
            wait_until(lambda: node.held_by(worker) == 8 * GIB, "the worker's limit")
            wait_until(lambda: node.held_by(held) == 2 * GIB, "the job's limit")
            found = json.loads(daemon.cli("get", "workers", "-o", "json").stdout)["items"]
            assert [(each["pid"], each.get("restarts", 0)) for each in found] == [(pid, 0)]
        finally:
            job.terminate()
    # Lowered limits are set too; and what a worker leaves, its cgroup takes along.
    daemon.cli("worker", "stop", "one", admin=True)
    wait_until(lambda: not worker.exists(), "the end of the worker's cgroup")


def test_a_limit_that_can_not_be_set_keeps_a_worker_from_starting(make_node) -> None:
    node = make_node("615.71.09")
    node.daemon.cli("allocate", "trainer", "--gpu", "0", "--vram", "8Gi", admin=True)
    fault = [sys.executable, "-m", "hypervisor", "sim", "fault", "--machine", str(node.machine)]
    subprocess.run([*fault, "call=nvmlDeviceSetMemoryLimits_v1,return=999"], check=True)
    assert "pid" not in node.start_worker()
    told = node.daemon.cli("describe", "worker", "one").stdout
    assert "nvmlDeviceSetMemoryLimits_v1" in told
    assert "restarts" in told.lower()
