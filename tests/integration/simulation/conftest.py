"""Machines for tests, and programs that run on them in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation import machine as machines
from hypervisor.simulation.environment import environment
from hypervisor.simulation.profiles import load_description

SECONDS = 60

Ask = Callable[..., Any]

PREAMBLE = """
import ctypes, json, os, sys
import pynvml as n
def tell(value):
    os.write(1, (json.dumps(value) + "\\n").encode())  # whole lines, whichever thread tells
"""


class Simulation:
    """A machine, and what can be done on it from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def program(self, source: str) -> list[str]:
        return [sys.executable, "-c", PREAMBLE + textwrap.dedent(source)]

    def ask(self, source: str, **variables: str) -> Any:
        """Run a program that `tell`s one value, and return the value."""
        done = subprocess.run(
            self.program(source),
            env=environment(self.path) | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    @contextmanager
    def running(self, source: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """A program that tells line by line and waits on its stdin; it is ended with the block."""
        with subprocess.Popen(
            self.program(source),
            env=environment(self.path) | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def opened(self) -> Iterator[machines.Machine]:
        with machines.opened(self.path) as machine:
            yield machine

    def show(self) -> dict[str, Any]:
        with self.opened() as machine:
            return machine.show()


def heard(process: subprocess.Popen[str]) -> Any:
    """The next value that a running program tells."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Callable[[str], Simulation]]:
    """Makes a machine from a profile's name, or from YAML."""
    made: list[Path] = []

    def make(description: str) -> Simulation:
        path = tmp_path / f"machine-{len(made)}"
        if "\n" in description:
            yaml = path.with_suffix(".yaml")
            yaml.write_text(description)
            description = str(yaml)
        machines.create(path, load_description(description))
        made.append(path)
        return Simulation(path)

    yield make
    for path in made:
        if path.exists():
            with machines.opened(path) as machine:
                assert machine.check() == []
