"""Workers under a storm: shims, workers and supervisors end or stand still at any moment, and the disk is full.

Whatever happens, a worker never runs twice, is back in the end, and nothing is left of it when it was stopped.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from hypervisor.model import WorkerPhase, WorkerSpec
from hypervisor.workers.placing import AUTO, cgroup_for
from hypervisor.workers.shim_files import read_status
from tests.integration.workers.conftest import Rig, is_alive, python, rig, shell, until, until_phase

__all__ = ["rig"]
NAMES = ("a", "b", "c", "d")
# Holds a lock while it runs; finds it taken when another run of the same worker lives.
ALONE = """
import fcntl, os, signal, sys, time
lock = open(sys.argv[1] + '.lock', 'w')
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    time.sleep(1)  # what was killed a moment ago still has it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(sys.argv[1] + '.twice', 'w').close()
if os.fork() == 0:
    os.setsid() if sys.argv[2] == 'leave' else os.setpgid(0, 0)  # must go with it all the same
    while True:
        time.sleep(600)
while True:
    print('x' * 4000, flush=True)
    time.sleep(0.02)
"""


def worker(rig: Rig, name: str, *, leave: bool) -> WorkerSpec:
    """leave: a process of it leaves the session, so that after a kill of its shim only the cgroup tells whose it is."""
    command = (*python(name, ALONE).command, str(rig.directory / name), "leave" if leave else "stay")
    return WorkerSpec(worker_id=name, command=command, grace_seconds=0.2)


def running(rig: Rig, name: str) -> list[int]:
    """Shim and worker, as far as they live."""
    status = read_status(rig.folder(name))
    if status is None or status.state != "running":
        return []
    return [pid for pid in (status.shim.pid, status.child.pid) if is_alive(pid)]


def left_of(rig: Rig) -> list[int]:
    """Processes that were started for this test and still live."""
    found = subprocess.run(["pgrep", "-f", str(rig.directory)], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in found.split() if is_alive(int(pid))]


def strike(rig: Rig, chance: random.Random) -> None:
    victims = running(rig, chance.choice(NAMES))
    if victims:
        with suppress(ProcessLookupError):  # it may have ended of what hit it before
            os.kill(
                chance.choice(victims), chance.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM))
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_killed_a_worker_runs_once_and_comes_back(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    rig.options = {"log_bytes": 64 * 1024, "cgroup": cgroup_for(AUTO, rig.directory)}
    leave = rig.options["cgroup"] is not None

    async def storm() -> None:
        for _ in range(4):  # as many daemons, one after another
            async with rig.supervisor() as supervisor:
                for name in NAMES:
                    await supervisor.start(worker(rig, name, leave=leave))
                for _ in range(12):
                    strike(rig, chance)
                    await trio.sleep(chance.random() * 0.2)
            strike(rig, chance)  # while nobody watches
        for pid in [pid for name in NAMES for pid in running(rig, name)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # what stands still goes on
        async with rig.supervisor() as supervisor:
            for name in NAMES:
                await until_phase(supervisor, name, WorkerPhase.RUNNING, 60)
            await trio.sleep(0.5)
            for name in NAMES:
                await supervisor.stop(name)
                await until_phase(supervisor, name, WorkerPhase.STOPPED, 30)

    trio.run(storm)
    assert not list(rig.directory.glob("*.twice"))
    assert left_of(rig) == []
    for name in NAMES:
        assert sum(path.stat().st_size for path in rig.folder(name).glob("log*")) <= 4 * 64 * 1024


@pytest.mark.slow
def test_a_worker_that_ends_under_a_shim_that_stands_still_is_noticed(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            first = (await supervisor.start(shell("one", "exec sleep 600"))).pid
            status = read_status(rig.folder("one"))
            assert status is not None
            assert first is not None
            os.kill(status.shim.pid, signal.SIGSTOP)
            os.kill(first, signal.SIGKILL)
            await until(lambda: (found := supervisor.find("one")) and found.pid not in (None, first), "a new run", 30)
            assert not is_alive(status.shim.pid)

    trio.run(body)


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_shim_that_stands_still(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", "exec sleep 600", grace_seconds=0.1))).pid
            status = read_status(rig.folder("one"))
            assert status is not None
            os.kill(status.shim.pid, signal.SIGSTOP)
            await supervisor.stop("one")
            await until_phase(supervisor, "one", WorkerPhase.STOPPED, 30)
            assert not is_alive(pid or 0)

    trio.run(body)


@pytest.mark.slow
def test_forks_without_end_are_ended_with_their_worker(rig: Rig) -> None:
    """Each child leaves group and session; what the bound of its cgroup is for, a bound of its own does here."""
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "while made < 24:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        made += 8\n"
        "    else:\n"
        "        made += 1\n"
        f"open({str(rig.directory / 'forked')!r}, 'w').close()\n"
        "time.sleep(600)\n"
    )

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(python("bomb", bomb, grace_seconds=0.1))
            await until((rig.directory / "forked").exists, "processes", 30)
            await supervisor.stop("bomb")
            await until_phase(supervisor, "bomb", WorkerPhase.STOPPED, 60)

    trio.run(body)
    assert left_of(rig) == []


@pytest.fixture
def small_disk(rig: Rig) -> Iterator[Path]:
    """The directory of workers on a file system of 256 KiB."""
    place = rig.directory / "workers"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a file system can't be mounted here: {done.stderr.strip()}")
    yield place
    give_up_at = time.monotonic() + 10
    while subprocess.run(["umount", place], capture_output=True, check=False).returncode != 0:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


@pytest.mark.slow
def test_a_full_disk_costs_lines_and_neither_the_worker_nor_how_it_ended(rig: Rig, small_disk: Path) -> None:
    rig.options = {"log_bytes": 2**20}
    flood = "import sys\nfor _ in range(2000): sys.stdout.write('x' * 1000 + '\\n')\nsys.stdout.flush()\nsys.exit(7)"

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(python("flood", flood))
            await until(lambda: (found := supervisor.find("flood")) and found.last_exit_reason, "an end", 60)
            found = supervisor.find("flood")
            assert found is not None
            assert "7" in found.last_exit_reason
            assert "shim was killed" not in found.last_exit_reason
            await supervisor.stop("flood")
            await until_phase(supervisor, "flood", WorkerPhase.STOPPED, 30)

    trio.run(body)


def test_a_damaged_grace_stops_nobody_else(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", "exec sleep 600", grace_seconds=0.1))
            other = await supervisor.start(shell("other", "exec sleep 600", grace_seconds=0.1))
            (rig.folder("one") / "grace").write_text("soon")
            await supervisor.stop("one")
            await until_phase(supervisor, "one", WorkerPhase.STOPPED, 30)
            found = supervisor.find("other")
            assert found is not None
            assert found.pid == other.pid

    trio.run(body)
