"""GPM's word on a GPU as a whole: what is asked, and which windows are believed."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.gpu import gpm
from hypervisor.gpu.codes import NOT_SUPPORTED, TIMEOUT
from hypervisor.gpu.wire import Answer, GpmReading, GpmTarget
from hypervisor.model import BusyWindow, DeviceWindow

NOW = 1000.0
WHOLE = GpmTarget(None, ("GPU-a",))
LAST = DeviceWindow(begun_at=999.5, ended_at=999.7, ratio=0.4, uuids=frozenset({"GPU-a"}), pids=frozenset({1}))


def told(percent: float | None, begun: float = 999.7, ended: float = 999.9, code: int = 0) -> GpmReading:
    return GpmReading(WHOLE, Answer(percent, code), begun, ended, [1])


def test_a_window_follows_the_one_before() -> None:
    found = gpm.next_window(LAST, told(25.0), now=NOW)
    assert found == replace(LAST, begun_at=999.7, ended_at=999.9, ratio=0.25)
    assert gpm.next_window(None, told(104.9), now=NOW) == replace(LAST, begun_at=999.7, ended_at=999.9, ratio=1.0)
    unlisted = msgspec.structs.replace(told(25.0), pids=None)
    assert gpm.next_window(LAST, unlisted, now=NOW) == replace(
        LAST, begun_at=999.7, ended_at=999.9, ratio=0.25, pids=None
    )


@pytest.mark.parametrize("percent", [-0.1, 105.1, 1e18, math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_share_changes_nothing(percent: float) -> None:
    reading = told(percent)
    assert gpm.next_window(LAST, reading, now=NOW) is LAST
    assert gpm.wrong_with(reading, now=NOW) == "range"


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        (999.9, 999.7),  # backwards
        (999.9, 999.9),
        (999.88, 999.9),  # too short to say anything
        (990.0, 999.9),  # most of it is no news
        (1000.0, 1000.2),  # of the future
        (math.nan, 999.9),
        (999.7, math.nan),
        (-math.inf, 999.9),
    ],
)
def test_a_window_of_an_impossible_time_changes_nothing(begun: float, ended: float) -> None:
    assert gpm.next_window(LAST, told(25.0, begun, ended), now=NOW) is LAST
    assert gpm.wrong_with(told(25.0, begun, ended), now=NOW) == "mismatch"


def test_time_does_not_go_back() -> None:
    assert gpm.next_window(LAST, told(25.0, 999.4, 999.6), now=NOW) is LAST
    assert gpm.next_window(LAST, told(25.0, 999.4, 999.7), now=NOW) is LAST


def test_a_call_that_failed_changes_nothing_and_one_that_is_absent_ends_it() -> None:
    assert gpm.next_window(LAST, told(None, code=TIMEOUT), now=NOW) is LAST
    assert gpm.next_window(LAST, told(None, code=NOT_SUPPORTED), now=NOW) is None
    assert gpm.wrong_with(told(None, code=TIMEOUT), now=NOW) == "failed"
    assert gpm.wrong_with(told(None, code=NOT_SUPPORTED), now=NOW) == ""


def test_what_was_known_of_processes_is_no_window_of_the_device() -> None:
    samples = BusyWindow(ended_at=999.8, ratios={1: 0.5})
    assert gpm.next_window(samples, told(None, code=TIMEOUT), now=NOW) is None
    assert gpm.next_window(samples, told(25.0), now=NOW) is not None


def test_windows_are_kept_by_device_and_what_is_wrong_is_told() -> None:
    both = GpmTarget(2, ("MIG-b", "MIG-c"))
    windows: dict[str, BusyWindow | DeviceWindow] = {"GPU-a": LAST, "MIG-c": LAST}
    readings = [told(-1.0), msgspec.structs.replace(told(25.0), target=both)]
    assert gpm.bring_up_to_date(windows, readings, {"GPU-a", "MIG-b"}, now=NOW) == [("GPU-a", "range")]
    assert windows["GPU-a"] is windows["MIG-c"] is LAST, "one can't be believed, the other is not wanted"
    assert windows["MIG-b"] == DeviceWindow(
        begun_at=999.7, ended_at=999.9, ratio=0.25, uuids=frozenset(both.uuids), pids=frozenset({1})
    )
    assert gpm.bring_up_to_date(windows, [told(None, code=NOT_SUPPORTED)], {"GPU-a"}, now=NOW) == []
    assert "GPU-a" not in windows


@given(st.floats(), st.floats(), st.floats())
def test_no_reading_opens_more_than_all_there_is(percent: float, begun: float, ended: float) -> None:
    found = gpm.next_window(LAST, told(percent, begun, ended), now=NOW)
    assert found is not None
    assert 0 <= found.ratio <= 1
    assert LAST.ended_at <= found.ended_at <= NOW


def test_a_card_is_asked_as_a_whole_and_a_divided_one_by_gpu_instance() -> None:
    assert gpm.targets_of("GPU-a", {}, {"GPU-a"}) == [WHOLE]
    assert gpm.targets_of("GPU-a", {}, set()) == []
    instances = {"MIG-c": 2, "MIG-a": 1, "MIG-b": 2, "MIG-d": 5}
    assert gpm.targets_of("GPU-a", instances, {"MIG-b", "MIG-d"}) == [
        GpmTarget(2, ("MIG-b", "MIG-c")),
        GpmTarget(5, ("MIG-d",)),
    ]
    assert gpm.targets_of("GPU-a", instances, {"GPU-a"}) == []
