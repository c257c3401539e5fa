"""Looks at a worker: what a command may do to who runs it."""

from __future__ import annotations

import resource
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from hypervisor.model import Probe
from hypervisor.workers.probing import look_of, once
from tests.daemon_process import wait_until
from tests.integration.workers.conftest import is_alive

PATH = {"PATH": "/usr/bin:/bin"}


def looked(*command: str, seconds: float = 30.0) -> str:
    async def body() -> str:
        return await once(look_of(Probe(command=command), PATH), seconds)

    return trio.run(body)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exit 0", ""),
        ("echo lots of words; exit 3", "sh ended with 3: lots of words"),
        ("printf '\\377\\n\\001x'; exit 1", "sh ended with 1: \ufffd \x01x"),
        ("kill -9 $$", "sh ended with -9"),
    ],
)
def test_what_a_command_says(program: str, words: str) -> None:
    assert looked("/bin/sh", "-c", program) == words


def test_what_can_not_be_run() -> None:
    assert looked("/no/such") == "/no/such can't be run: No such file or directory"


def test_a_command_that_says_too_much_costs_no_memory() -> None:
    looked("/bin/sh", "-c", "exit 0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert looked("yes", seconds=0.2) == "no answer within 0.2 s"
    told = looked("/bin/sh", "-c", "yes | head -c 30000000; exit 1")
    assert told == f"sh ended with 1: {'y ' * 99}y "[: len(told)]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 20 * 2**20


def test_a_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither one that has ended, with its output still held by a child, nor one that was too slow."""
    for ending, seconds in (("exit 1", 30.0), ("sleep 615", 0.5)):
        pid = tmp_path / "pid"
        began = time.monotonic()
        looked("/bin/sh", "-c", f"sleep 616 & echo $! > {pid}; {ending}", seconds=seconds)
        assert time.monotonic() - began < 10
        child = int(pid.read_text() or 0) if pid.exists() else 0  # it may have been too slow to begin
        wait_until(partial(_gone, child), "the child's end")
        pid.unlink(missing_ok=True)


def _gone(pid: int) -> bool:
    return not pid or not is_alive(pid)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (Probe(file="/x" * 3000), "it can't be looked at: File name too long"),
        (Probe(file="/a\0b"), "is not there"),
        (Probe(command=("/bin/true", "a\0b")), "/bin/true can't be run: embedded null byte"),
        (Probe(unix_socket="/x" * 300), "takes no connection: AF_UNIX path too long"),
    ],
)
def test_what_can_not_be_looked_at_is_a_failure_and_ends_nobody(probe: Probe, words: str) -> None:
    assert words in trio.run(once, look_of(probe, PATH), 5.0)


def test_a_socket_whose_queue_is_full_takes_no_connection(tmp_path: Path) -> None:
    """A worker that hangs answers nobody; its kernel takes as many connections as its queue is long, and then none."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        told = [trio.run(once, look_of(Probe(unix_socket=str(path)), PATH), 5.0) for _ in range(4)]
    assert told[0] == ""
    assert told[-1] == f"{path} takes no connection: its queue is full"


def test_a_file_system_that_does_not_answer_holds_up_one_look_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, threads = threading.Event(), set[int]()

    def exists(path: Path) -> bool:
        if path.name == "stuck":
            threads.add(threading.get_ident())
            assert answers.wait(30)
        return True

    monkeypatch.setattr(Path, "exists", exists)

    async def body() -> None:
        for _ in range(3):
            assert await once(look_of(Probe(file="/stuck"), PATH), 0.05) == "no answer within 0.05 s"
        assert await once(look_of(Probe(file="/other"), PATH), 5) == ""
        assert len(threads) == 1
        answers.set()
        with trio.fail_after(5):
            while await once(look_of(Probe(file="/stuck"), PATH), 1):
                pass

    trio.run(body)
