"""Whatever a client sends, the server answers it or hangs up, and goes on serving the others."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import node_pb2_grpc

METHODS = sorted(method.name for method in pb.DESCRIPTOR.services_by_name["NodeService"].methods)
STREAMS = {"WatchNode", "WatchEvents"}
# Answers that say that the request was at fault, or that it was fine; INTERNAL and UNKNOWN would be defects of ours.
FINE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
SERVER = """
import sys, trio
from hypervisor.config import Settings
from hypervisor.rpc import open_node_server, serve_owners
from tests import builders
from tests.integration.rpc.fakes import FakeCommands, FakeJournal

class Commands(FakeCommands):
    async def attach_gpu(self, uuid):
        pass

async def main(directory):
    settings = Settings(listen=(f"unix:{directory}/read.sock",), admin_listen=f"unix:{directory}/admin.sock")
    commands = Commands()
    journal = FakeJournal([builders.make_event(n) for n in range(1, 50)])
    async with trio.open_nursery() as nursery, open_node_server(
        settings, snapshot=builders.make_snapshot(allocations=3), commands=commands, events=journal
    ):
        await nursery.start(
            lambda task_status: serve_owners(f"unix:{directory}/owner.sock", commands, task_status=task_status)
        )
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        nursery.cancel_scope.cancel()

trio.run(main, sys.argv[1])
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Iterator[Path]:
    """Sockets of a server in a process of its own, which must end well and silent after all that it was sent."""
    place = tmp_path_factory.mktemp("fuzz")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    try:
        yield place
        check_alive(place)
    finally:
        _, err = server.communicate("\n", timeout=30)
    assert server.returncode == 0
    assert "Traceback" not in err, err
    assert err == ""


def check_alive(directory: Path) -> None:
    with grpc.insecure_channel(f"unix:{directory}/read.sock") as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)
        assert stub.GetNode(pb.GetNodeRequest(), timeout=10).node.gpu_count == 8


def send(directory: Path, method: str, raw: bytes) -> grpc.StatusCode:
    """Send bytes as the request of a method; returns the status, OK for a watch that has begun."""
    with grpc.insecure_channel(f"unix:{directory}/admin.sock") as channel:
        path = f"/hypervisor.v1.NodeService/{method}"
        try:
            if method in STREAMS:
                next(channel.unary_stream(path)(raw, timeout=0.2))
            else:
                channel.unary_unary(path)(raw, timeout=5)
        except grpc.RpcError as error:
            begun = method in STREAMS and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return grpc.StatusCode.OK if begun else error.code()
    return grpc.StatusCode.OK


def messages(descriptor, depth: int = 4) -> st.SearchStrategy:
    """Random messages of a type: every field may be there, with values from the edges and beyond."""
    fields = {}
    for field in descriptor.fields:
        if field.message_type is None:
            fields[field.name] = _listed(field, scalars(field))
        elif field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            fields[field.name] = st.dictionaries(scalars(key), scalars(value), max_size=3)
        elif depth > 0:
            fields[field.name] = _listed(field, messages(field.message_type, depth - 1))
    return st.fixed_dictionaries({}, optional=fields)


def _listed(field, strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=3) if field.is_repeated else strategy


INTERESTING = st.sampled_from(
    ["", ".", "..", "../x", "/", "a", "pod-0", "0", "7", "8", "40", "-1", "NaN", "1e9", "GPU", "\0", "\n", "é" * 300]
)


def scalars(field) -> st.SearchStrategy:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return st.binary(max_size=20)
        return INTERESTING | st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
    if kind == field.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return st.floats(width=32)
    if kind == field.CPPTYPE_ENUM:
        return st.integers(-(2**31), 2**31 - 1) | st.integers(0, 8)
    bits = 64 if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
    signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([0, 1, high])


def build(method: str, parts: dict) -> bytes:
    request = pb.DESCRIPTOR.services_by_name["NodeService"].methods_by_name[method].input_type
    return getattr(pb, request.name)(**parts).SerializeToString()


RELAXED = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("method", METHODS)
def test_random_messages(directory: Path, method: str) -> None:
    request = pb.DESCRIPTOR.services_by_name["NodeService"].methods_by_name[method].input_type

    @RELAXED
    @given(messages(request))
    def check(parts: dict) -> None:
        assert send(directory, method, build(method, parts)) in FINE

    check()


@RELAXED
@given(st.sampled_from(METHODS), st.binary(max_size=200))
def test_random_bytes_as_messages(directory: Path, method: str, raw: bytes) -> None:
    assert send(directory, method, raw) in FINE


@RELAXED
@given(st.sampled_from(["read", "admin", "owner"]), st.binary(max_size=4096), st.booleans())
def test_random_bytes_on_the_socket(directory: Path, name: str, raw: bytes, preface: bool) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(f"{directory}/{name}.sock")
        try:
            if preface:  # past the door of HTTP/2
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
    check_alive(directory)


def test_a_message_above_the_limit(directory: Path) -> None:
    raw = pb.ReleaseRequest(allocation_id="a" * (5 * 2**20)).SerializeToString()
    assert send(directory, "Release", raw) is grpc.StatusCode.RESOURCE_EXHAUSTED
    check_alive(directory)
