"""Allocations: a start with 256 of them, a grant beside them, and a round over 64 Pods. No device takes part."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hypervisor.allocations import Allocations
from tests.bench.figure import Figure, median
from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, request

RESTARTS = 7
ROUNDS = 20
DEVICE = "files only"


def measure() -> list[Figure]:
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as root:
        return [*_with(Path(root) / "256", 256), *_with(Path(root) / "64", 64)]


def _with(root: Path, count: int) -> list[Figure]:
    root.mkdir()
    node = Node(root, settings={"tflops_ratio": 100.0, "vram_ratio": 100.0})
    allocations = node.start()
    grants = [_seconds_of_grant(allocations, number) for number in range(count)]
    rounds = [_seconds_of_round(allocations, sequence) for sequence in range(2, 2 + ROUNDS)]
    before, held = node.contents(), allocations.all
    restarts = []
    for _ in range(RESTARTS):
        allocations.close()
        allocations = node.start()
        restarts.append(allocations.statistics().adoption_seconds)
    unchanged = node.contents() == before and allocations.all == held
    allocations.close()
    return [
        Figure(
            name=f"restart with {count} allocations: all adopted, nothing written",
            value=median(restarts),
            unit="s",
            target="<= 2 s" if count == 256 else "",
            holds=unchanged and max(restarts) <= 2 if count == 256 else None,
            least=min(restarts),
            most=max(restarts),
            device=DEVICE,
            note="content and time of change of each file compared" if unchanged else "FILES HAVE CHANGED",
        ),
        Figure(
            name=f"one grant beside {count - 1} others",
            value=median(grants[-10:]) * 1000,
            unit="ms",
            least=min(grants[-10:]) * 1000,
            most=max(grants[-10:]) * 1000,
            baseline=grants[0] * 1000,
            device=DEVICE,
            note="baseline: the first grant",
        ),
        Figure(
            name=f"one round over {count} allocations, once a second",
            value=median(rounds) * 1000,
            unit="ms",
            least=min(rounds) * 1000,
            most=max(rounds) * 1000,
            device=DEVICE,
            note="no process attached",
        ),
    ]


def _seconds_of_grant(allocations: Allocations, number: int) -> float:
    wanted = named(f"job-{number:03d}", request("0", compute=percent(5), vram=GIB))
    began = time.perf_counter()
    allocations.allocate(wanted, inventory(device(0)))
    return time.perf_counter() - began


def _seconds_of_round(allocations: Allocations, sequence: int) -> float:
    reading = inventory(device(0), sequence=sequence)
    began = time.perf_counter()
    allocations.step(reading)
    return time.perf_counter() - began
