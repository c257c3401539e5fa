"""Where a server listens, where it refuses to, and what it leaves behind."""

# ruff: noqa: ASYNC240 - looking at a directory is quick

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import msgspec
import pytest
import trio

from hypervisor.rpc import ListenError, open_node_server
from hypervisor.rpc.address import AddressError, TcpAddress, UnixAddress, parse_address
from hypervisor.v1 import node_pb2 as pb
from tests import builders
from tests.integration.rpc.conftest import in_thread, run, serving, stub_of
from tests.integration.rpc.fakes import FakeCommands, FakeJournal


async def refused(settings, **changes) -> str:
    """The words with which a server refuses to start."""
    with pytest.raises(ListenError) as caught:
        async with open_node_server(
            msgspec.structs.replace(settings, **changes),
            snapshot=builders.make_snapshot(),
            commands=FakeCommands(),
            events=FakeJournal(),
        ):
            raise AssertionError("it serves")
    return str(caught.value)


def ask(address: str) -> int:
    with stub_of(address) as stub:
        return stub.GetNode(pb.GetNodeRequest(), timeout=10).node.gpu_count


def test_modes_and_what_is_left_behind(settings, tmp_path: Path) -> None:
    async def body() -> None:
        umask = os.umask(0)
        try:
            async with serving(settings) as node:
                read, admin = tmp_path / "read.sock", tmp_path / "admin.sock"
                assert stat.S_IMODE(read.stat().st_mode) == 0o666
                assert stat.S_IMODE(admin.stat().st_mode) in (0o600, 0o660)
                assert admin.stat().st_uid == os.geteuid()
                assert node.server.addresses == (f"unix:{read}", f"unix:{admin}")
                assert os.umask(0) == 0
        finally:
            os.umask(umask)
        assert list(tmp_path.iterdir()) == []

    run(body)


def test_directories_are_made(settings, tmp_path: Path) -> None:
    async def body() -> None:
        place = tmp_path / "new" / "er" / "read.sock"
        async with serving(msgspec.structs.replace(settings, listen=(f"unix:{place}",))) as node:
            assert await in_thread(ask, node.read) == 8
            assert stat.S_IMODE(place.parent.stat().st_mode) & 0o022 == 0

    run(body)


@pytest.mark.parametrize("name", ["with space.sock", "100%.sock", "a?b#c.sock", "ünï.sock"])
def test_no_character_of_a_path_means_anything(settings, tmp_path: Path, name: str) -> None:
    async def body() -> None:
        async with serving(msgspec.structs.replace(settings, listen=(f"unix:{tmp_path / name}",))) as node:
            assert (tmp_path / name).is_socket()
            address = parse_address(node.read)
            assert await in_thread(ask, address.target) == 8

    run(body)


def test_a_stale_socket_is_replaced(settings, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "read.sock"))

    async def body() -> None:
        async with serving(settings) as node:
            assert await in_thread(ask, node.read) == 8

    run(body)


def test_a_socket_in_use_names_its_holder_and_stays_in_use(settings) -> None:
    async def body() -> None:
        async with serving(settings) as node:
            words = await refused(settings)
            assert "in use by process" in words
            assert str(os.getpid()) in words
            assert await in_thread(ask, node.read) == 8

    run(body)


def test_what_is_no_socket_is_left_alone(settings, tmp_path: Path) -> None:
    (tmp_path / "read.sock").write_text("precious")

    async def body() -> None:
        assert "no socket" in await refused(settings)
        assert (tmp_path / "read.sock").read_text() == "precious"

    run(body)


def test_a_refusal_lets_go_of_what_was_bound(settings, tmp_path: Path) -> None:
    (tmp_path / "admin.sock").write_text("in the way")

    async def body() -> None:
        assert "admin.sock" in await refused(settings)
        assert [path.name for path in tmp_path.iterdir()] == ["admin.sock"]
        (tmp_path / "admin.sock").unlink()
        async with serving(settings) as node:
            assert await in_thread(ask, node.admin) == 8

    run(body)


def test_a_directory_that_everybody_may_write(settings, tmp_path: Path) -> None:
    async def body() -> None:
        tmp_path.chmod(0o777)
        assert f"chmod o-w {tmp_path}" in await refused(settings)
        tmp_path.chmod(0o1777)  # sticky, as /tmp: nobody can replace another's socket
        async with serving(settings) as node:
            assert await in_thread(ask, node.read) == 8

    run(body)


def test_a_directory_that_is_a_file(settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def body() -> None:
        assert "file is no directory" in await refused(settings, listen=(f"unix:{tmp_path}/file/x.sock",))

    run(body)


def test_tcp_only_when_said_aloud(settings) -> None:
    async def body() -> None:
        words = await refused(settings, listen=("127.0.0.1:0",))
        assert "--insecure" in words
        tcp = msgspec.structs.replace(settings, listen=("127.0.0.1:0",), insecure=True)
        async with serving(tcp) as node:
            assert node.read.startswith("127.0.0.1:")
            assert not node.read.endswith(":0")
            assert await in_thread(ask, node.read) == 8

    run(body)


def test_a_port_in_use_names_its_holder(settings) -> None:
    async def body() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            words = await refused(settings, listen=(f"127.0.0.1:{port}",), insecure=True)
            assert f"127.0.0.1:{port}" in words
            assert f"in use by process {os.getpid()}" in words

    run(body)


def test_two_servers_do_not_share_a_port(settings, tmp_path: Path) -> None:
    async def body() -> None:
        tcp = msgspec.structs.replace(settings, listen=("127.0.0.1:0",), insecure=True)
        async with serving(tcp) as node:
            words = await refused(tcp, listen=(node.read,), insecure=True, admin_listen=f"unix:{tmp_path}/other.sock")
            assert "in use" in words

    run(body)


def test_changes_are_never_taken_on_tcp(settings) -> None:
    async def body() -> None:
        words = await refused(settings, admin_listen="127.0.0.1:0", insecure=True)
        assert "unix:PATH" in words
        words = await refused(settings, listen=(settings.admin_listen,))
        assert "a socket each" in words

    run(body)


def test_a_failure_of_the_loop_ends_the_block(settings) -> None:
    async def body() -> None:
        def crash() -> None:
            raise ZeroDivisionError("on the loop")

        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - what is tested is the block
            async with serving(settings) as node:
                node.server.host.post(crash)
                await trio.sleep_forever()

    run(body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unix:/run/a.sock", UnixAddress(Path("/run/a.sock"))),
        ("unix:///run/a.sock", UnixAddress(Path("/run/a.sock"))),
        ("localhost:8001", TcpAddress("localhost", 8001)),
        ("[::1]:0", TcpAddress("::1", 0)),
    ],
)
def test_addresses(text: str, expected) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "unix:", "host", "host:", ":1", "host:65536", "a:b:1", "http://x:1", "unix:a\0b"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert str(caught.value).isprintable()
