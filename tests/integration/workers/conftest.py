"""A supervisor with the real shim, in a directory of its own; what is left running is ended after the test."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from hypervisor.model import Revision, WorkerPhase, WorkerSpec
from hypervisor.workers import Supervisor, WorkerSettings, open_supervisor
from hypervisor.workers.backoff import Backoff
from hypervisor.workers.identity import end_session
from hypervisor.workers.launching import remove_cgroup
from hypervisor.workers.placing import cgroup_for
from hypervisor.workers.shim_files import read_status

QUICK = Backoff(first_seconds=0.05, most_seconds=0.4, reset_seconds=30)


@dataclass
class Rig:
    """Opens supervisors, one after another, over the same directory, as daemons would."""

    directory: Path
    events: list[tuple[str, str, str]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    revisions: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def settings(self) -> WorkerSettings:
        return WorkerSettings(directory=self.directory / "workers", **({"backoff": QUICK} | self.options))

    @asynccontextmanager
    async def supervisor(self) -> AsyncIterator[Supervisor]:
        async with open_supervisor(
            self.settings,
            next_revision=lambda: Revision(1, next(self.revisions)),
            emit=self._emit,
            changed=lambda: None,
        ) as supervisor:
            await supervisor.adopted()
            yield supervisor

    def folder(self, name: str) -> Path:
        return self.directory / "workers" / name

    def _emit(self, kind: Any, reason: str, regarding: Any, message: str, **_: str) -> None:
        self.events.append((reason, regarding.name, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for reason, about, _ in self.events if about == name]

    def close(self) -> None:
        end_workers(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)


def end_workers(state_directory: Path) -> None:
    """End what is left running, with what has outlived its worker, and remove the cgroups in which it was."""
    for folder in (state_directory / "workers").glob("*"):
        status = read_status(folder)
        if status is None or status.state != "running":
            continue
        try:
            os.kill(status.shim.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        end_session(status.child.pid, status.child.start)
    home = cgroup_for("auto", state_directory)
    for cgroup in home.glob("*/") if home is not None else ():
        (cgroup / "cgroup.kill").write_text("1")
        give_up_at = time.monotonic() + 5
        while "populated 1" in (cgroup / "cgroup.events").read_text() and time.monotonic() < give_up_at:
            time.sleep(0.01)  # what was killed leaves its cgroup when the kernel has ended it
        remove_cgroup(cgroup.parent, cgroup.name)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(Path(tempfile.mkdtemp(prefix="hv-workers-")))
    try:
        yield made
    finally:
        made.close()


def python(name: str, program: str, **parts: Any) -> WorkerSpec:
    """A worker that runs a Python program."""
    return WorkerSpec(worker_id=name, command=(sys.executable, "-S", "-c", program), **parts)


def shell(name: str, program: str, **parts: Any) -> WorkerSpec:
    """A worker that runs a shell program."""
    return WorkerSpec(
        worker_id=name, command=("/bin/sh", "-c", program), environment=(("PATH", "/usr/bin:/bin"),), **parts
    )


async def until(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """The first true value of the condition; fails after the deadline."""
    with trio.move_on_after(seconds):
        while True:
            found = condition()
            if found:
                return found
            await trio.sleep(0.005)
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")


async def until_phase(supervisor: Supervisor, name: str, phase: WorkerPhase, seconds: float = 10.0) -> None:
    await until(
        lambda: (found := supervisor.find(name)) is not None and found.phase is phase,
        f"{name} to be {phase.value}; it is {supervisor.find(name)}",
        seconds,
    )


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def environment_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
