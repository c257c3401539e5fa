"""The owner socket: the kernel names the caller, and no client harms another."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hypervisor.model import OwnerKind, Refusal, RefusalReason
from hypervisor.rpc import ListenError, owner_client, serve_owners
from hypervisor.rpc.frames import MAX_FRAME_BYTES, FrameKind, encode
from hypervisor.rpc.owner_client import OwnerUnreachable, allocate_for_self, request_share
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2
from tests import builders
from tests.integration.rpc.conftest import in_thread, run
from tests.integration.rpc.fakes import FakeCommands

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@asynccontextmanager
async def owners(tmp_path: Path, commands: FakeCommands, **options):
    address = f"unix:{tmp_path}/owner.sock"
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: serve_owners(address, commands, task_status=task_status, **options))
            yield address
            nursery.cancel_scope.cancel()


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat, read apart from the code under test."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_the_owner_is_the_calling_process(tmp_path: Path) -> None:
    program = (
        "import sys, os\n"
        "from hypervisor.rpc.owner_client import allocate_for_self\n"
        "from tests.builders import make_spec\n"
        "found = allocate_for_self(sys.argv[1], make_spec('mine'))\n"
        "print(os.getpid(), found['TF_SHM_PATH'], flush=True)\n"
        "sys.stdin.read()\n"
    )

    async def body() -> None:
        commands = FakeCommands()
        async with owners(tmp_path, commands) as address:
            child = subprocess.Popen(  # noqa: ASYNC220 - starting is quick
                [sys.executable, "-c", program, address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[3],
            )
            try:
                assert child.stdout is not None
                line = await in_thread(child.stdout.readline)
                begun = start_time(child.pid)
            finally:
                child.communicate()
        ((_, spec, dry_run),) = commands.calls
        assert line.split() == [str(child.pid), "/run/tensor-fusion/shm/by-uid/uid-of-mine"]
        assert spec.owner.kind is OwnerKind.PROCESS
        assert (spec.owner.pid, spec.owner.start_time_ticks, spec.owner.uid) == (child.pid, begun, os.getuid())
        assert spec.owner.boot_id == BOOT_ID
        assert spec.owner.name.startswith("python")
        assert not dry_run
        assert spec.devices == builders.make_spec().devices

    run(body)


def test_refusals_arrive_as_they_are(tmp_path: Path) -> None:
    async def body() -> None:
        async with owners(tmp_path, FakeCommands()) as address:
            with pytest.raises(Refusal) as caught:
                await in_thread(allocate_for_self, address, builders.make_spec("../../etc"))
            assert caught.value.reason is RefusalReason.INVALID_ARGUMENT
            assert caught.value.field == "spec.allocation_id"
            answer = await in_thread(lambda: request_share(address, builders.make_spec("fine"), dry_run=True))
            assert answer.allocation.spec.allocation_id == "fine"

    run(body)


def test_an_owner_cannot_be_claimed(tmp_path: Path) -> None:
    request = pb.AllocateRequest(
        spec=types_pb2.AllocationSpec(
            allocation_id="x",
            owner=types_pb2.Owner(process=types_pb2.Owner.Process(pid=1)),
            devices=[types_pb2.DeviceRequest()],
        )
    )

    async def body() -> None:
        commands = FakeCommands()
        async with owners(tmp_path, commands) as address:
            answer = await in_thread(talk, address, encode(FrameKind.ALLOCATE, request.SerializeToString()))
            assert answer[4:5] == b"S"
            assert b"spec.owner" in answer
        assert commands.calls == []

    run(body)


def talk(address: str, *parts: bytes, half_close: bool = True) -> bytes:
    """Send raw bytes and return all that comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(address.removeprefix("unix:"))
        try:
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"A",),
        (struct.pack(">Ic", MAX_FRAME_BYTES + 1, b"A"),),
        (struct.pack(">Ic", 10, b"A") + b"12345",),
        (struct.pack(">Ic", 4, b"A") + b"\xff\xff\xff\xff",),
        (struct.pack(">Ic", 0, b"R"),),
        (struct.pack(">Ic", 0, b"\0"),),
        (b"GET / HTTP/1.1\r\n\r\n",),
        (os.urandom(4096),),
    ],
)
def test_nonsense_gets_an_answer_and_harms_nobody(tmp_path: Path, parts: tuple[bytes, ...]) -> None:
    async def body() -> None:
        async with owners(tmp_path, FakeCommands()) as address:
            answer = await in_thread(talk, address, *parts)
            assert answer[4:5] == b"S"
            environment = await in_thread(allocate_for_self, address, builders.make_spec("after"))
            assert environment

    run(body)


def test_a_client_that_says_nothing_is_let_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with owners(tmp_path, FakeCommands(), request_seconds=0.05) as address:
            answer = await in_thread(lambda: talk(address, b"\0", half_close=False))
            assert b"no whole request" in answer

    run(body)


def test_quiet_connections_keep_nobody_out(tmp_path: Path) -> None:
    async def body() -> None:
        async with owners(tmp_path, FakeCommands(), most=8, most_per_user=8) as address:
            quiet = []
            for _ in range(20):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                await in_thread(connection.connect, address.removeprefix("unix:"))
                quiet.append(connection)
            for number in range(5):
                assert await in_thread(allocate_for_self, address, builders.make_spec(f"p{number}"))
            for connection in quiet:
                connection.close()

    run(body)


def test_a_busy_daemon_says_so(tmp_path: Path) -> None:
    class Slow(FakeCommands):
        def __init__(self) -> None:
            super().__init__()
            self.asked = trio.Event()
            self.done = trio.Event()

        async def allocate(self, spec, *, dry_run):
            self.asked.set()
            await self.done.wait()
            return await super().allocate(spec, dry_run=dry_run)

    async def body() -> None:
        commands = Slow()
        async with owners(tmp_path, commands, most=1, most_per_user=1) as address, trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, allocate_for_self, address, builders.make_spec("first"))
            await commands.asked.wait()
            with pytest.raises(Refusal, match="the daemon is busy"):
                await in_thread(allocate_for_self, address, builders.make_spec("second"))
            commands.done.set()

    run(body)


def test_a_full_queue_is_asked_again_and_called_busy(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/full.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as full:
        full.bind(address.removeprefix("unix:"))
        full.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(address.removeprefix("unix:"))
            with pytest.raises(owner_client.OwnerBusy, match="no room"):
                allocate_for_self(address, builders.make_spec(), timeout=0.1)


def test_who_waits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_client, "NOTICE_SECONDS", 0.05)
    told = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:  # takes connections and answers none
        stopped.bind(str(tmp_path / "stopped.sock"))
        stopped.listen(1)
        with pytest.raises(OwnerUnreachable, match="didn't answer within"):
            allocate_for_self(
                f"unix:{tmp_path}/stopped.sock", builders.make_spec(), timeout=0.2, on_wait=lambda: told.append(1)
            )
    assert told == [1]


def test_a_defect_of_ours_ends_one_call_only(tmp_path: Path) -> None:
    class Broken(FakeCommands):
        async def allocate(self, spec, *, dry_run):
            if spec.allocation_id == "bad":
                raise ZeroDivisionError
            return await super().allocate(spec, dry_run=dry_run)

    async def body() -> None:
        async with owners(tmp_path, Broken()) as address:
            with pytest.raises(OwnerUnreachable, match="its log says more"):
                await in_thread(allocate_for_self, address, builders.make_spec("bad"))
            assert await in_thread(allocate_for_self, address, builders.make_spec("good"))

    run(body)


def test_many_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        commands = FakeCommands()
        async with owners(tmp_path, commands) as address, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(in_thread, allocate_for_self, address, builders.make_spec(f"p{number}"))
        assert len(commands.allocations) == 50

    run(body)


def test_socket_mode_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "owner.sock"

    async def body() -> None:
        async with owners(tmp_path, FakeCommands()) as address:
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            with pytest.raises(ListenError, match=f"in use by process {os.getpid()}"):
                await serve_owners(address, FakeCommands())
            assert await in_thread(allocate_for_self, address, builders.make_spec())
        assert not path.exists()

    run(body)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OwnerUnreachable, match="No such file"):
        allocate_for_self(f"unix:{tmp_path}/none.sock", builders.make_spec())
    with pytest.raises(OwnerUnreachable, match="unix:PATH"):
        allocate_for_self("localhost:1", builders.make_spec())
