"""The store keeps what it was given, once, over kill -9, and refuses what it doesn't know."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.aggregator import rows, sqlite_schema
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import Batch, EventQuery, EventRow, GpuRow, StoreError
from tests.fleet import messages as m


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def open_store(path: Path, tombstone_limit: int = 100) -> SqliteStore:
    return SqliteStore(path, tombstone_limit=tombstone_limit)


def event(node: str, epoch: int, sequence: int, *, received_at: float = 0.0, index: int = 0) -> EventRow:
    row = rows.event_row(m.event(node, epoch, sequence, index=index), node_uid=f"uid-{node}", received_at=received_at)
    assert row is not None
    return row


def gpu(name: str, version: int) -> GpuRow:
    return GpuRow(
        name,
        "uid-a",
        0,
        "m",
        "v",
        "",
        "Running",
        1,
        0,
        True,
        True,
        989.0,
        1 << 50,
        None,
        None,
        None,
        version,
        b"x",
        b"y",
    )


def test_what_was_committed_is_found(path: Path) -> None:
    store = open_store(path)
    first = store.load()
    store.commit(Batch(version=3, gpus=[gpu("a", 1), gpu("b", 2), gpu("c", 3)], events=[event("a", 1, 1)]))
    store.commit(Batch(version=5, gpus=[gpu("a", 4)], removed_gpus=[("b", 5)]))
    store.close()
    again = open_store(path).load()
    assert again.store_id == first.store_id
    assert [(row.name, row.version) for row in again.gpus] == [("c", 3), ("a", 4)]
    assert again.gpus[1] == gpu("a", 4)
    assert again.tombstones == [("b", 5)]
    assert again.resumable == (0, 5)
    assert again.event_positions == {"uid-a": (1, 1)}


def test_versions_are_never_given_out_twice(path: Path) -> None:
    given = 0
    for _ in range(3):
        store = open_store(path)
        stored = store.load()
        assert stored.version >= given
        # Given out after the last commit, and lost with the process.
        given = stored.version + 900
        store.commit(Batch(version=stored.version + 10))
        store.close()


def test_an_object_that_comes_back_has_no_tombstone(path: Path) -> None:
    store = open_store(path)
    store.load()
    store.commit(Batch(version=1, gpus=[gpu("a", 1)]))
    store.commit(Batch(version=2, removed_gpus=[("a", 2)]))
    store.commit(Batch(version=3, gpus=[gpu("a", 3)]))
    store.close()
    assert open_store(path).load().tombstones == []


def test_tombstones_are_bounded(path: Path) -> None:
    store = open_store(path, tombstone_limit=3)
    store.load()
    for version in range(1, 11):
        store.commit(Batch(version=version, removed_gpus=[(f"gpu-{version}", version)]))
    store.close()
    stored = open_store(path).load()
    assert [version for _, version in stored.tombstones] == [8, 9, 10]
    assert stored.resumable == (7, 10)


def test_an_event_is_stored_once(path: Path) -> None:
    store = open_store(path)
    store.load()
    batch = [event("a", 1, 1), event("a", 1, 2), event("b", 1, 1)]
    assert [stored.number for stored in store.commit(Batch(version=1, events=batch))] == [1, 2, 3]
    # Again, out of order, with one that is new between.
    late = [event("a", 1, 2), event("a", 1, 4), event("a", 1, 3), event("a", 1, 1)]
    assert [(s.number, s.row.sequence) for s in store.commit(Batch(version=1, events=late))] == [(4, 4), (5, 3)]
    found = store.read_events(EventQuery())
    assert [(s.row.node_uid, s.row.sequence) for s in found] == [
        ("uid-a", 1),
        ("uid-a", 2),
        ("uid-b", 1),
        ("uid-a", 4),
        ("uid-a", 3),
    ]
    assert rows.event_message(found[0].row) == m.event("a", 1, 1)
    store.close()
    again = open_store(path)
    assert again.load().event_positions == {"uid-a": (1, 4), "uid-b": (1, 1)}
    assert [stored.number for stored in again.commit(Batch(version=1, events=[event("c", 1, 1)]))] == [6]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (EventQuery(after=2, limit=2), [3, 4]),
        (EventQuery(name="gpu-A-1"), [2]),
        (EventQuery(node_name="b"), [4]),
        (EventQuery(kind="gpu", object_uid="GPU-b-0"), [4]),
        (EventQuery(type=1), []),
        (EventQuery(kind="Pod"), []),
    ],
)
def test_queries(path: Path, query: EventQuery, numbers: list[int]) -> None:
    store = open_store(path)
    store.load()
    made = [*(event("a", 1, index + 1, index=index) for index in range(3)), event("b", 1, 1)]
    store.commit(Batch(version=1, events=made))
    assert [stored.number for stored in store.read_events(query)] == numbers


def test_old_events_are_pruned_and_numbers_go_on(path: Path) -> None:
    store = open_store(path)
    store.load()
    store.commit(Batch(version=1, events=[event("a", 1, n, received_at=n) for n in range(1, 11)]))
    assert store.prune(oldest_received_at=4, keep=1000) == 3
    assert store.prune(oldest_received_at=0, keep=2) == 5
    assert store.prune(oldest_received_at=100, keep=1000) == 2
    store.close()
    again = open_store(path)
    again.load()
    assert [s.number for s in again.commit(Batch(version=1, events=[event("a", 1, 11)]))] == [11]


def test_a_full_disk_leaves_nothing_half(path: Path) -> None:
    store = open_store(path)
    store.load()
    store.commit(Batch(version=1, gpus=[gpu("a", 1)]))
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count={pages}")
    big = Batch(version=9, gpus=[gpu("a", 2)], events=[event("a", 1, n) for n in range(1, 2000)])
    with pytest.raises(StoreError, match="full"):
        store.commit(big)
    assert store.read_events(EventQuery()) == []
    store._writer.execute("PRAGMA max_page_count=1000000")
    assert len(store.commit(big)) == 1999
    store.close()
    assert open_store(path).load().gpus[0].version == 2


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    open_store(path).close()
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO migrations VALUES (99, 'from the future', 0)")
    database.close()
    with pytest.raises(StoreError, match=r"schema is version 99.*run the newer program"):
        open_store(path)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT max(version) FROM migrations").fetchone() == (99,)
    database.close()


def test_a_text_in_the_place_of_a_number_is_told(path: Path) -> None:
    store = open_store(path)
    store.load()
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = 'nonsense' WHERE key = 'reserved_version'")
    database.close()
    with pytest.raises(StoreError, match=r"nonsense.*move it away"):
        open_store(path).load()


def test_migrations_are_applied_in_order_and_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(path)
    store.load()
    store.commit(Batch(version=1, gpus=[gpu("a", 1)]))
    store.close()
    more = (*sqlite_schema.MIGRATIONS, ("a column", "ALTER TABLE nodes ADD COLUMN zone TEXT NOT NULL DEFAULT 'z';"))
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", more)
    for _ in range(2):
        store = open_store(path)
        assert [row.name for row in store.load().gpus] == ["a"]
        assert store._writer.execute("SELECT count(*) FROM pragma_table_info('nodes') WHERE name = 'zone'").fetchone()[
            0
        ]
        store.close()


def test_a_damaged_file_is_named(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    with pytest.raises(StoreError, match=f"{path}.*move it away"):
        open_store(path)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="check that its directory exists"):
        open_store(tmp_path / "none" / "store.db")


COMMITTER = """
import sys
from pathlib import Path
from hypervisor.aggregator import rows
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import Batch
from tests.fleet import messages as m
store = SqliteStore(Path(sys.argv[1]), tombstone_limit=100)
start = store.load().event_positions.get("uid-a", (0, 0))[1]
for number in range(start + 1, 1 << 30, 10):
    # From a little before what is stored: the repeats that at-least-once brings.
    sent = [m.event("a", 1, n) for n in range(max(1, number - 5), number + 10)]
    made = [rows.event_row(event, node_uid="uid-a", received_at=0) for event in sent]
    store.commit(Batch(version=number, events=made))
    print(number + 9, flush=True)
"""


def test_kill_at_any_commit_loses_and_doubles_nothing(path: Path) -> None:
    acknowledged = 0
    for life in range(4):
        with subprocess.Popen([sys.executable, "-c", COMMITTER, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                acknowledged = int(line)
                if acknowledged >= 100 * (life + 1) + 7 * life:
                    os.kill(child.pid, signal.SIGKILL)
                    break
    store = open_store(path)
    store.load()
    sequences = [stored.row.sequence for stored in store.read_events(EventQuery(limit=100_000))]
    assert sorted(sequences) == list(range(1, len(sequences) + 1))
    assert len(sequences) >= acknowledged
