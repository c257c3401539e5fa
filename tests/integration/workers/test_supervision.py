"""One worker at a time, with the real shim: kept, started again, condemned by probes, stopped, adopted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from hypervisor.model import Probe, Refusal, RefusalReason, RestartPolicy, WorkerPhase
from hypervisor.workers.shim_files import locked, read_status
from tests.integration.workers.conftest import (
    Rig,
    environment_of,
    is_alive,
    shell,
    until,
    until_phase,
)

STEADY = "echo up; exec sleep 600"


def test_a_worker_has_its_own_session_and_only_its_own_environment(rig: Rig) -> None:
    async def body() -> None:
        os.environ["OF_THE_DAEMON"] = "1"
        async with rig.supervisor() as supervisor:
            spec = replace(shell("one", STEADY), environment=(("PATH", "/usr/bin:/bin"), ("MINE", "a b")))
            worker = await supervisor.start(spec)
            assert worker.phase is WorkerPhase.RUNNING
            assert worker.ready
            assert worker.pid is not None
            assert os.getsid(worker.pid) == worker.pid != os.getsid(0)
            assert os.getpgid(worker.pid) == worker.pid
            found = environment_of(worker.pid)
            found.pop("PWD", None)  # of the shell, once it runs
            assert found == {"PATH": "/usr/bin:/bin", "MINE": "a b"}
            status = read_status(rig.folder("one"))
            assert status is not None
            # The shim has left the daemon too, and is nobody's child that we know.
            assert os.getsid(status.shim.pid) == status.shim.pid
            assert await supervisor.start(spec) == worker  # the same again changes nothing
            with pytest.raises(Refusal) as refused:
                await supervisor.start(replace(spec, command=("/bin/true",)))
            assert refused.value.reason is RefusalReason.WORKER_EXISTS

    trio.run(body)


def test_a_crash_is_told_with_its_cause_and_followed_by_a_start(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            worker = await supervisor.start(shell("one", "echo working; echo it breaks >&2; read x || exec sleep 600"))
            first = worker.pid
            assert first is not None
            await until(lambda: _text(rig.folder("one") / "log").endswith("it breaks"), "its words")
            os.kill(first, signal.SIGSEGV)
            await until(lambda: (found := supervisor.find("one")) and found.pid not in (None, first), "a second run")
            found = supervisor.find("one")
            assert found is not None
            assert (found.restarts, found.last_exit_reason) == (1, "killed by SIGSEGV")
            assert found.last_output_lines == ("working", "it breaks")
            (message,) = [text for reason, _, text in rig.events if reason == "WorkerExited"]
            assert "killed by SIGSEGV" in message
            assert "it breaks" in message

    trio.run(body)


def test_back_off_doubles_up_to_its_bound(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", "exit 3"))
            await until(lambda: rig.reasons("one").count("WorkerExited") >= 5, "five ends")
        told = [text for reason, _, text in rig.events if reason == "WorkerExited"]
        waits = [text.split("again in ")[1].split(" s")[0] for text in told]
        assert waits[:5] == ["0.05", "0.1", "0.2", "0.4", "0.4"]

    trio.run(body)


@pytest.mark.parametrize(
    ("policy", "program", "phase", "reason"),
    [
        (RestartPolicy.NEVER, "exit 0", WorkerPhase.STOPPED, "exited with 0"),
        (RestartPolicy.NEVER, "exit 4", WorkerPhase.FAILED, "exited with 4"),
        (RestartPolicy.ON_FAILURE, "exit 0", WorkerPhase.STOPPED, "exited with 0"),
    ],
)
def test_policies(rig: Rig, policy: RestartPolicy, program: str, phase: WorkerPhase, reason: str) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", program, restart_policy=policy))
            await until_phase(supervisor, "one", phase)
            found = supervisor.find("one")
            assert found is not None
            assert (found.last_exit_reason, found.restarts) == (reason, 0)

    trio.run(body)


def test_what_can_not_be_executed_is_told(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            spec = replace(shell("one", ""), command=("/no/such/program",), restart_policy=RestartPolicy.NEVER)
            worker = await supervisor.start(spec)
            assert worker.last_exit_reason == "can't be executed: No such file or directory"

    trio.run(body)


def test_stop_ends_the_whole_group_and_what_has_left_it(rig: Rig) -> None:
    program = "setsid sleep 601 & echo $! > $D/escaped; sleep 602 & echo $! > $D/child; trap 'exit 0' TERM; wait"

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            spec = shell("one", program, grace_seconds=5)
            spec = replace(spec, environment=(*spec.environment, ("D", str(rig.directory))))
            await supervisor.start(spec)
            pids = [
                int(await until(lambda n=name: _text(rig.directory / n), name))  # type: ignore[misc]
                for name in ("escaped", "child")
            ]
            assert all(map(is_alive, pids))
            worker = await supervisor.stop("one")
            assert (worker.phase, worker.last_exit_reason) == (WorkerPhase.STOPPED, "exited with 0, stopped")
            assert not any(map(is_alive, pids))
            assert "WorkerStopped" in rig.reasons("one")
            assert not locked(rig.folder("one"))

    trio.run(body)


def test_one_that_ignores_the_request_is_killed_at_the_deadline(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            program = "trap '' TERM; echo deaf; while :; do sleep 600; done"
            await supervisor.start(shell("one", program, grace_seconds=60))
            await until(lambda: _text(rig.folder("one") / "log") == "deaf", "the trap to be set")
            began = trio.current_time()
            worker = await supervisor.stop("one", grace_seconds=0.2)  # the caller's grace counts, not its own
            assert 0.2 <= trio.current_time() - began < 3
            assert worker.last_exit_reason == "killed by SIGKILL, after the grace of the stop had passed"

    trio.run(body)


def test_a_worker_is_adopted_and_never_started_twice(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", f"echo run >> {rig.directory}/runs; exec sleep 600"))).pid
        assert pid is not None
        assert is_alive(pid)  # the end of a supervisor is not the end of its workers
        async with rig.supervisor() as supervisor:
            found = supervisor.find("one")
            assert found is not None
            assert (found.pid, found.phase, found.restarts) == (pid, WorkerPhase.RUNNING, 0)
            assert supervisor.statistics().adopted == 1
            shim = read_status(rig.folder("one"))
            assert shim is not None
            # A shim that somebody starts for the same worker meets the lock.
            command = [str(rig.settings.shim), str(rig.folder("one"))]
            again = await trio.run_process(command, capture_stderr=True, check=False)
            assert again.returncode == 75
            assert b"another shim keeps" in again.stderr
            assert _text(rig.directory / "runs") == "run"
            assert (await supervisor.stop("one")).phase is WorkerPhase.STOPPED

    trio.run(body)


def test_an_end_while_nobody_watched_is_accounted_for(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            pid = (await supervisor.start(shell("one", "echo last words; exec sleep 600"))).pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        await until(lambda: not locked(rig.folder("one")), "the shim to end")
        async with rig.supervisor() as supervisor:
            await until_phase(supervisor, "one", WorkerPhase.RUNNING)
            found = supervisor.find("one")
            assert found is not None
            assert found.pid != pid
            assert (found.restarts, found.last_exit_reason) == (1, "killed by SIGTERM")
            assert found.last_output_lines == ("last words",)

    trio.run(body)


def test_a_pid_that_was_given_to_another_is_not_adopted(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            await supervisor.start(shell("one", STEADY))
            await supervisor.stop("one")
        # As if the machine had given the shim's number to somebody else: by the status it runs, from another start on.
        status = rig.folder("one") / "status"
        text = status.read_text().replace("state exited", "state running")
        lines = [f"shim {os.getpid()}" if line.startswith("shim ") else line for line in text.splitlines()]
        status.write_text("\n".join(lines) + "\n")
        record = rig.folder("one") / "worker.json"
        kept = record.read_text().replace('"wanted":false', '"wanted":true')
        record.write_text(kept.replace('"accounted":1', '"accounted":0'))
        async with rig.supervisor() as supervisor:
            await until_phase(supervisor, "one", WorkerPhase.RUNNING)
            found = supervisor.find("one")
            assert found is not None
            assert found.pid not in (None, os.getpid())
            assert found.last_exit_reason == "its shim was killed"

    trio.run(body)


def test_a_shim_that_is_killed_takes_its_worker_along_and_both_come_back(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            # What is left is looked for among all processes, also among those whose names are no text.
            program = "printf '\\377\\376)' > /proc/$$/comm; sleep 603 & echo $!; wait"
            first = (await supervisor.start(shell("one", program))).pid
            status = read_status(rig.folder("one"))
            assert status is not None
            child = int(await until(lambda: _text(rig.folder("one") / "log"), "the child's pid"))
            os.kill(status.shim.pid, signal.SIGKILL)
            await until(lambda: (found := supervisor.find("one")) and found.pid not in (None, first), "a second run")
            found = supervisor.find("one")
            assert found is not None
            assert found.last_exit_reason.startswith("its shim was killed")
            assert not is_alive(first or 0)
            assert not is_alive(child)

    trio.run(body)


def test_probes(rig: Rig) -> None:
    sign, sick = rig.directory / "sign", rig.directory / "sign.sick"

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            readiness = Probe(file=str(sign), period_seconds=0.02, failure_threshold=2)
            command = ("/bin/sh", "-c", f"! test -e {sick} || {{ echo sick; exit 9; }}")
            liveness = Probe(command=command, period_seconds=0.02, failure_threshold=3)
            worker = await supervisor.start(shell("one", STEADY, readiness=readiness, liveness=liveness))
            assert not worker.ready
            sign.touch()
            await until(lambda: (found := supervisor.find("one")) and found.ready, "readiness")
            sign.unlink()
            await until(lambda: (found := supervisor.find("one")) and not found.ready, "unreadiness")
            sick.touch()
            await until(lambda: "WorkerUnhealthy" in rig.reasons("one"), "three strikes")
            sick.unlink()
            await until(lambda: (found := supervisor.find("one")) and found.restarts and found.pid, "a second run")
            found = supervisor.find("one")
            assert found is not None
            assert "liveness probe failed 3 times in a row: sh ended with 9: sick" in found.last_exit_reason

    trio.run(body)


def test_orphans_of_a_removed_allocation_are_ended_and_forgotten(rig: Rig) -> None:
    async def body() -> None:
        async with rig.supervisor() as supervisor:
            mine = await supervisor.start(replace(shell("mine", STEADY), allocation_id="kept"))
            orphan = await supervisor.start(replace(shell("orphan", STEADY), allocation_id="gone"))
            free = await supervisor.start(shell("free", STEADY))
        # Over a restart as well: the allocation went while no daemon was there.
        async with rig.supervisor() as supervisor:
            assert supervisor.end_orphans({"kept"}) == ("orphan",)
            await until_phase(supervisor, "orphan", WorkerPhase.STOPPED)
            assert not is_alive(orphan.pid or 0)
            supervisor.end_orphans({"kept"})
            assert [worker.worker_id for worker in supervisor.workers] == ["free", "mine"]
            assert not rig.folder("orphan").exists()
            assert is_alive(mine.pid or 0)
            assert is_alive(free.pid or 0)
            (told,) = [text for reason, name, text in rig.events if (reason, name) == ("WorkerStopped", "orphan")]
            assert "its allocation is gone: 'gone'" in told

    trio.run(body)


def test_the_log_is_rotated_and_bounded(rig: Rig) -> None:
    rig.options = {"log_bytes": 4096, "log_files": 2}

    async def body() -> None:
        async with rig.supervisor() as supervisor:
            program = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo done; exec sleep 600"
            await supervisor.start(shell("one", program))
            await until(lambda: (_text(rig.folder("one") / "log") or "").endswith("done"), "all lines")
            logs = sorted(path.name for path in rig.folder("one").glob("log*"))
            assert logs == ["log", "log.1", "log.2"]
            assert all((rig.folder("one") / name).stat().st_size <= 4096 for name in logs)

    trio.run(body)


def test_what_a_launcher_starts_lives_where_the_launcher_lives(rig: Rig) -> None:
    socket = rig.directory / "launcher.sock"
    workers = rig.directory / "workers"
    workers.mkdir()
    command = [
        sys.executable,
        "-m",
        "hypervisor",
        "worker",
        "launcher",
        "--socket",
        str(socket),
        "--root",
        str(workers),
    ]
    launcher = subprocess.Popen(command, start_new_session=True)
    rig.options = {"launcher": socket}

    async def body() -> None:
        await until(socket.exists, "the launcher")
        async with rig.supervisor() as supervisor:
            worker = await supervisor.start(shell("one", STEADY))
            assert worker.phase is WorkerPhase.RUNNING
            assert (await supervisor.stop("one")).phase is WorkerPhase.STOPPED
            with socket_client(socket) as stream:  # a directory that is not below its root
                stream.sendall(f"{rig.directory}\n".encode())
                assert stream.recv(16) == b"78\n"

    try:
        trio.run(body)
    finally:
        launcher.kill()
        launcher.wait()


def socket_client(path: Path):  # type: ignore[no-untyped-def]
    import socket

    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(str(path))
    return stream


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
