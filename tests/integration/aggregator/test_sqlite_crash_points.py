"""kill -9 at every single write of the SQLite store: each commit is there as a whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIM = Path(__file__).with_name("crash_at_write.c")

# One process that forks for each place to die at: what is imported is imported once.
PROGRAM = """
import ctypes, os, signal, sys
from pathlib import Path
from hypervisor.aggregator import rows
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import Batch, EventQuery, GpuRow, NodeRow
from tests.fleet import messages as m

shim = ctypes.CDLL(None)
shim.crash_at.argtypes = [ctypes.c_long]
shim.crash_count.restype = ctypes.c_long
COMMITS = 4

def batch(number):
    events = [
        rows.event_row(m.event("a", 1, sequence), node_uid="uid-a", received_at=float(number))
        for sequence in range(max(1, number * 10 - 15), number * 10 + 1)
    ]
    gpus = [
        GpuRow(f"g{index}", "uid-a", index, "m", "v", "", "Running", 1, 0, True, True, 1.0, 1, None, None, None, number,
               b"d" * 900, b"")
        for index in range(20)
    ]
    node = NodeRow("uid-a", "a", "b", True, 1, 0.0, number, b"d" * 500)
    removed = [(f"old{number - 1}", number)] if number > 1 else []
    more = GpuRow(f"old{number}", "uid-a", 99, "m", "v", "", "Running", 1, 0, True, True, 1.0, 1, None, None, None,
                  number, b"d", b"")
    return Batch(version=number, nodes=[node], gpus=[*gpus, more], removed_gpus=removed, events=events)

def work(path, told):
    store = SqliteStore(path, tombstone_limit=10)
    store.load()
    for number in range(1, COMMITS + 1):
        store.commit(batch(number))
        os.write(told, b".")
    store.prune(oldest_received_at=1.5, keep=1000)
    store.close()

def check(path, acknowledged):
    store = SqliteStore(path, tombstone_limit=10)
    stored = store.load()
    versions = {row.version for row in stored.gpus}
    assert len(versions) <= 1, versions
    done = versions.pop() if versions else 0
    assert acknowledged <= done <= acknowledged + 1, (acknowledged, done)
    names = {row.name for row in stored.gpus}
    assert names == ({f"g{index}" for index in range(20)} | {f"old{done}"} if done else set()), names
    sequences = [event.row.sequence for event in store.read_events(EventQuery(limit=10_000))]
    pruned = sequences and sequences[0] == 11
    assert sequences == list(range(11 if pruned else 1, done * 10 + 1)), (done, sequences)
    assert not pruned or done == COMMITS
    assert stored.event_positions == ({"uid-a": (1, done * 10)} if done else {})
    store.commit(batch(done + 1))
    store.close()

directory = Path(sys.argv[1])
place = 0
while True:
    place += 1
    path = directory / f"{place}.db"
    reading, told = os.pipe()
    child = os.fork()
    if child == 0:
        shim.crash_at(place)
        work(path, told)
        os._exit(0)
    os.close(told)
    acknowledged = b""
    while part := os.read(reading, 64):
        acknowledged += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    check(path, len(acknowledged))
    for left in directory.glob(f"{place}.db*"):
        left.unlink()
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
print(place - 1)
"""


@pytest.mark.slow
def test_a_kill_at_any_write_leaves_whole_commits(tmp_path: Path) -> None:
    library = tmp_path / "crash_at_write.so"
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True
    )
    (tmp_path / "stores").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "stores")],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # It has died at each of many places, or the shim sees nothing.
    assert int(done.stdout) > 50
