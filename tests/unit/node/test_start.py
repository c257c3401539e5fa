"""What happens before anything is bound: locks, identity, and the words for what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.node.failure import StartError
from hypervisor.node.identity import begin
from hypervisor.node.lock import locked
from hypervisor.node.notify import Notifier


def test_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hypervisor.node.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'state directory'):\n print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        wanted = pytest.raises(StartError, match=f"in use by the daemon that runs as process {holder.pid}")
        with wanted, locked(tmp_path, "state directory"):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path, "state directory"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_directory_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = pytest.raises(StartError, match=r"can't use the state directory .*/file")
    with wanted, locked(tmp_path / "file", "state directory"):
        pass


def test_identity_is_made_once_and_starts_are_counted(tmp_path: Path) -> None:
    first = begin(tmp_path, name="node")
    second = begin(tmp_path, name="node")
    assert first.identity == second.identity
    assert (first.epoch, second.epoch) == (1, 2)
    assert len(first.identity.boot_id) == 36


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged"),
        (b'{"version": 1, "uid": "x"}', "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b'{"version": 9, "uid": "x", "epoch": 1}', "is of version 9"),
    ],
)
def test_damaged_identity_is_refused_and_kept(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(content)
    with pytest.raises(StartError, match=words):
        begin(tmp_path, name="node")
    assert path.read_bytes() == content


@pytest.mark.parametrize("abstract", [False, True])
def test_notifications_reach_the_socket(tmp_path: Path, abstract: bool) -> None:
    import socket

    name = f"@hypervisor-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if abstract else name)
        receiver.settimeout(5)
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})
        assert notifier.watchdog_seconds == 3.0
        notifier.ready("serving")
        notifier.reloading()
        notifier.status("serving")  # known already
        notifier.alive()
        notifier.alive()  # too soon to be worth a message
        notifier.stopping()
        assert receiver.recv(4096) == b"READY=1\nSTATUS=serving"
        assert receiver.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert receiver.recv(4096) == b"WATCHDOG=1"
        assert receiver.recv(4096) == b"STOPPING=1"
        notifier.close()


def test_watchdog_of_another_process_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None
    Notifier({}).ready("nobody listens")
