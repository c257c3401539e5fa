"""One error is told by several sources, and counts once; two errors count twice."""

from __future__ import annotations

from hypervisor.gpu.health.machine import Xid
from hypervisor.gpu.health.told import MOST_SERIES, ToldXids


def news(told: ToldXids, *sources: str, at: float = 10.0, uuid: str = "GPU-a", number: int = 48) -> list[bool]:
    return [told.is_news(uuid, Xid(number=number, at=at), source, interval=1.0) for source in sources]


def test_three_sources_of_one_error() -> None:
    assert news(ToldXids(), "reader 1", "reader 2", "log") == [True, False, False]


def test_each_source_tells_of_each_error() -> None:
    told = ToldXids()
    assert news(told, "reader 1", "reader 1") == [True, True]
    assert news(told, "log", "log", "log") == [False, False, True]
    assert news(told, "reader 2", "reader 2") == [False, False]


def test_another_card_number_or_time_is_another_error() -> None:
    told = ToldXids()
    assert news(told, "log") == [True]
    assert news(told, "reader 1", uuid="GPU-b") == [True]
    assert news(told, "reader 1", number=94) == [True]
    assert news(told, "reader 1", at=13.5) == [True]
    assert news(told, "reader 1", at=12.5) == [False]


def test_the_driver_can_not_make_up_any_number_of_series() -> None:
    told = ToldXids()
    for number in range(MOST_SERIES + 5):
        told.count("GPU-a", number, wall_at=1.0)
    assert len(told.counts) == MOST_SERIES
