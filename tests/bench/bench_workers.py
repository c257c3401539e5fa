"""Workers under supervision: 64 of them cost how much, are adopted how fast, come back how fast after a crash."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import trio

from hypervisor.model import Revision, WorkerSpec
from hypervisor.workers import Supervisor, WorkerSettings, open_supervisor
from hypervisor.workers.identity import end_session
from hypervisor.workers.shim_files import read_status
from tests.bench.figure import Figure, median

WORKERS = 64
STEADY_SECONDS = 10.0
CRASHES = 5
DEVICE = "no GPU: processes"


@asynccontextmanager
async def _supervised(folder: Path) -> AsyncIterator[Supervisor]:
    revisions = count(1)
    async with open_supervisor(
        WorkerSettings(directory=folder / "workers"),
        next_revision=lambda: Revision(1, next(revisions)),
        emit=lambda *_, **__: None,
        changed=lambda: None,
    ) as supervisor:
        yield supervisor


def _spec(number: int) -> WorkerSpec:
    return WorkerSpec(worker_id=f"w{number}", command=("/bin/sleep", "3600"))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _shims(folder: Path) -> list[int]:
    statuses = (read_status(path) for path in (folder / "workers").iterdir())
    return [status.shim.pid for status in statuses if status is not None]


def _cpu_of(pids: list[int]) -> float:
    """Seconds of CPU that processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def _measure(folder: Path) -> list[Figure]:
    async with _supervised(folder) as supervisor:
        for number in range(WORKERS):
            await supervisor.start(_spec(number))
        pids = {worker.pid for worker in supervisor.workers}
        shims = _shims(folder)
        before, began, shims_before = _cpu(), time.monotonic(), _cpu_of(shims)
        await trio.sleep(STEADY_SECONDS)
        spent = time.monotonic() - began
        share = (_cpu() - before + _cpu_of(shims) - shims_before) / spent
        downtimes = [await _crash(supervisor) for _ in range(CRASHES)]
    adopted: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        async with _supervised(folder) as supervisor:
            await supervisor.adopted()
            adopted.append(time.monotonic() - began)
            found = {worker.pid for worker in supervisor.workers}
            kept = supervisor.statistics().adopted
        if kept != WORKERS or len(found & pids) != WORKERS - 1:  # one of them was crashed above
            raise AssertionError(f"{kept} of {WORKERS} were adopted")
    return [
        Figure(
            name=f"{WORKERS} workers supervised: CPU of supervisor and shims",
            value=share * 100,
            unit="% of a core",
            target="<= 1 %",
            holds=share <= 0.01,
            device=DEVICE,
        ),
        Figure(
            name="a worker's crash to its restart, at first",
            value=median(downtimes),
            least=min(downtimes),
            most=max(downtimes),
            unit="s",
            target="<= 1 s",
            holds=max(downtimes) <= 1,
            device=DEVICE,
        ),
        Figure(
            name=f"a restart adopts {WORKERS} workers",
            value=median(adopted),
            least=min(adopted),
            most=max(adopted),
            unit="s",
            target="<= 1 s",
            holds=max(adopted) <= 1,
            device=DEVICE,
        ),
    ]


async def _crash(supervisor: Supervisor) -> float:
    """Seconds from the kill to the next run of a worker that had run; each time as if it were the first."""
    name = "w0"
    worker = supervisor.find(name)
    assert worker is not None
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    began = time.monotonic()
    with trio.fail_after(30):
        while (found := supervisor.find(name)) is None or found.pid in (None, worker.pid):  # noqa: ASYNC110
            await trio.sleep(0.002)
    took = time.monotonic() - began
    await supervisor.stop(name)
    await supervisor.start(_spec(0))
    return took


def measure() -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="hv-bench-"))
    try:
        return trio.run(_measure, folder)
    finally:
        for path in (folder / "workers").iterdir():
            status = read_status(path)
            if status is not None and status.state == "running":
                os.kill(status.shim.pid, signal.SIGKILL)
                end_session(status.child.pid, status.child.start)
        shutil.rmtree(folder, ignore_errors=True)
