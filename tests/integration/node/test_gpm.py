"""Compute limits where the driver attributes no time to processes: held by GPM for who is alone, else unverified.

Truth is the simulator's own busy time of the Pod's processes. What a Pod's launches are charged is made wrong by the
correction that lies in its file: a quarter of what they take, so that without a witness it has four times its limit.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypervisor.limits import ShmFile
from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import opened
from hypervisor.v1 import types_pb2 as pb
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls
from tests.simulated_load import LOAD, program

DRIVER = 'version: 1\ndriver: {version: "580.65.06", cuda: 13000}\n'
INSTANCES = "mig: {gpu0: {mode: on, instances: [3g.40gb, 2g.20gb]}}\n"
SHARE = 0.2
SECONDS = 3.0  # of the machine, that a share is measured over


class Node:
    """A daemon on one card, and Pods on its first device."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.device = calls.list_gpus(daemon)[0].uuid

    def allocate(self, name: str, *, correction: float = 1.0) -> dict[str, str]:
        """The environment of an allocation, to whose charges this correction applies from the start."""
        made = calls.allocate(self.daemon, name, vram_bytes=2**30, percent=f"{SHARE * 100:g}", gpu=self.device)
        if correction != 1:
            self.daemon.stop()  # a daemon that has read the file does not look at it again
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            shm = ShmFile.open(Path(made.allocation.directory) / "shm", boot_id=boot_id)
            shm.set_correction(0, round(correction * 1_000_000), 0)
            shm.close()
            self.daemon.start().wait_ready()
        return dict(made.environment)

    @contextmanager
    def load(self, name: str, variables: dict[str, str]) -> Iterator[None]:
        simulated = environment(self.daemon.machine) | {"SIM_GROUP": name}
        with subprocess.Popen(
            [str(LOAD), "--kernel-us=1000", "--seconds=120"],
            env={**os.environ, **simulated, **variables},
            stdout=subprocess.DEVNULL,
        ) as client:
            try:
                yield
            finally:
                client.kill()

    def share(self, name: str) -> float:
        """Of the device's time, from now on."""

        def look() -> tuple[float, float]:
            with opened(self.daemon.machine) as machine:
                state = machine.show()
            row = next(each for each in state["groups"] if each["name"] == name)
            return state["clock"]["now_ns"] / 1e9, sum(each["busy_ns"] for each in row["gpus"].values()) / 1e9

        began, before = look()
        wait_until(lambda: look()[0] >= began + SECONDS, "the window")
        ended, after = look()
        return (after - before) / (ended - began)

    def allocation(self, name: str) -> pb.Allocation:
        found: list[pb.Allocation] = calls.list_allocations(self.daemon)
        return next(each for each in found if each.spec.allocation_id == name)

    def wait_enforcement(self, name: str, wanted: int) -> None:
        wait_until(lambda: self.allocation(name).enforcement == wanted, f"enforcement {wanted} of {name}")

    def usage(self, name: str) -> pb.DeviceUsage:
        return self.allocation(name).devices[0].usage


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(make_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> MakeNode:
    def make(profile: str, more: str = "", *faults: str) -> Node:
        description = tmp_path / "machine.yaml"
        description.write_text(f"{DRIVER}gpus: [{{count: 1, profile: {profile}}}]\n{more}")
        machine = tmp_path / "machine"
        subprocess.run(program("sim", "create", str(description), "--machine", str(machine)), check=True)
        for fault in faults:
            subprocess.run(program("sim", "fault", "--machine", str(machine), fault), check=True)
        return Node(make_daemon(simulate=str(machine)).start().wait_ready())

    return make


NO_SAMPLES = "call=nvmlDeviceGetProcessUtilization,return=3"
SILENT = "call=nvmlDeviceGetProcessUtilization,return=zero"
NO_GPM = "call=nvmlGpm*,return=3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "more", "faults"),
    [("h100-sxm-80gb", INSTANCES, ()), ("h100-sxm-80gb", "", (NO_SAMPLES,)), ("h100-sxm-80gb", "", (SILENT,))],
    ids=["instance", "no samples", "silent"],
)
def test_who_is_alone_is_held_to_its_limit_by_gpm(
    make_node: MakeNode, profile: str, more: str, faults: tuple[str, ...]
) -> None:
    node = make_node(profile, more, *faults)
    with node.load("job", node.allocate("job", correction=0.25)):
        wait_until(lambda: node.usage("job").busy_ratio.source == pb.FIGURE_SOURCE_GPM, "the word of GPM")
        wait_until(lambda: node.usage("job").pacing.correction > 0.9, "the correction")
        shares = [node.share("job") for _ in range(3)]
        # A load that gets no CPU can't use its share; more than it is never right.
        assert shares[-1] <= SHARE + 0.01, shares
        assert max(shares) >= SHARE - 0.01, shares
        node.wait_enforcement("job", pb.ENFORCEMENT_VERIFIED)
        assert node.usage("job").pacing.achieved_ratio.source == pb.FIGURE_SOURCE_GPM
        described = node.daemon.cli("describe", "pod", "job").stdout
        assert "gpm" in described


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "more", "faults"),
    [
        ("a100-sxm-80gb", INSTANCES, ()),
        ("h100-sxm-80gb", INSTANCES, (NO_GPM,)),
        ("h100-sxm-80gb", "", (SILENT, NO_GPM)),
    ],
    ids=["before Hopper", "no GPM", "silent"],
)
def test_without_gpm_nobody_sees_that_it_is_off_and_nothing_is_claimed(
    make_node: MakeNode, profile: str, more: str, faults: tuple[str, ...]
) -> None:
    node = make_node(profile, more, *faults)
    with node.load("job", node.allocate("job", correction=0.25)):
        node.wait_enforcement("job", pb.ENFORCEMENT_UNVERIFIED)
        assert node.share("job") > 2.5 * SHARE, "four times as much, and less where it gets no CPU"
        usage = node.usage("job")
        assert usage.pacing.correction == pytest.approx(0.25)
        assert usage.pacing.correction_frozen
        assert not usage.busy_ratio.HasField("value")


@pytest.mark.slow
def test_two_in_one_instance_are_nobody_s_witness(make_node: MakeNode) -> None:
    node = make_node("h100-sxm-80gb", INSTANCES)
    first = node.allocate("first")
    with node.load("first", first):
        node.wait_enforcement("first", pb.ENFORCEMENT_VERIFIED)
        with node.load("second", node.allocate("second")):
            for name in ("first", "second"):
                node.wait_enforcement(name, pb.ENFORCEMENT_UNVERIFIED)
                assert not node.usage(name).busy_ratio.HasField("value")
                assert node.usage(name).pacing.correction_frozen
        node.wait_enforcement("first", pb.ENFORCEMENT_VERIFIED)


@pytest.mark.slow
def test_a_stranger_on_the_instance_is_seen_in_the_driver_s_list(make_node: MakeNode) -> None:
    node = make_node("h100-sxm-80gb", INSTANCES)
    with node.load("job", node.allocate("job")):
        node.wait_enforcement("job", pb.ENFORCEMENT_VERIFIED)
        with node.load("stranger", {"CUDA_VISIBLE_DEVICES": node.device}):
            node.wait_enforcement("job", pb.ENFORCEMENT_UNVERIFIED)
        node.wait_enforcement("job", pb.ENFORCEMENT_VERIFIED)
