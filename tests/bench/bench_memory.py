"""Exact memory, measured: processes that race and die, processes that all start at once, and threads.

The judge of the first is the simulator's own ledger of the group; nanoseconds are on the driver that does nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from hypervisor.simulation import machine as machines
from hypervisor.simulation.environment import environment
from hypervisor.simulation.profiles import load_description
from tests.bench.bench_limiter import (
    DEVICE,
    GIB,
    LIMITER,
    NOOP,
    ROUNDS,
    SECONDS,
    UUID,
    Programs,
    alternated,
    compiled,
    prepare,
)
from tests.bench.figure import Figure
from tests.bench.peer import peer_limiter

MIB = 1 << 20
RACERS, KILLED = 64, 20
RACE_SECONDS = 2.0
RACE_LIMIT = 8 * GIB
STARTERS = 300
MANY_THREADS = "16"


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "SIM_"))}


def race(folder: Path, programs: Programs, *, limited: bool, peer: Path | None = None) -> int:
    """Bytes that the group held over the limit at its worst, by the simulator's ledger, contexts included."""
    which = "peer" if peer is not None else str(limited)
    machine, limits = folder / f"machine-{which}", folder / f"race-{which}"
    machines.create(machine, load_description("t4"))
    limits.mkdir()
    with machines.opened(machine) as opened:
        gpu = opened.show()["gpus"][0]
    context = str(gpu["memory"]["context_bytes"])
    make = [str(programs.limit_files), "make", str(limits), gpu["uuid"], str(RACE_LIMIT), "1000000", context]
    subprocess.run(make, check=True)
    driver = LIMITER.parent / "simulator" / "libcuda.so.1"
    racer = compiled(folder, "racer", "tests/racer.c", flags=(str(driver),))
    variables = environment(machine, clean()) | {"SIM_GROUP": "race"}
    if limited:
        variables |= {"LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(limits)}
    elif peer is not None:
        variables["LD_PRELOAD"] = str(peer)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [str(racer), str(number), "64"],
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(RACERS)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes[: KILLED * 3 : 3]:
            time.sleep(RACE_SECONDS / KILLED)  # spread over the race, which is a time and not a wait
            process.kill()
        for process in processes:
            process.send_signal(signal.SIGKILL)
    with machines.opened(machine) as opened:
        group = next(row for row in opened.show()["groups"] if row["name"] == "race")
    return max(0, int(group["gpus"]["0"]["peak_bytes"]) - RACE_LIMIT)


# All that the limit leaves, in pieces: how much the driver has granted, less the context.
FILL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for piece in (16 << 20, 1 << 20, 1 << 16):
    while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(piece)) == 0:
        pass
"""


def reachable(folder: Path, programs: Programs) -> Figure:
    """The share of the limit, less the context, that one process gets; by the simulator's ledger."""
    machine, limits = folder / "machine-filled", folder / "filled"
    machines.create(machine, load_description("t4"))
    limits.mkdir()
    with machines.opened(machine) as opened:
        gpu = opened.show()["gpus"][0]
    context = int(gpu["memory"]["context_bytes"])
    make = [str(programs.limit_files), "make", str(limits), gpu["uuid"], str(RACE_LIMIT), "1000000", str(context)]
    subprocess.run(make, check=True)
    variables = environment(machine, clean()) | {"SIM_GROUP": "fill"}
    variables |= {"LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(limits)}
    subprocess.run([sys.executable, "-c", FILL], env=variables, timeout=SECONDS, check=True)
    with machines.opened(machine) as opened:
        group = next(row for row in opened.show()["groups"] if row["name"] == "fill")
    peak = int(group["gpus"]["0"]["peak_bytes"])
    share = 100 * (peak - context) / (RACE_LIMIT - context)
    return Figure(
        name="VRAM that can be had, of the limit less the context",
        value=share,
        unit="%",
        target=">= 99.9 %, nothing over",
        holds=share >= 99.9 and peak <= RACE_LIMIT,
        note="peak of the simulator's ledger; what a context takes is known",
    )


def starting(programs: Programs, limits: Path | None, peer: Path | None = None) -> float:
    """Seconds until so many processes, all started at once, have come to cuInit."""
    variables = clean() | {"LD_LIBRARY_PATH": str(NOOP)}
    if limits is not None:
        make = [str(programs.limit_files), "make", str(limits), UUID, str(64 * GIB), "900000"]
        subprocess.run(make, check=True)
        variables |= {"LD_PRELOAD": str(LIMITER), "TF_SHM_PATH": str(limits)}
    elif peer is not None:
        variables["LD_PRELOAD"] = str(peer)
    began = time.monotonic()
    command = [str(programs.overhead), "init"]
    processes = [subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) for _ in range(STARTERS)]
    for process in processes:
        if process.wait(SECONDS) != 0:
            raise RuntimeError(f"a process of {STARTERS} that started at once ended with {process.returncode}")
    return time.monotonic() - began


def threads(programs: Programs, limits: Path) -> Figure:
    """CPU time of an allocation with its free, sixteen threads against one."""
    one = alternated(programs, limits, 1_000_000, "memory", "0", "1")
    many = alternated(programs, limits, 1_000_000, "memory", "0", MANY_THREADS)

    def ratio(which: int) -> float:
        return min(run["cpu_pair"] for run in many[which]) / min(run["cpu_pair"] for run in one[which])

    return Figure(
        name=f"CPU time of an alloc and free, {MANY_THREADS} threads against one",
        value=ratio(1),
        unit="x",
        target="<= 1.5 x",
        holds=ratio(1) <= 1.5,
        baseline=ratio(0),
        peer=ratio(2) if one[2] else None,
        device=DEVICE,
        note="no lock that all threads take",
    )


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as name:
        folder = Path(name)
        limits = folder / "limits"
        limits.mkdir()
        programs = prepare(folder)
        peer = peer_limiter()
        over = race(folder, programs, limited=True)
        bare, limited, others = [], [], []
        for _ in range(ROUNDS):  # alternated, so that a slow moment of the machine meets all of them
            bare.append(starting(programs, None))
            limited.append(starting(programs, limits))
            if peer is not None:
                others.append(starting(programs, None, peer))
        return [
            Figure(
                name=f"VRAM over the limit, {RACERS} processes racing and {KILLED} of them killed",
                value=over,
                unit="bytes",
                target="0 bytes",
                holds=over == 0,
                baseline=race(folder, programs, limited=False),
                peer=None if peer is None else race(folder, programs, limited=False, peer=peer),
                note="peak of the simulator's ledger; baseline without the library",
            ),
            Figure(
                name=f"{STARTERS} processes starting at once, until all have initialised",
                value=min(limited),
                unit="s",
                target="<= 3 s",
                holds=min(limited) <= 3,
                least=min(limited),
                most=max(limited),
                baseline=min(bare),
                peer=min(others) if others else None,
                device=DEVICE,
                note=f"least of {ROUNDS} runs; baseline without the library",
            ),
            reachable(folder, programs),
            threads(programs, limits),
        ]
