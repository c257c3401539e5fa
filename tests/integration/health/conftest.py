"""A daemon on a simulated machine of sixteen cards, with a root of its own for the host's files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hypervisor.model import HealthState
from hypervisor.simulation.faults import parse_fault_text
from hypervisor.simulation.machine import Machine, create
from hypervisor.simulation.profiles import load_description
from hypervisor.v1 import node_pb2, types_pb2
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls

MACHINE = """
version: 1
driver: {version: "590.44.01", cuda: 13010}
gpus:
  - {count: 16, profile: h100-sxm-80gb}
nvlink: {topology: nvswitch, links_per_gpu: 18, version: 4, switches: 4}
"""
STATES = {getattr(types_pb2, f"HEALTH_STATE_{state.name}"): state for state in HealthState}


def put_on_bus(root: Path, address: str, driver: str = "nvidia") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


@dataclass
class Node:
    """The daemon, its machine, and the root of its host."""

    daemon: DaemonProcess
    machine: Machine
    root: Path
    faults: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by card, -1 for all
    logged: int = 0

    def fault(self, text: str) -> None:
        fault = parse_fault_text(text, self.machine.gpu_count)
        self.faults[fault.gpu].append(self.machine.add_fault(fault))

    def clear(self, index: int | None = None) -> None:
        """Take back the faults of a card, or all."""
        for faults in self.faults.values() if index is None else (self.faults[index],):
            while faults:
                self.machine.clear_fault(faults.pop())

    def log(self, message: str, *, seconds: float) -> None:
        self.logged += 1
        with (self.root / "dev/kmsg").open("a") as log:
            log.write(f"3,{self.logged},{int(seconds * 1e6)},-;{message}\n")

    def gpu(self, which: int | str):
        """By index, or by UUID: a card that can't be reached for a while may find its index taken."""
        return next(gpu for gpu in calls.list_gpus(self.daemon) if which in (gpu.index, gpu.uuid))

    def state(self, which: int | str) -> HealthState:
        return STATES[self.gpu(which).health]

    def codes(self, which: int | str) -> set[str]:
        return {condition.type for condition in self.gpu(which).conditions}

    def events(self, uuid: str) -> list[str]:
        return [event.reason for event in calls.list_events(self.daemon) if event.regarding.uid == uuid]

    def verdict(self, check: str, uuid: str) -> str:
        """Of the doctor about one card."""
        with calls.stub(self.daemon) as stub:
            told = stub.Diagnose(node_pb2.DiagnoseRequest(subject=f"gpu/{uuid}"), timeout=calls.SECONDS)
        result = next(each for each in told.checks if each.check_id == check)
        return node_pb2.Verdict.Name(result.verdict).rpartition("_")[2].lower()

    def metric(self, name: str, **labels: str) -> float | None:
        for line in self.daemon.get("/metrics")[1].splitlines():
            if line.startswith(f"gpuhv_{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rpartition(" ")[2])
        return None

    def bus_id(self, which: int | str) -> str:
        domain, _, rest = self.gpu(which).pci_bus_id.lower().partition(":")
        return f"{domain[-4:]}:{rest}"


def start(directory: Path, *flags: str) -> Iterator[Node]:
    path, description = directory / "machine", directory / "sixteen.yaml"
    description.write_text(MACHINE)
    create(path, load_description(str(description)))
    root = directory / "host"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kmsg").touch()
    machine = Machine.open(path)
    daemon = DaemonProcess(
        directory,
        *("--simulate", str(path), "--host-root", str(root)),
        *("--reading-interval-seconds", "0.1", "--reading-timeout-seconds", "8", *flags),
    )
    try:
        daemon.start().wait_ready()
        node = Node(daemon, machine, root)
        wait_until(lambda: len(calls.list_gpus(daemon)) == machine.gpu_count, "all cards")
        for gpu in calls.list_gpus(daemon):
            put_on_bus(root, node.bus_id(gpu.index))
            (root / f"dev/nvidia{gpu.index}").touch()
        (root / "dev/nvidiactl").touch()
        yield node
    finally:
        daemon.close()
        machine.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    yield from start(tmp_path_factory.mktemp("health"), "--health-hold-seconds", "0.1")
