"""Workers whose files are damaged or gone while they run: never twice, never without anybody, and told."""

from __future__ import annotations

import os
import shutil

import pytest
import trio

from hypervisor.model import RestartPolicy, WorkerPhase
from tests.integration.workers.conftest import Rig, is_alive, shell, until, until_phase

STEADY = "exec sleep 600"


@pytest.mark.parametrize("damage", ["removed", "cut", "pipe"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_whose_status_is_damaged_is_ended_before_another_starts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, damage: str, stopped: bool
) -> None:
    monkeypatch.setattr("hypervisor.workers.supervised.ADOPT_SECONDS", 0.1)

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", STEADY))).pid
            assert pid is not None
        status = rig.folder("one") / "status"
        if damage == "cut":
            os.truncate(status, 10)
        else:
            status.unlink()
        if damage == "pipe":
            os.mkfifo(status)
        async with rig.supervisor() as supervisor:
            if stopped:
                assert (await supervisor.stop("one")).phase is WorkerPhase.STOPPED
                assert not is_alive(pid)
            else:
                await until(lambda: (found := supervisor.find("one")) and found.pid, "a second run")
                assert not is_alive(pid)
            await supervisor.stop("one")

    trio.run(body)


def test_a_worker_whose_directory_was_removed_is_ended_at_the_next_start(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            gone = (await supervisor.start(shell("gone", STEADY))).pid
            kept = (await supervisor.start(shell("kept", STEADY))).pid
            assert gone is not None
            assert kept is not None
        shutil.rmtree(rig.folder("gone"))
        async with rig.supervisor() as supervisor:
            await until(lambda: not is_alive(gone), "the end of what nobody can name")
            assert [worker.pid for worker in supervisor.workers] == [kept]
            assert is_alive(kept)

    trio.run(body)


def test_an_end_is_accounted_for_once(rig: Rig) -> None:
    """Neither what was given up nor the number of restarts changes by a restart of ours."""

    async def body() -> None:
        rig.options["backoff"] = rig.settings.backoff.__class__(first_seconds=30, most_seconds=30)
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("never", "exit 3", restart_policy=RestartPolicy.NEVER))
            await supervisor.start(shell("again", "exit 3"))
            await until_phase(supervisor, "never", WorkerPhase.FAILED)
            await until_phase(supervisor, "again", WorkerPhase.BACKING_OFF)
        before = len(rig.events)
        async with rig.supervisor() as supervisor:
            await until_phase(supervisor, "never", WorkerPhase.FAILED)
            await until_phase(supervisor, "again", WorkerPhase.BACKING_OFF)
            told = [reason for reason, about, _ in rig.events[before:] if about == "never"]
            assert told == []
            found = supervisor.find("again")
            assert found is not None
            assert found.restarts == 2  # the run before, and the one that followed our start

    trio.run(body)
