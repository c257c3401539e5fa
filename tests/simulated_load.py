"""The load client on a simulated machine, judged by the machine's own ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypervisor
from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import create, opened
from hypervisor.simulation.profiles import load_description
from tests.daemon_process import wait_until

LOAD = Path(hypervisor.__file__).parent / "native" / "clients" / "load"
SECONDS = 60


def program(*arguments: str) -> list[str]:
    """The command line of this installation."""
    return [sys.executable, "-m", "hypervisor", *arguments]


@dataclass(frozen=True)
class Ran:
    """A client that has ended: status, what it told, what it wrote on stderr."""

    status: int
    told: list[dict[str, Any]]
    stderr: str

    def line(self, key: str) -> dict[str, Any]:
        return next(line for line in self.told if key in line)


@dataclass(frozen=True)
class Used:
    """What the ledger says of a group of processes on one GPU."""

    busy_seconds: float
    peak_bytes: int
    held_bytes: int


class Machine:
    """A simulated machine of a test's own."""

    def __init__(self, path: Path, profile: str) -> None:
        self.path = path
        create(path, load_description(profile))

    def environment(self, group: str) -> dict[str, str]:
        return environment(self.path) | {"SIM_GROUP": group}

    def run(self, command: Sequence[str], *, group: str) -> Ran:
        """Run a command on the machine to its end."""
        done = subprocess.run(
            command, env=self.environment(group), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Ran(done.returncode, told, done.stderr)

    def used(self, group: str, gpu: int = 0) -> Used:
        """The ledger's figures; zeros when the group has not used the GPU."""
        with opened(self.path) as machine:
            state = machine.show()
        for row in state["groups"]:
            if row["name"] == group and str(gpu) in row["gpus"]:
                usage = row["gpus"][str(gpu)]
                return Used(usage["busy_ns"] / 1e9, usage["peak_bytes"], usage["bytes"])
        return Used(0.0, 0, 0)

    def now(self) -> float:
        """The machine's time in seconds."""
        with opened(self.path) as machine:
            return float(machine.show()["clock"]["now_ns"]) / 1e9

    def share(self, *groups: str, gpu: int = 0, seconds: float = 3.0) -> float:
        """Share of a GPU's time that the groups have together, over so many seconds of the machine's time."""

        def busy() -> float:
            return sum(self.used(group, gpu).busy_seconds for group in groups)

        began, before = self.now(), busy()
        ended = wait_until(lambda: (now := self.now()) >= began + seconds and now, "the window")
        return (busy() - before) / (ended - began)


def assert_share(measure: Callable[[], float], limit: float, *, tolerance: float = 0.05, attempts: int = 5) -> None:
    """The share of GPU time is never above the limit, and reaches it.

    A client that gets no CPU can't use its share, which says nothing about the limiter; so what is too little is
    measured again, and what is too much fails at once.
    """
    seen = []
    for _ in range(attempts):
        seen.append(measure())
        assert seen[-1] <= limit + tolerance, f"{seen[-1]:.3f} is above the limit of {limit:.2f}"
        if seen[-1] >= limit - tolerance:
            return
    raise AssertionError(f"the limit of {limit:.2f} was never reached: {seen}")
