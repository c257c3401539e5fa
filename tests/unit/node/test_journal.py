"""The journal names events for ever, counts repeats, keeps a bounded ring, and outlives kill -9 and a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.model import Event, EventType, NodeIdentity, ObjectKind, ObjectReference
from hypervisor.node.journal import OVERFLOW_EVENTS, SERIES_LIMIT, Journal

IDENTITY = NodeIdentity(name="node-a", uid="uid-a", boot_id="boot")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    tmp_path.chmod(0o700)


def open_journal(directory: Path, clock: Clock, *, epoch: int = 1, capacity: int = 1000) -> Journal:
    return Journal.open(
        directory, identity=IDENTITY, epoch=epoch, capacity=capacity, window_seconds=60, monotonic=clock, wall=clock
    )


def gpu(name: str) -> ObjectReference:
    return ObjectReference(kind=ObjectKind.GPU, name=name, uid=f"uid-{name}")


def emit(journal: Journal, name: str, reason: str = "GpuLost", message: str = "m", **fields: str) -> None:
    journal.emit(EventType.WARNING, reason, gpu(name), message, **fields)


def names(events: object) -> list[tuple[int, int, str, int]]:
    assert isinstance(events, list | tuple)
    return [(event.epoch, event.sequence, event.regarding.name, event.count) for event in events]


def test_an_event_comes_back_whole(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "a", message="79 °C", temperature="79", empty="")
    assert journal.read((0, 0), 10) == [
        Event(
            node_uid="uid-a",
            node_name="node-a",
            epoch=1,
            sequence=1,
            type=EventType.WARNING,
            reason="GpuLost",
            regarding=gpu("a"),
            message="79 °C",
            fields=(("empty", ""), ("temperature", "79")),
            first_at=1000.0,
            last_at=1000.0,
        )
    ]


def test_sequences_only_grow_over_restarts(directory: Path, clock: Clock) -> None:
    for epoch in (1, 2, 3):
        journal = open_journal(directory, clock, epoch=epoch)
        emit(journal, f"gpu-{epoch}")
        journal.close()
    journal = open_journal(directory, clock, epoch=4)
    assert names(journal.read((0, 0), 10)) == [(1, 1, "gpu-1", 1), (2, 2, "gpu-2", 1), (3, 3, "gpu-3", 1)]
    assert names(journal.read((2, 2), 10)) == [(3, 3, "gpu-3", 1)]
    assert names(journal.read((1, 99), 1)) == [(2, 2, "gpu-2", 1)]


def test_repeats_become_a_count_when_the_window_ends(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "a", message="first")
    for number in range(5):
        clock.now += 1
        emit(journal, "a", message=f"repeat {number}")
    emit(journal, "b")
    assert names(journal.read((0, 0), 10)) == [(1, 1, "a", 1), (1, 2, "b", 1)]
    clock.now = 1061
    journal.step()
    last = journal.read((1, 2), 10)[0]
    assert (last.count, last.message, last.first_at, last.last_at) == (5, "repeat 4", 1001.0, 1005.0)
    clock.now = 1200
    emit(journal, "a", message="a new series")
    assert names(journal.read((1, 3), 10)) == [(1, 4, "a", 1)]
    assert sum(event.count for event in journal.read((0, 0), 10)) == 8


def test_errors_of_different_numbers_are_different_events(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    for number in ("31", "13", "31", "13", "13"):
        emit(journal, "a", reason="XidError", message=f"Xid {number}", xid=number)
    told = journal.read((0, 0), 10)
    assert [event.message for event in told] == ["Xid 31", "Xid 13"]
    journal = open_journal(directory, clock, epoch=2)  # after a kill: both series are on disk
    told = journal.read((1, 99), 10)
    assert sorted((event.message, event.count) for event in told) == [("Xid 13", 2), ("Xid 31", 1)]


def test_repeats_of_a_journal_of_the_first_version_are_told(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "a")
    emit(journal, "a")
    with sqlite3.connect(directory / "events.db") as database:
        database.executescript(
            "CREATE TABLE pending AS SELECT * FROM repeats; ALTER TABLE pending DROP COLUMN topic;"
            " DROP TABLE repeats; PRAGMA user_version=1;"
        )
    database.close()
    assert names(open_journal(directory, clock, epoch=2).read((1, 99), 10)) == [(2, 2, "a", 1)]


@pytest.mark.parametrize("clean", [True, False])
def test_repeats_are_not_lost_by_a_restart(directory: Path, clock: Clock, *, clean: bool) -> None:
    journal = open_journal(directory, clock)
    for _ in range(4):
        emit(journal, "a")
    if clean:
        journal.close()
    again = open_journal(directory, clock, epoch=2)
    assert names(again.read((0, 0), 10)) == [(1, 1, "a", 1), (1 if clean else 2, 2, "a", 3)]
    third = open_journal(directory, clock, epoch=3)
    assert names(third.read((0, 0), 10)) == names(again.read((0, 0), 10))


def test_the_ring_is_bounded_and_says_what_is_lost(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock, capacity=100)
    for number in range(250):
        emit(journal, f"gpu-{number}")
    kept = journal.read((0, 0), 1000)
    assert 100 <= len(kept) <= 110
    assert kept[-1].sequence == 250
    oldest = kept[0].sequence
    assert journal.lost_before((0, 0)) == oldest - 1
    assert journal.lost_before((1, 7)) == oldest - 8
    assert journal.lost_before((1, 250)) == 0
    assert journal.statistics().kept == len(kept)


def test_subscribers_hear_what_is_told(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    heard: list[Event] = []
    unsubscribe = journal.subscribe(heard.append)
    emit(journal, "a")
    emit(journal, "a")
    clock.now += 61
    journal.step()
    unsubscribe()
    emit(journal, "b")
    assert names(heard) == [(1, 1, "a", 1), (1, 2, "a", 1)]


def test_a_flood_of_names_does_not_fill_the_memory(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock, capacity=100)
    for number in range(SERIES_LIMIT + 10):
        emit(journal, f"gpu-{number}")
    assert len(journal._series) == SERIES_LIMIT


def test_a_full_disk_stops_nothing_and_heals(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "before")
    assert journal._database is not None
    # The engine's own limit makes the next write fail with SQLITE_FULL, as a full disk does.
    pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
    journal._database.execute(f"PRAGMA max_page_count={pages}")
    for number in range(50):
        emit(journal, f"full-{number}", message="x" * 500)
    assert "full" in journal.failed_reason
    failing = journal.statistics()
    assert failing.in_memory > 0
    assert failing.write_failures_total >= failing.in_memory
    assert [event.sequence for event in journal.read((0, 0), 100)] == list(range(1, 52))
    journal._database.execute("PRAGMA max_page_count=1000000")
    journal.step()
    assert journal.failed_reason == ""
    assert journal.statistics().in_memory == 0
    again = open_journal(directory, clock, epoch=2)
    assert [event.sequence for event in again.read((0, 0), 100)] == list(range(1, 52))


def test_memory_is_bounded_while_the_disk_is_full(directory: Path, clock: Clock) -> None:
    missing = directory / "not-there"
    journal = open_journal(missing, clock)
    assert journal.failed_reason
    for number in range(OVERFLOW_EVENTS + 20):
        emit(journal, f"gpu-{number}")
    assert journal.statistics().dropped_total == 20
    assert journal.lost_before((0, 0)) == 20
    missing.mkdir()
    journal.step()
    assert journal.failed_reason == ""
    assert len(journal.read((0, 0), 5000)) == OVERFLOW_EVENTS


def test_a_damaged_file_is_put_aside(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    for number in range(100):
        emit(journal, f"gpu-{number}")
    journal.close()
    file = directory / "events.db"
    file.write_bytes(b"not a database" * 1000)
    again = open_journal(directory, clock, epoch=2)
    emit(again, "after")
    assert names(again.read((0, 0), 10)) == [(2, 1, "after", 1)]
    assert (directory / "events.db.damaged").exists()
    assert again.failed_reason == ""


def test_a_version_that_is_not_known_is_put_aside(directory: Path, clock: Clock) -> None:
    open_journal(directory, clock).close()
    with sqlite3.connect(directory / "events.db") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    journal = open_journal(directory, clock, epoch=2)
    emit(journal, "after")
    assert journal.failed_reason == ""
    assert (directory / "events.db.damaged").exists()


def test_text_that_is_no_unicode_is_taken(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "a", message="file \udcff", path="\udcfe")
    assert journal.read((0, 0), 1)[0].message == "file ?"


def test_the_cursor_of_the_aggregator_survives_and_only_grows(directory: Path, clock: Clock) -> None:
    journal = open_journal(directory, clock)
    emit(journal, "a")
    emit(journal, "b")
    journal.acknowledge(1, 1)
    journal.acknowledge(0, 9)
    assert journal.statistics().unacknowledged == 1
    again = open_journal(directory, clock, epoch=2)
    assert again.acknowledged == (1, 1)


WRITER = """
import sys
from pathlib import Path
from hypervisor.model import EventType, NodeIdentity, ObjectKind, ObjectReference
from hypervisor.node.journal import Journal
journal = Journal.open(Path(sys.argv[1]), identity=NodeIdentity(name="n", uid="u", boot_id="b"), epoch=int(sys.argv[2]))
number = 0
while True:
    number += 1
    for _ in range(3):
        journal.emit(EventType.NORMAL, "R", ObjectReference(kind=ObjectKind.GPU, name=f"{sys.argv[2]}-{number}"), "m")
    print(number, flush=True)
"""


def test_kill_at_any_write_loses_and_doubles_nothing(directory: Path, clock: Clock) -> None:
    told: dict[int, int] = {}
    for epoch in range(1, 6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), str(epoch)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                told[epoch] = int(line)
                if told[epoch] >= 20 + 7 * epoch:
                    os.kill(writer.pid, signal.SIGKILL)
                    break
            # Lines that were in the pipe when it died were emitted as well.
            for line in writer.stdout:
                told[epoch] = int(line)
    journal = open_journal(directory, clock, epoch=6, capacity=100_000)
    events = journal.read((0, 0), 100_000)
    sequences = [event.sequence for event in events]
    assert sequences == list(range(1, len(events) + 1))
    times: dict[str, int] = {}
    for event in events:
        times[event.regarding.name] = times.get(event.regarding.name, 0) + event.count
    for epoch, last in told.items():
        assert all(times[f"{epoch}-{number}"] == 3 for number in range(1, last + 1))
    assert sum(times.values()) - 3 * sum(told.values()) <= 3 * len(told)
