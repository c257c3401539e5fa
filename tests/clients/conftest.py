"""Machines for clients, the same as for the simulator's own tests, and programs on them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from hypervisor.simulation.environment import environment, library_folder
from tests.clients.debian import Unavailable
from tests.integration.limiter.conftest import build, limit_files, pod
from tests.integration.simulation.conftest import simulate

__all__ = ["GIB", "LOAD", "SECONDS", "build", "limit_files", "load", "needed", "pod", "shown", "simulate"]
SECONDS = 60
LONGEST_SESSION_SECONDS = 600
GIB = 1 << 30
LOAD = library_folder().parent / "clients" / "load"
Parameters = ParamSpec("Parameters")
Given = TypeVar("Given")


def needed(function: Callable[Parameters, Given], *args: Parameters.args, **named: Parameters.kwargs) -> Given:
    """What a test can't do without; the test is skipped, with the reason, when it can't be had."""
    try:
        return function(*args, **named)
    except Unavailable as error:
        pytest.skip(error.reason)


def shown(machine: Path, *command: str | Path, **variables: str) -> str:
    """What a program prints on a machine; it must end well and complain of nothing."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment(machine) | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def no_device_nodes_are_left() -> Iterator[None]:
    """NVIDIA's programs, run by root, make device nodes even where there is no driver; those go again."""
    began = time.time()
    yield
    if not Path("/proc/driver/nvidia").exists():
        for node in Path("/dev").glob("nvidia*"):
            # By its age and not by what was there before: another worker's test may have made it meanwhile.
            if node.is_char_device() and node.stat().st_ctime >= began - LONGEST_SESSION_SECONDS:
                node.unlink(missing_ok=True)


@contextmanager
def load(machine: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A client of the driver API at work, for the length of the block."""
    command = [str(LOAD), *options]
    with subprocess.Popen(command, env=environment(machine), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
