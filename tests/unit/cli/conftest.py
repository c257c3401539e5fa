"""A server with a fake node behind it, in a thread, and the command line as a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from hypervisor.cli.main import main
from hypervisor.config import Settings
from hypervisor.rpc import NodeServer, open_node_server
from tests import builders
from tests.integration.rpc.fakes import FakeCommands, FakeJournal


@dataclass
class Node:
    """A running server; do() runs a function in its trio thread."""

    server: NodeServer
    commands: FakeCommands
    journal: FakeJournal
    token: trio.lowlevel.TrioToken

    @property
    def read(self) -> str:
        return self.server.addresses[0]

    @property
    def admin(self) -> str:
        return self.server.addresses[-1]

    def do(self, function: Callable[..., object], *arguments: object) -> None:
        trio.from_thread.run_sync(function, *arguments, trio_token=self.token)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    settings = Settings(listen=(f"unix:{tmp_path}/read.sock",), admin_listen=f"unix:{tmp_path}/admin.sock")
    started: list[Node] = []
    ready = threading.Event()
    stop: list[trio.Event] = []

    async def serve() -> None:
        commands = FakeCommands()
        journal = FakeJournal([builders.make_event(number) for number in range(1, 4)])
        snapshot = builders.make_snapshot(allocations=2)
        commands.allocations = {found.spec.allocation_id: found for found in snapshot.allocations}
        stop.append(trio.Event())
        async with open_node_server(settings, snapshot=snapshot, commands=commands, events=journal) as server:
            started.append(Node(server, commands, journal, trio.lowlevel.current_trio_token()))
            ready.set()
            await stop[0].wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(20)
        yield started[0]
    finally:
        started[0].do(stop[0].set)
        thread.join(20)


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(int(caught.value.code or 0), captured.out, captured.err)

    return run
