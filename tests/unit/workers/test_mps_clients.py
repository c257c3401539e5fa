"""Clients of an MPS server and what is left of one that has ended: processes, and not numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hypervisor.workers.mps.clients import Clients


class Processes:
    """Children, by their pids."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []

    def begin(self) -> int:
        self.children.append(subprocess.Popen(["sleep", "60"]))
        return self.children[-1].pid

    def end(self, pid: int, *, reaped: bool = True) -> None:
        child = next(each for each in self.children if each.pid == pid)
        child.kill()
        if reaped:
            child.wait()
        else:
            while "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]:
                pass


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for child in made.children:
        child.kill()
        child.wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients.json"


@pytest.mark.parametrize("restarted", [False, True])
def test_clients_of_a_server_that_went_are_orphans_until_they_end(
    path: Path, processes: Processes, restarted: bool
) -> None:
    server, first, second = processes.begin(), processes.begin(), processes.begin()
    clients = Clients(path)
    clients.see(server, (first, second))
    assert (clients.server, clients.clients) == (server, tuple(sorted((first, second))))
    processes.end(server)
    processes.end(second, reaped=False)  # a zombie holds nothing any more
    if restarted:
        clients = Clients(path)
    assert clients.lose(()) == (first,)
    assert clients.lose(()) == ()
    assert clients.orphans == (first,)
    if restarted:
        clients = Clients(path)
    assert clients.orphans == (first,)
    processes.end(first)
    assert clients.orphans == ()


def test_a_server_that_is_there_after_a_restart_of_ours_has_lost_nobody(path: Path, processes: Processes) -> None:
    server, client = processes.begin(), processes.begin()
    Clients(path).see(server, (client,))
    again = Clients(path)
    assert again.lose((server,)) == ()
    assert (again.clients, again.orphans) == ((client,), ())


@pytest.mark.parametrize("whose", ["clients", "server", "orphans"])
def test_a_number_that_was_given_to_somebody_else_is_not_theirs(path: Path, processes: Processes, whose: str) -> None:
    server, client = processes.begin(), processes.begin()
    clients = Clients(path)
    clients.see(server, (client,))
    if whose == "orphans":
        processes.end(server)
        assert clients.lose(()) == (client,)
    # As if the process had ended and its number had been given away: the same number with another start.
    kept = msgspec.json.decode(path.read_bytes())
    for identity in [kept["server"]] if whose == "server" else kept[whose]:
        identity["start"] -= 100
    path.write_bytes(msgspec.json.encode(kept))
    again = Clients(path)
    if whose == "server":
        assert again.lose((server,)) == (client,)  # the number is there, and it is not the server
    else:
        assert again.lose(()) == ()
        assert again.orphans == ()


@pytest.mark.parametrize("damage", ["", "{", '{"boot_id":"x","server":null,"clients":[],"orphans":[]}', "[]"])
def test_what_is_damaged_or_of_another_boot_is_not_believed(path: Path, processes: Processes, damage: str) -> None:
    path.write_text(damage)
    clients = Clients(path)
    assert (clients.server, clients.clients, clients.orphans) == (0, (), ())
    server = processes.begin()
    clients.see(server, ())
    assert Clients(path).server == server
    clients.forget()
    assert not path.exists()
