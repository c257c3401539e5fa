"""Sixty-four processes race for one limit while twenty of them are killed: never a byte over, and all of it comes back.

Judged by the simulator's own ledger of the group, contexts included.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from buildsupport.native import ROOT
from hypervisor.simulation import machine as machines
from tests.daemon_process import wait_until
from tests.integration.limiter.conftest import GIB, SECONDS, Pod

DRIVER = ROOT / "hypervisor" / "native" / "simulator" / "libcuda.so.1"
PROCESSES, KILLED, GROUP = 64, 20, "race"


def group(pod: Pod) -> Any:
    with machines.opened(pod.machine) as machine:
        return next(row for row in machine.show()["groups"] if row["name"] == GROUP)["gpus"]["0"]


@contextmanager
def racing(pod: Pod, racer: Path, *, largest_mib: int, limited: bool = True) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [str(racer), str(number), str(largest_mib)],
                    env=pod.variables(limited=limited, SIM_GROUP=GROUP),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(PROCESSES)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_never_a_byte_over_the_limit_and_the_ledger_agrees_afterwards(
    pod: Pod, build: Callable[..., Path], seed: int
) -> None:
    """HAMi-core PR 273: processes that allocate at once."""
    racer = build("racer", "racer.c", flags=(str(DRIVER),))
    context = int(pod.gpu()["memory"]["context_bytes"])
    limit = 8 * GIB
    pod.files.make(limit, context_bytes=context)
    chosen = random.Random(seed).sample(range(PROCESSES), KILLED)
    with racing(pod, racer, largest_mib=64) as processes:
        for number, process in enumerate(processes):
            hear(process, "ready")
            if number in chosen and number % 2:
                process.kill()  # while others only start
        for number, process in enumerate(processes):
            if number not in chosen or number % 2 == 0:
                start(process)
        wait_until(lambda: group(pod)["bytes"] > limit * 0.9, "a full card")
        for number in chosen:
            processes[number].kill()
            processes[number].wait(SECONDS)
        alive = [process for number, process in enumerate(processes) if number not in chosen]
        for process in alive:
            process.send_signal(signal.SIGUSR1)
        for process in alive:
            hear(process, "still")
        # One that comes new gives back what the dead held, and takes nothing itself.
        assert pod.ask("tell(call('cuInit', 0))") == 0
        held, files = group(pod), pod.files.show()
        assert files["total"] == files["slot_bytes"] == held["bytes"]
        assert limit * 0.9 < held["peak_bytes"] <= limit
        for process in alive:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(SECONDS) == 0
    assert pod.ask("start(); tell(memory()[0])") == limit - context


def test_without_the_limiter_the_same_race_goes_over(pod: Pod, build: Callable[..., Path]) -> None:
    racer = build("racer", "racer.c", flags=(str(DRIVER),))
    with racing(pod, racer, largest_mib=64, limited=False) as processes:
        for process in processes:
            hear(process, "ready")
        for process in processes:
            start(process)
        wait_until(lambda: group(pod)["bytes"] > 9 * GIB, "more than the limit")
        for process in processes:
            process.send_signal(signal.SIGUSR1)
        for process in processes:
            hear(process, "still")
        assert group(pod)["peak_bytes"] > 8 * GIB
