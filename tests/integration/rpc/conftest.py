"""A real server over real sockets for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
import trio

from hypervisor.config import Settings
from hypervisor.rpc import NodeServer, open_node_server
from hypervisor.v1 import node_pb2_grpc
from tests import builders
from tests.integration.rpc.fakes import FakeCommands, FakeJournal


class Node:
    """A server with what stands behind it, and the settings that it was made from."""

    def __init__(self, server: NodeServer, commands: FakeCommands, journal: FakeJournal, settings: Settings) -> None:
        self.server = server
        self.commands = commands
        self.journal = journal
        self.settings = settings

    @property
    def read(self) -> str:
        return self.server.addresses[0]

    @property
    def admin(self) -> str:
        return self.server.addresses[-1]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        listen=(f"unix:{tmp_path}/read.sock",),
        admin_listen=f"unix:{tmp_path}/admin.sock",
        owner_listen=f"unix:{tmp_path}/owner.sock",
    )


@asynccontextmanager
async def serving(settings: Settings, *, snapshot=None, commands=None, journal=None, **options):
    """A running node; the journal and the commands may be given."""
    commands = commands or FakeCommands()
    journal = journal or FakeJournal()
    snapshot = snapshot or builders.make_snapshot(allocations=3)
    with trio.fail_after(30):
        async with open_node_server(
            settings, snapshot=snapshot, commands=commands, events=journal, **options
        ) as server:
            yield Node(server, commands, journal, settings)


@contextmanager
def stub_of(address: str) -> Iterator[node_pb2_grpc.NodeServiceStub]:
    """A plain gRPC client, with none of our code in it."""
    with grpc.insecure_channel(address) as channel:
        yield node_pb2_grpc.NodeServiceStub(channel)


def run(body) -> None:
    """Run an async test in trio."""
    trio.run(body)


async def in_thread(function, *arguments):
    """A blocking client beside the server."""
    return await trio.to_thread.run_sync(function, *arguments)
