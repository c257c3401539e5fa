"""Starts and stops the programs of the demonstration, each through the command line as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STOP_SECONDS = 8.0
READY_SECONDS = 30.0


class DemoError(Exception):
    """The demonstration can't go on; the text says why and where more stands."""


def hypervisor(*arguments: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "hypervisor", *arguments]


class Processes(AbstractContextManager["Processes"]):
    """All that was started; stopped in reverse order at the end, however it comes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, _ in reversed(self._running):
            self.stop(name)

    def output(self, name: str) -> Path:
        return self._directory / f"{name}.out"

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Start a program; its stdout and stderr go to files in the demonstration's directory."""
        with self.output(name).open("ab") as out, self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )
        self._running = [(other, running) for other, running in self._running if other != name]
        self._running.append((name, process))

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return next(process for other, process in self._running if other == name)

    def check(self, name: str) -> None:
        """Raises DemoError when the program has ended with a failure."""
        status = self.process(name).poll()
        if status:
            lines = self.log(name).read_text(errors="replace").splitlines()
            raise DemoError(f"{name} ended with status {status}: {lines[-1] if lines else 'it said nothing'}")

    def kill(self, name: str) -> None:
        process = self.process(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        process = self.process(name)
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def query(*arguments: str) -> dict[str, Any]:
    """The JSON that a `get` prints; raises DemoError with its one line of error."""
    found = json.loads(command(*arguments, "-o", "json"))
    if not isinstance(found, dict):
        raise DemoError(f"hypervisor {' '.join(arguments)} printed no object")
    return found


def command(*arguments: str) -> str:
    """Run a command to its end and return what it printed; raises DemoError with its one line of error."""
    done = subprocess.run(hypervisor(*arguments), capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise DemoError(done.stderr.strip() or f"hypervisor {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def wait_for(
    what: str,
    condition: Callable[[], bool],
    processes: Processes,
    names: Sequence[str],
    *,
    meanwhile: Callable[[], object] = lambda: None,
    reason: Callable[[], str] = lambda: "",
) -> None:
    """Wait until the condition holds, and call meanwhile now and then.

    Raises DemoError, with the reason that is known by then, when it doesn't in time or a program has failed.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        meanwhile()
        for name in names:
            processes.check(name)
        if time.monotonic() > deadline:
            why = reason()
            raise DemoError(f"{what} did not come within {READY_SECONDS:.0f} s{': ' if why else ''}{why}")
        time.sleep(0.1)


def client_program() -> str:
    """The load client that is built with the product."""
    import hypervisor as package

    program = Path(package.__file__).parent / "native" / "clients" / "load"
    if not os.access(program, os.X_OK):
        raise DemoError(f"the client program {program} is missing; build it with 'make'")
    return str(program)
