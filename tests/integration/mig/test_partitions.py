"""MIG instances for allocations: the real daemon on a simulated machine, seen through its API and through NVML."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import DaemonProcess, wait_until

MACHINE = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus:
  - {count: 2, profile: h100-sxm-80gb}
mig:
  gpu0: {mode: on, instances: [{profile: 1g.10gb, start: 6}]}
"""


class Node:
    """A daemon on a machine of two cards, of which the first is divided already by somebody else."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon

    @property
    def machine(self) -> str:
        return str(self.daemon.wait_serving()["machine"])

    def cli(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        servers = {
            "HYPERVISOR_SERVER": self.daemon.read_address,
            "HYPERVISOR_ADMIN_SERVER": self.daemon.admin_address,
        }
        command = [sys.executable, "-m", "hypervisor", *words]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **servers, **(environment or {})},
            check=False,
            timeout=60,
        )

    def allocate(self, name: str, *words: str) -> Any:
        done = self.cli("allocate", name, "--isolation", "partitioned", *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["allocation"]

    def instances(self) -> set[str]:
        """What nvidia-ml-py lists in a process of its own: card, profile and UUID."""
        script = (
            "import pynvml as n\nn.nvmlInit()\n"
            "for i in range(n.nvmlDeviceGetCount()):\n"
            "  h = n.nvmlDeviceGetHandleByIndex(i)\n"
            "  for k in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):\n"
            "    try: m = n.nvmlDeviceGetMigDeviceHandleByIndex(h, k)\n"
            "    except n.NVMLError: continue\n"
            "    print(i, n.nvmlDeviceGetName(m).split(' MIG ')[1], n.nvmlDeviceGetUUID(m))\n"
        )
        command = ["sim", "run", "--machine", self.machine, "--", sys.executable, "-c", script]
        done = self.cli(*command)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split("\n")) - {""}

    def wait_instances(self, profiles: list[str]) -> set[str]:
        """Until these profiles are there, sorted, whoever made them."""

        def found() -> set[str]:
            now = self.instances()
            return now if sorted(each.split()[1] for each in now) == sorted(profiles) else set()

        return set(wait_until(found, f"the instances {profiles}; there are {self.instances()}"))

    def fault(self, text: str) -> None:
        done = self.cli("sim", "fault", "--machine", self.machine, text)
        assert done.returncode == 0, done.stderr

    def events(self) -> list[tuple[str, str]]:
        done = self.cli("get", "events", "-o", "json")
        return [(each["reason"], each["message"]) for each in json.loads(done.stdout)["items"]]


@pytest.fixture
def make_node(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Callable[..., Node]:
    description = tmp_path / "machine.yaml"
    description.write_text(MACHINE)

    def make(*flags: str) -> Node:
        return Node(make_daemon(*flags, simulate=str(description)).start().wait_ready())

    return make


def test_an_instance_is_made_for_an_allocation_and_ended_with_it(make_node: Callable[..., Node]) -> None:
    node = make_node()
    (foreign,) = node.instances()
    allocation = node.allocate("a", "--partition", "2g.20gb")
    uuid = allocation["devices"][0]["gpuUuid"]
    assert f"0 2g.20gb {uuid}" in node.instances()
    again = node.allocate("a", "--partition", "2g.20gb")
    assert again["uid"] == allocation["uid"]
    refused = node.cli("allocate", "b", "--isolation", "partitioned", "--gpu", uuid)
    assert refused.returncode == 1
    assert node.cli("release", "a").returncode == 0
    node.wait_instances(["1g.10gb"])
    assert node.instances() == {foreign}
    reasons = [reason for reason, _ in node.events()]
    assert reasons.count("PartitionCreated") == reasons.count("PartitionEnded") == 1


@pytest.mark.slow
def test_a_program_gets_its_instance_and_no_more(make_node: Callable[..., Node]) -> None:
    node = make_node()
    program = (
        "import os, pynvml as n; n.nvmlInit(); u = os.environ['CUDA_VISIBLE_DEVICES']; "
        "print(u, n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByUUID(u)).total >> 30)"
    )
    exec_words = ("exec", "--server", node.daemon.owner_address, "--isolation", "partitioned", "--vram", "15Gi", "--")
    done = node.cli(
        "sim",
        "run",
        "--machine",
        node.machine,
        "--",
        sys.executable,
        "-m",
        "hypervisor",
        *exec_words,
        sys.executable,
        "-c",
        program,
    )
    assert done.returncode == 0, done.stderr
    uuid, gibibytes = done.stdout.split()
    assert uuid.startswith("MIG-")
    assert int(gibibytes) == 19
    node.wait_instances(["1g.10gb"])


def test_what_finds_no_place_is_refused_with_the_reason_and_an_event(make_node: Callable[..., Node]) -> None:
    node = make_node()
    refused = node.cli("allocate", "a", "--isolation", "partitioned", "--partition", "7g.80gb")
    assert refused.returncode == 1
    assert "GPU 0: 7g.80gb has no place left" in refused.stderr
    assert "GPU 1: MIG mode is off" in refused.stderr
    assert "PartitionTemplateMatchFailed" in [reason for reason, _ in node.events()]
    planned = node.cli("allocate", "a", "--isolation", "partitioned", "--partition", "3g.40gb", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert len(node.instances()) == 1


@pytest.mark.slow
def test_row_86_a_compute_instance_that_fails_leaves_nothing_behind(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.fault("call=nvmlGpuInstanceCreateComputeInstance,return=23")
    refused = node.cli("allocate", "a", "--isolation", "partitioned", "--partition", "2g.20gb")
    assert refused.returncode == 1
    assert "nvmlGpuInstanceCreateComputeInstance" in refused.stderr
    assert len(node.instances()) == 1
    node.cli("sim", "fault", "--machine", node.machine, "--clear", "all")
    node.allocate("a", "--partition", "2g.20gb")


@pytest.mark.slow
def test_a_wished_geometry_is_there_after_a_start_and_after_a_reset(make_node: Callable[..., Node]) -> None:
    node = make_node("--mig-geometry", "1: 3g.40gb 2x1g.10gb")
    profiles = ["1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"]
    node.wait_instances(profiles)
    node.fault("gpu=1,reset")
    wait_until(lambda: len(node.instances()) < len(profiles) or "made again" in str(node.events()), "the reset")
    node.wait_instances(profiles)


@pytest.mark.slow
def test_a_geometry_of_as_many_others_is_in_force_after_the_next_start(make_node: Callable[..., Node]) -> None:
    node = make_node("--mig-geometry", "1: 3g.40gb 1g.10gb")
    node.wait_instances(["1g.10gb", "1g.10gb", "3g.40gb"])
    node.daemon.kill()
    changed = {"1: 3g.40gb 1g.10gb": "1: 2g.20gb 1g.10gb"}
    node.daemon.flags = tuple(changed.get(flag, flag) for flag in node.daemon.flags)
    node.daemon.start().wait_ready()
    node.wait_instances(["1g.10gb", "1g.10gb", "2g.20gb"])


@pytest.mark.slow
def test_a_torn_journal_is_told_and_nothing_of_its_card_is_touched(make_node: Callable[..., Node]) -> None:
    node = make_node()
    uuid = node.allocate("a", "--partition", "3g.40gb")["devices"][0]["gpuUuid"]
    before = node.wait_instances(["1g.10gb", "3g.40gb"])
    node.daemon.kill()
    (journal,) = (node.daemon.state_directory / "mig").glob("*.json")
    journal.write_bytes(journal.read_bytes()[:100])
    node.daemon.start().wait_ready()
    told = next(message for reason, message in node.events() if reason == "StateSetAside")
    assert "the journal of the MIG instances of GPU-" in told
    assert "end those that nobody needs" in told
    assert uuid in node.cli("get", "pods", "a", "-o", "json").stdout  # it goes on
    assert node.cli("release", "a").returncode == 0
    node.allocate("b", "--partition", "1g.10gb")
    node.wait_instances(["1g.10gb", "1g.10gb", "3g.40gb"])
    assert before < node.instances()


@pytest.mark.slow
def test_kills_at_any_moment_leave_no_instance_without_an_allocation(make_node: Callable[..., Node]) -> None:
    node = make_node()
    moments = random.Random(7)
    for round_number in range(8):
        name = f"a{round_number}"
        asking = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hypervisor",
                "allocate",
                name,
                "--isolation",
                "partitioned",
                "--partition",
                "1g.10gb",
                "--server",
                node.daemon.admin_address,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(moments.uniform(0.2, 2.5))  # the moment of the kill is what is varied
        os.kill(node.daemon.pid, signal.SIGKILL)
        asking.wait(60)
        node.daemon.kill()
        node.daemon.start().wait_ready()
        listed = json.loads(node.cli("get", "pods", "-o", "json").stdout)["items"]
        granted = {device["gpuUuid"] for each in listed for device in each["devices"]}

        def settled(granted: set[str] = granted) -> bool:
            ours = {each.split()[2] for each in node.instances()}
            return len(ours) == len(granted) + 1 and granted <= ours

        wait_until(settled, f"an instance for each of {granted} and the foreign one: {node.instances()}")
        for each in listed:
            node.cli("release", each["spec"]["allocationId"])
        node.wait_instances(["1g.10gb"])


@pytest.mark.slow
def test_an_instance_in_use_is_tried_again_without_our_own_handles(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.allocate("a", "--partition", "2g.20gb")
    node.fault("call=nvmlComputeInstanceDestroy,return=19,count=1")
    assert node.cli("release", "a").returncode == 0
    node.wait_instances(["1g.10gb"])
    reasons = [reason for reason, _ in node.events()]
    assert "PartitionFailed" not in reasons
    assert reasons.count("PartitionEnded") == 1


MANY = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus:
  - {count: 8, profile: h100-sxm-80gb}
mig:
""" + "".join(f"  gpu{at}: {{mode: on, instances: [{', '.join(['1g.10gb'] * 7)}]}}\n" for at in range(8))


@pytest.mark.slow
def test_row_92_many_instances_and_a_slow_driver_stall_nothing(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    description = tmp_path / "many.yaml"
    description.write_text(MANY + "faults:\n  - {call: 'nvmlDeviceGetMemoryInfo*', delay: 50ms}\n")
    node = Node(make_daemon(simulate=str(description)).start().wait_ready())

    def listed() -> bool:
        gpus = json.loads(node.cli("get", "gpus", "-o", "json").stdout)["items"]
        return len(gpus) == 56 and all(gpu["allocatable"] for gpu in gpus)

    wait_until(listed, "56 instances that take grants")
    began = time.monotonic()
    assert node.daemon.get("/readyz")[0] == 200
    assert node.daemon.get("/metrics")[0] == 200
    assert time.monotonic() - began < 2.0
