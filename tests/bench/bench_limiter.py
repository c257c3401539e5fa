"""What the limiter adds to the driver's calls: nanoseconds on a driver that does nothing.

Runs with and without the library alternate, so that a slow moment of the machine meets both; of each the least counts,
because whatever else runs can only make a run slower.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from buildsupport.native import ROOT, WARNINGS, compiler
from hypervisor.simulation import machine as machines
from hypervisor.simulation.environment import environment
from hypervisor.simulation.profiles import load_description
from tests.bench.figure import Figure
from tests.bench.peer import peer_limiter

ROUNDS = 5
SECONDS = 120
LIMITER = ROOT / "hypervisor" / "native" / "libcuda_limiter.so"
NOOP = ROOT / "hypervisor" / "native" / "noop"
UUID = "GPU-00000000-0000-0000-0000-00000000000f"  # of the driver that does nothing
GIB = 1 << 30
ENDLESS_BURST_NS = 10**15  # so that no launch is blocked
NOT_LIMITED, LIMITED = 1_000_000, 900_000
DEVICE = "no-op driver"
# Figures by name, of each run: without a library, with ours, and with another's where one is named.
Runs = tuple[list[dict[str, float]], list[dict[str, float]], list[dict[str, float]]]


@dataclass(frozen=True)
class Programs:
    overhead: Path
    limit_files: Path


def compiled(folder: Path, output: str, *sources: str, flags: tuple[str, ...] = ()) -> Path:
    target = folder / output
    includes = [f"-I{ROOT / 'limiter' / part}" for part in ("include", "src", "tests")]
    inputs = [str(ROOT / "limiter" / source) for source in sources]
    subprocess.run(
        [*compiler(), "-std=c11", "-O2", "-pthread", *WARNINGS, *includes, *inputs, "-o", str(target), *flags],
        check=True,
    )
    return target


def prepare(folder: Path) -> Programs:
    return Programs(
        overhead=compiled(folder, "overhead", "bench/overhead.c", flags=("-ldl",)),
        limit_files=compiled(folder, "limit_files", "tests/limit_files.c", "tests/file_maker.c"),
    )


def surroundings(limits: Path | None, peer: Path | None = None) -> dict[str, str]:
    """The environment of a run without a library, with ours, or with another's."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_"))}
    variables["LD_LIBRARY_PATH"] = str(NOOP)
    if limits is not None:
        variables |= {"LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(limits)}
    elif peer is not None:
        variables["LD_PRELOAD"] = str(peer)
    return variables


def run(programs: Programs, limits: Path | None, *arguments: str, peer: Path | None = None) -> dict[str, float]:
    """The program's figures by their names. "launch beside": of a launch while another process launches as well."""
    command = [str(programs.overhead), arguments[0].split()[0], *arguments[1:]]
    variables = surroundings(limits, peer)
    with ExitStack() as stack:
        if arguments[0].endswith(" beside"):
            other = stack.enter_context(
                subprocess.Popen(
                    [str(programs.overhead), "keep-launching"],
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            if other.stdout is None or not other.stdout.readline().startswith("ready"):
                raise RuntimeError("the process beside did not launch")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=True)
    return {name: float(value) for name, value, _ in (line.split() for line in done.stdout.splitlines())}


def alternated(programs: Programs, limits: Path, share: int, *arguments: str, vram: int = 64 * GIB) -> Runs:
    """The runs without and with the library, in turn; fresh limit files for each run with it."""
    bare, limited, others = [], [], []
    peer = peer_limiter()
    for _ in range(ROUNDS):
        bare.append(run(programs, None, *arguments))
        if peer is not None:
            others.append(run(programs, None, *arguments, peer=peer))
        make = [
            str(programs.limit_files),
            "make",
            str(limits),
            UUID,
            str(vram),
            str(share),
            "0",
            str(ENDLESS_BURST_NS),
        ]
        subprocess.run(make, check=True)
        limited.append(run(programs, limits, *arguments))
    return bare, limited, others


def added(
    name: str,
    runs: Runs,
    key: str,
    target: float | None,
    unit: str = "ns",
    scale: float = 1,
) -> Figure:
    bare = [one[key] / scale for one in runs[0]]
    limited = [one[key] / scale for one in runs[1]]
    base = min(bare)
    value = min(limited) - base
    others = [one[key] / scale for one in runs[2]]
    return Figure(
        name=name,
        value=value,
        unit=unit,
        target="" if target is None else f"<= {target:g} {unit}",
        holds=None if target is None else value <= target,
        least=value,
        most=max(limited) - base,
        baseline=base,
        peer=min(others) - base if others else None,
        device=DEVICE,
        note=f"least of {ROUNDS} alternated runs; baseline without the library",
    )


def scaling(runs: Callable[[str], Runs], under: str) -> list[Figure]:
    """How two threads do against one: by the clock, which needs two idle processors, and by CPU time."""
    one, two = runs("1"), runs("2")

    def pairs(which: int) -> float:
        return max(r["pairs"] for r in two[which]) / max(r["pairs"] for r in one[which])

    def cpu(which: int) -> float:
        return min(r["cpu_pair"] for r in two[which]) / min(r["cpu_pair"] for r in one[which])

    return [
        Figure(
            name=f"alloc and free{under}, two threads against one",
            value=pairs(1),
            unit="x",
            target=">= 1.7 x",
            holds=pairs(1) >= 1.7,
            baseline=pairs(0),
            peer=pairs(2) if one[2] else None,
            device=DEVICE,
            note="pairs per second while both run; says little where the baseline is far from 2",
        ),
        Figure(
            name=f"CPU time of an alloc and free{under}, two threads against one",
            value=cpu(1),
            unit="x",
            target="<= 1.5 x",
            holds=cpu(1) <= 1.5,
            baseline=cpu(0),
            peer=cpu(2) if one[2] else None,
            device=DEVICE,
            note="what threads cost each other, whatever else the machine does",
        ),
    ]


def lookups(folder: Path) -> Figure:
    """How many of the recorded queries of a CUDA runtime have another answer with the library than without."""
    machine, limits = folder / "machine", folder / "lookup-limits"
    machines.create(machine, load_description("t4"))
    with machines.opened(machine) as opened:
        uuid = opened.show()["gpus"][0]["uuid"]
    limits.mkdir()
    make = [str(compiled(folder, "lookup_limits", "tests/limit_files.c", "tests/file_maker.c")), "make", str(limits)]
    subprocess.run([*make, uuid, str(GIB), str(NOT_LIMITED)], check=True)
    probe = compiled(folder, "lookup_probe", "tests/lookup_probe.c", flags=("-ldl", "-rdynamic"))
    queries = (ROOT / "limiter" / "tests" / "cudart_13_0_queries.txt").read_text()

    def answers(at: Path | None, peer: Path | None = None) -> list[str]:
        variables = environment(machine, surroundings(None)) | surroundings(at, peer)
        variables["LD_LIBRARY_PATH"] = environment(machine, {})["LD_LIBRARY_PATH"]
        command = [str(probe), "status"]
        done = subprocess.run(command, env=variables, input=queries, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    bare = answers(None)

    def differing_from(others: list[str]) -> int:
        return sum(one != other for one, other in zip(bare, others, strict=True))

    peer = peer_limiter()
    differing = differing_from(answers(limits))
    return Figure(
        name=f"lookups answered otherwise than by the driver, of {len(bare)}",
        value=differing,
        unit="answers",
        target="0",
        holds=differing == 0,
        peer=None if peer is None else differing_from(answers(None, peer)),
        note="queries recorded of the CUDA 13.0 runtime; result, status and symbol compared",
    )


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="limiter-bench-") as name:
        folder = Path(name)
        limits = folder / "limits"
        limits.mkdir()
        programs = prepare(folder)

        def runs(share: int, *arguments: str) -> Runs:
            return alternated(programs, limits, share, *arguments)

        figures = [
            added("launch, no compute limit", runs(NOT_LIMITED, "launch"), "launch", 5),
            added("launch, limited and not blocked", runs(LIMITED, "launch"), "launch", 25),
            added("launch, limited, two processes", runs(LIMITED, "launch beside"), "launch", 40),
        ]
        for live in ("0", "1000", "100000"):
            pairs = runs(NOT_LIMITED, "memory", live, "1")
            figures.append(added(f"alloc with {live} live", pairs, "alloc", 200))
            figures.append(added(f"free with {live} live", pairs, "free", 200))
        figures.extend(scaling(lambda threads: runs(NOT_LIMITED, "memory", "0", threads), ""))
        smaller = partial(alternated, programs, limits, NOT_LIMITED, "memory", "0", vram=8 * GIB)
        figures.extend(scaling(smaller, " under 8 GiB"))
        figures.append(added("start of a process, to cuInit", runs(LIMITED, "init"), "init", 1000, "us", 1000))
        figures.append(lookups(folder))
        return figures
