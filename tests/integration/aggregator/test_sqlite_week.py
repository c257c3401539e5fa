"""A week of a busy fleet on the SQLite store, with a retention of a day: its files stop growing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.aggregator import rows
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import PRUNE_AT_ONCE, Batch, EventQuery, GpuRow
from tests.fleet import messages

HOURS = 24 * 7
EVENTS_AN_HOUR = 500
GPUS = 400
RETENTION_SECONDS = 86_400.0


def size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


@pytest.mark.slow
def test_the_files_stop_growing_once_the_retention_is_full(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, tombstone_limit=1_000)
    store.load()
    sizes = []
    for hour in range(HOURS):
        now, first = hour * 3_600.0, hour * EVENTS_AN_HOUR
        made = [
            rows.event_row(messages.event("a", 1, first + each + 1), node_uid="uid-a", received_at=now)
            for each in range(EVENTS_AN_HOUR)
        ]
        detail = bytes(600)
        gpus = [
            GpuRow(
                f"g-{index}",
                "uid-a",
                index,
                "m",
                "v",
                "",
                "Running",
                1,
                0,
                True,
                True,
                1.0,
                1,
                None,
                None,
                None,
                hour,
                detail,
                b"",
            )
            for index in range(GPUS)
        ]
        # Cards come and go: each hour one is new, and one of the day before is gone for ever.
        born, died = gpus[0]._replace(name=f"h-{hour}"), [(f"h-{hour - 24}", hour)] if hour >= 24 else []
        store.commit(
            Batch(version=hour + 1, gpus=[*gpus, born], removed_gpus=died, events=[each for each in made if each])
        )
        while store.prune(oldest_received_at=now - RETENTION_SECONDS, keep=1_000_000) >= PRUNE_AT_ONCE:
            pass
        sizes.append(size(path))
    kept = store.read_events(EventQuery(limit=1_000_000))
    store.close()
    assert len(kept) == 25 * EVENTS_AN_HOUR
    # Of the second day nothing is left but its size.
    assert max(sizes) <= 1.1 * max(sizes[:48]), (max(sizes[:48]), sizes[-1])
    record_property("bytes after 7 days", sizes[-1])
    record_property("bytes of an event that is kept", sizes[-1] / len(kept))
