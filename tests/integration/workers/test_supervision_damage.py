"""Workers whose files are damaged or gone while they run: never twice, never without anybody, shown and told."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest
import trio

from hypervisor.model import Refusal, RestartPolicy, Revision, Worker, WorkerPhase
from hypervisor.workers import Supervisor
from hypervisor.workers.backoff import Backoff
from hypervisor.workers.broken import BrokenWorker
from hypervisor.workers.shim_files import locked, read_status
from tests.integration.workers.conftest import Rig, is_alive, shell, until, until_phase

STEADY = "exec sleep 600"


@pytest.mark.parametrize("damage", ["removed", "cut", "pipe", "removed with its lock"])
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
        if damage.endswith("lock"):
            (rig.folder("one") / "lock").unlink()
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


def damage_record(folder: Path, how: str) -> None:
    record = folder / "worker.json"
    if how == "cut":
        os.truncate(record, 40)
    elif how == "newer":
        record.write_text(record.read_text().replace('"version":1', '"version":2'))
    elif how == "deep":
        record.write_text("[" * 100_000)
    else:
        record.unlink()
    if how == "pipe":
        os.mkfifo(record)


def one(supervisor: Supervisor) -> Worker:
    found = supervisor.find("one")
    assert found is not None
    assert supervisor.workers == (found,)
    return found


@pytest.mark.parametrize("damage", ["cut", "newer", "deep", "pipe", "gone"])
def test_a_worker_whose_record_can_not_be_read_is_shown_and_can_be_ended(rig: Rig, damage: str) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", STEADY))).pid
            assert pid is not None
        damage_record(rig.folder("one"), damage)
        async with rig.supervisor() as supervisor:
            found = one(supervisor)
            assert (found.phase, found.pid, found.ready) == (WorkerPhase.FAILED, pid, False)
            assert found.unready_reason == "its record can't be read"
            assert "sleep 600" in " ".join(found.command)
            assert "its record can't be read: worker.json" in found.last_exit_reason
            assert "'hypervisor worker stop one' ends it" in found.last_exit_reason
            assert "WorkerRecordDamaged" in rig.reasons("one")
            assert supervisor.statistics().records_damaged == 1
            assert is_alive(pid)  # it does nobody harm, and whose it is we don't know
            stopped = await supervisor.stop("one")
            assert not is_alive(pid)
            assert (stopped.pid, stopped.phase) == (None, WorkerPhase.FAILED)
            assert "--forget one" in stopped.last_exit_reason
            await supervisor.stop("one", forget=True)
            assert supervisor.workers == ()
            assert not rig.folder("one").exists()

    trio.run(body)


def test_one_that_ends_while_its_record_can_not_be_read_is_shown_as_ended(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", STEADY))).pid
            assert pid is not None
        damage_record(rig.folder("one"), "cut")
        async with rig.supervisor() as supervisor:
            before = one(supervisor).revision
            os.kill(pid, signal.SIGKILL)
            await until(lambda: one(supervisor).pid is None, "its end")
            await until(lambda: before < one(supervisor).revision, "its end to be told")
            # Started anew, it is an ordinary worker again, and its runs are counted on.
            again = await supervisor.start(shell("one", STEADY))
            assert again.phase is WorkerPhase.RUNNING
            status = read_status(rig.folder("one"))
            assert status is not None
            assert status.run == 2
            assert supervisor.statistics().records_damaged == 0

    trio.run(body)


def test_the_end_of_one_is_told_that_came_before_anybody_waited_for_it(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", STEADY))).pid
            assert pid is not None
        revisions = (Revision(1, number) for number in itertools.count(1))
        broken = BrokenWorker(rig.folder("one"), "it is cut", next_revision=lambda: next(revisions))
        before = broken.worker()
        assert before.pid == pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: broken.keeper is None, "its end")
        told: list[Worker] = []
        with trio.fail_after(10):
            await broken.watch(lambda: told.append(broken.worker()))
        assert [(each.pid, each.revision > before.revision) for each in told] == [(None, True)]

    trio.run(body)


@pytest.mark.parametrize("same", [True, False])
def test_a_start_takes_up_what_runs_by_the_same_words_and_ends_what_does_not(rig: Rig, same: bool) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", STEADY))).pid
            assert pid is not None
        damage_record(rig.folder("one"), "gone")
        async with rig.supervisor() as supervisor:
            worker = await supervisor.start(shell("one", STEADY if same else "exec sleep 601"))
            assert worker.phase is WorkerPhase.RUNNING
            assert (worker.pid == pid) is same
            assert is_alive(pid) is same
        async with rig.supervisor() as supervisor:
            assert one(supervisor).pid == worker.pid
            assert one(supervisor).phase is WorkerPhase.RUNNING
            assert (await supervisor.stop("one")).phase is WorkerPhase.STOPPED

    trio.run(body)


def test_what_a_kill_leaves_of_a_worker_that_is_forgotten_is_none(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", STEADY))
            await supervisor.stop("one")
        workers = rig.directory / "workers"
        rig.folder("one").rename(workers / ".forgotten-one")  # as forget() begins
        (workers / "two").mkdir()  # as a new worker begins
        (workers / "lost+found").mkdir()
        (workers / "link").symlink_to(rig.directory)
        (workers / os.fsdecode(b"\xff")).mkdir()
        async with rig.supervisor() as supervisor:
            assert supervisor.workers == ()
            assert rig.reasons("one") == ["WorkerStarted", "WorkerStopped"]
            assert rig.reasons("two") == rig.reasons("lost+found") == []
            assert (await supervisor.start(shell("one", STEADY))).phase is WorkerPhase.RUNNING
            await supervisor.stop("one", forget=True)
        assert sorted(os.fsencode(path.name) for path in workers.iterdir()) == [b"link", b"lost+found", b"\xff"]

    trio.run(body)


@pytest.mark.parametrize("name", [".status", "grace", "log"])
def test_a_pipe_in_place_of_a_file_holds_no_shim_up(rig: Rig, name: str) -> None:
    """Opened as a file, it would wait until somebody opens its other end."""
    folder = rig.folder("one")

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            more = f"rm -f {folder}/log.1; mkdir -p {folder}/log.1/x;" if name == "log" else ""  # nor is it moved away
            program = (
                f"rm -f {folder}/{name}; {more} mkfifo {folder}/{name}; echo done > {rig.directory}/done; {STEADY}"
            )
            await supervisor.start(shell("one", program))
            await until((rig.directory / "done").exists, "the pipe")
            with trio.fail_after(3):
                assert (await supervisor.stop("one")).phase is WorkerPhase.STOPPED
            if name == "log":
                with trio.fail_after(3):
                    assert (await supervisor.start(shell("one", STEADY))).phase is WorkerPhase.RUNNING
                    await supervisor.stop("one")

    trio.run(body)


@pytest.mark.parametrize("killed", ["worker", "shim"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_changes_neither_the_wait_nor_the_last_lines(rig: Rig, killed: str, hours: int) -> None:
    """As if it had been set after the start: what was written then is of another hour now."""
    rig.options["backoff"] = Backoff(first_seconds=0.05, most_seconds=30, reset_seconds=0.3 if hours < 0 else 30)

    def failures(supervisor: Supervisor) -> int:
        return supervisor._held["one"].record.failures

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", f"echo last words; {STEADY}"))).pid
            await until(lambda: (rig.folder("one") / "log").stat().st_size, "its words")
            held = supervisor._held["one"]
            held._keep(failures=1)
            status = read_status(rig.folder("one"))
            assert status is not None
            # By its status and the age of its log, it began an hour earlier or later than it did.
            file = rig.folder("one") / "status"
            began = round(status.started_at * 1000)
            file.write_text(file.read_text().replace(f"{began}", f"{began - hours * 3_600_000}"))
            if hours < 0:
                os.utime(rig.folder("one") / "log", (began / 1000 - 3600, began / 1000 - 3600))
                await trio.sleep(0.4)
            os.kill(status.shim.pid if killed == "shim" else pid or 0, signal.SIGKILL)
            await until(lambda: one(supervisor).restarts, "the next run")
            assert failures(supervisor) == (1 if hours < 0 else 2)
            assert one(supervisor).last_output_lines == ("last words",)

    trio.run(body)


def test_of_two_starts_that_wait_for_a_stop_one_is_granted(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", "trap '' TERM; sleep 600", grace_seconds=0.3))
            told: dict[str, object] = {}

            async def start(program: str) -> None:
                try:
                    told[program] = await supervisor.start(shell("one", program))
                except Refusal as refusal:
                    told[program] = refusal

            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.stop, "one")
                await until(lambda: one(supervisor).phase is WorkerPhase.STOPPING, "the stop")
                nursery.start_soon(start, "exec sleep 601")
                nursery.start_soon(start, "exec sleep 602")
            (granted,) = [each for each in told.values() if isinstance(each, Worker)]
            assert granted.command == one(supervisor).command
            assert any(isinstance(each, Refusal) for each in told.values())
            assert locked(rig.folder("one"))

    trio.run(body)
