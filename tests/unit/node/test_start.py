"""What happens before anything is bound: locks, identity, and the words for what is wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.model import EventType, ObjectKind, ObjectReference
from hypervisor.node import identity
from hypervisor.node.failure import StartError
from hypervisor.node.identity import begin
from hypervisor.node.journal import Journal
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


def test_identity_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    content = b'{"version": 9, "uid": "x", "epoch": 1}'
    path.write_bytes(content)
    with pytest.raises(StartError, match="is of version 9"):
        begin(tmp_path, name="node")
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "uid": "x"}', b"\xff\xfe"])
def test_damaged_identity_is_set_aside_and_known_from_the_journal(tmp_path: Path, content: bytes) -> None:
    first = begin(tmp_path, name="node")
    second = begin(tmp_path, name="node")
    journal = Journal.open(tmp_path, identity=second.identity, epoch=second.epoch)
    node = ObjectReference(kind=ObjectKind.NODE, name="node", uid=second.identity.uid)
    journal.emit(EventType.NORMAL, "HypervisorStarted", node, "started")
    journal.close()
    (tmp_path / "node.json").write_bytes(content)
    third = begin(tmp_path, name="node")
    assert third.identity == first.identity
    assert third.epoch > second.epoch
    assert "was damaged" in third.mended
    assert (tmp_path / "node.json.damaged").read_bytes() == content
    fourth = begin(tmp_path, name="node")
    assert (fourth.identity, fourth.epoch, fourth.mended) == (first.identity, third.epoch + 1, "")


def test_damaged_identity_that_nothing_else_knows_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(b"{")
    start = begin(tmp_path, name="node")
    assert start.epoch == 1
    assert "it has a new one" in start.mended


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """No new file gets a byte, as on a full disk; what is written over takes no room."""

    def write_atomically(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(identity, "write_atomically", write_atomically)


def test_starts_are_counted_on_a_full_disk_too(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = begin(tmp_path, name="node")
    request.getfixturevalue("no_room")
    starts = [begin(tmp_path, name="node") for _ in range(120)]  # the number gets longer
    assert [start.epoch for start in starts] == list(range(2, 122))
    assert {start.identity for start in starts} == {first.identity}


def test_damaged_identity_on_a_full_disk_is_written_over(tmp_path: Path, no_room: None) -> None:
    (tmp_path / "node.json").write_bytes(b"{" * 200)
    start = begin(tmp_path, name="node")
    assert begin(tmp_path, name="node").identity == start.identity


@pytest.mark.usefixtures("no_room")
def test_a_first_start_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="free some space"):
        begin(tmp_path, name="node")


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
