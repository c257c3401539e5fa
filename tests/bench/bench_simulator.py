"""What the simulated driver costs, and whether its GPUs share, count and survive as they should.

Of a cost the least of its runs counts, because whatever else runs can only make a run slower. The
figures of sharing are ratios of what ran in one and the same time; the ledger says how long the GPU was busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from buildsupport.native import ROOT, WARNINGS, compiler
from hypervisor.simulation import machine as machines
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.environment import environment, library_folder
from tests.bench.figure import Figure

ROUNDS = 5
SECONDS = 3.0
KILLINGS = 100
PATIENCE = 120

UTILISATION = """
import json, subprocess, sys, time
from pathlib import Path
import pynvml
from hypervisor.simulation.machine import opened
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
load = subprocess.Popen([sys.argv[2], "busy", "6", "50"], stdout=subprocess.DEVNULL)
time.sleep(1)
with opened(Path(sys.argv[1])) as machine:
    def busy():
        return machine.show()["gpus"][0]["busy_ns"]
    samples, start, at = [], busy(), time.monotonic()
    while time.monotonic() - at < 4:
        samples.append(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        time.sleep(0.02)
    ledger = (busy() - start) / (time.monotonic() - at) / 1e7
load.wait()
print(json.dumps([sum(samples) / len(samples), ledger]))
"""


class Bench:
    """A folder with the program and machines of one GPU, with MPS and without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "simulator_costs"
        library = str(library_folder() / "libcuda.so.1")
        source = str(ROOT / "tests" / "bench" / "simulator_costs.c")
        include = f"-I{ROOT / 'simulator' / 'cuda'}"
        subprocess.run(
            [*compiler(), "-std=c11", "-O2", *WARNINGS, include, source, library, "-o", str(self.program)], check=True
        )

    def machine(self, *, mps: bool = False) -> Path:
        path = self.folder / ("shared" if mps else "sliced")
        if not path.exists():
            gpu = f"{{count: 1, profile: h100-sxm-80gb, mps: {str(mps).lower()}}}"
            text = f'version: 1\ndriver: {{version: "580.65.06", cuda: 13000}}\ngpus: [{gpu}]\n'
            machines.create(path, parse_machine(text, "the bench's machine", profile="bench"))
        return path

    def start(self, machine: Path, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.program), *words],
            env=environment(machine),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def figures(self, machine: Path, *words: str, processes: int = 1) -> list[list[float]]:
        """What so many of them at one time print."""
        running = [self.start(machine, *words) for _ in range(processes)]
        told = [process.communicate(timeout=PATIENCE)[0] for process in running]
        if any(process.returncode for process in running):
            raise RuntimeError(f"{' '.join(words)} failed")
        return [[float(word) for word in text.split()] for text in told]


def costs(bench: Bench) -> list[Figure]:
    machine = bench.machine()
    alone = [bench.figures(machine, "launch", "100000")[0][0] / 1000 for _ in range(ROUNDS)]
    two = [max(row[0] for row in bench.figures(machine, "launch", "50000", processes=2)) / 1000 for _ in range(ROUNDS)]
    memory = [bench.figures(machine, "allocate", "20000")[0][0] / 1000 for _ in range(ROUNDS)]
    rows = (
        ("a simulated launch, alone", alone, 1.0),
        ("a simulated launch, two processes contending", two, 3.0),
        ("an allocation and its freeing, simulated", memory, 5.0),
    )
    return [
        Figure(
            name=name,
            value=min(values),
            unit="us",
            target=f"<= {target:g} us",
            holds=min(values) <= target,
            least=min(values),
            most=max(values),
        )
        for name, values, target in rows
    ]


def sharing(bench: Bench) -> list[Figure]:
    length = str(SECONDS)
    (one,) = bench.figures(bench.machine(mps=True), "busy", length, "100")
    sliced = bench.figures(bench.machine(), "busy", length, "100", processes=2)
    shared = bench.figures(bench.machine(mps=True), "busy", length, "100", processes=2)
    parts = [row[1] / sum(row[1] for row in sliced) * 100 for row in sliced]
    unequal = max(abs(part - 50) for part in parts)
    full = one[1] / one[0]
    slower = max(abs(row[1] / row[0] / full - 1) * 100 for row in shared)
    return [
        Figure(
            name="two processes without MPS: how far from half each",
            value=unequal,
            unit="points",
            target="<= 1 point",
            holds=unequal <= 1,
        ),
        Figure(
            name="two processes with MPS at 10 % occupancy: how far from full speed",
            value=slower,
            unit="%",
            target="<= 2 %",
            holds=slower <= 2,
            baseline=full,
            note="baseline: kernels of 1 ms a second, alone",
        ),
    ]


def utilisation(bench: Bench) -> Figure:
    machine = bench.machine()
    done = subprocess.run(
        [sys.executable, "-c", UTILISATION, str(machine), str(bench.program)],
        env=environment(machine),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    read, ledger = json.loads(done.stdout)
    return Figure(
        name="utilisation read through NVML less busy time",
        value=abs(read - ledger),
        unit="points",
        target="<= 1 point",
        holds=abs(read - ledger) <= 1,
        baseline=ledger,
        note="baseline: busy time by the ledger, %; a load of half the time",
    )


def emptiness(bench: Bench) -> Figure:
    kibibytes = bench.figures(bench.machine(), "hold", str(78 * 1024))[0][0]
    return Figure(
        name="host memory of 78 GiB allocated and not touched",
        value=kibibytes,
        unit="KiB",
        target="<= 1024 KiB",
        holds=kibibytes <= 1024,
    )


def killings(bench: Bench) -> Figure:
    machine = bench.machine()
    for _ in range(KILLINGS):
        with bench.start(machine, "endless") as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()
    check = [
        "from hypervisor.cli import main; main()",
        "sim",
        "show",
        "--check",
        "-o",
        "json",
        "--machine",
        str(machine),
    ]
    told = subprocess.run([sys.executable, "-c", *check], capture_output=True, text=True, timeout=PATIENCE, check=False)
    breaches = len(json.loads(told.stdout)["breaches"])
    return Figure(
        name=f"breaches of the machine's invariants after {KILLINGS} times kill -9 in the middle of launches",
        value=breaches,
        unit="breaches",
        target="0",
        holds=breaches == 0,
    )


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        return [*costs(bench), *sharing(bench), utilisation(bench), emptiness(bench), killings(bench)]
