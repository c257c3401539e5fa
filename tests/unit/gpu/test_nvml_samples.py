"""Samples of processes as the driver gives them: which are news, and which can't be, whatever clocks do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.gpu import lists, nvml_processes, processes
from hypervisor.gpu.nvml import Device
from hypervisor.gpu.processes import SAMPLE_WINDOW_SECONDS
from hypervisor.gpu.stamps import Stamps
from hypervisor.gpu.wire import Answer, CardSample, Sample
from hypervisor.limits.control import Correction, Reading
from hypervisor.model import BusyWindow

AN_HOUR = 3600.0
A_YEAR_US = 365 * 86_400_000_000
LOOK = 1 / 6
SETTLED_SECONDS = 6.0  # after a jump: the silence, and three windows of a second


@dataclass
class Machine:
    """A wall clock that can be set, and a driver that stamps samples of its processes with it, or with its own."""

    window: float = LOOK
    own_clock: bool = False
    wall: float = 1_800_000_000.0
    drivers: float = 1_800_000_000.0
    now: float = 1000.0
    busy: dict[int, int] = field(default_factory=lambda: {42: 20})
    made: dict[int, Sample] = field(default_factory=dict)
    stamps: Stamps = field(default_factory=Stamps)
    _next: float = 1000.0

    def passes(self, seconds: float) -> None:
        """Time, in which the driver makes samples."""
        until = self.now + seconds
        while self._next <= until:
            ago = until - self._next
            clock = self.drivers if self.own_clock else self.wall
            for pid, percent in self.busy.items():
                self.made[pid] = Sample(pid, round((clock + seconds - ago) * 1e6), percent)
            self._next += self.window
        self.now, self.wall, self.drivers = until, self.wall + seconds, self.drivers + seconds

    def suspended(self, seconds: float) -> None:
        """CLOCK_MONOTONIC stands still."""
        self.wall, self.drivers = self.wall + seconds, self.drivers + seconds

    def look(self) -> list[Sample]:
        wall_us = round(self.wall * 1e6)
        since = self.stamps.since(wall_us=wall_us, now=self.now)
        return self.stamps.news(
            [each for each in self.made.values() if each.time_us > since], wall_us=wall_us, now=self.now
        )

    def good(self, seconds: float) -> list[Sample]:
        """What is believed in so many seconds."""
        found = []
        for _ in range(round(seconds / LOOK)):
            self.passes(LOOK)
            found += [each for each in self.look() if each.busy_percent >= 0]
        return found


JUMPS = [-AN_HOUR, -30.0, -1.5, -0.5, 0.5, 1.5, 30.0, AN_HOUR, 400 * 86_400.0]


@pytest.mark.parametrize("own_clock", [False, True])
@pytest.mark.parametrize("jump", JUMPS)
def test_after_the_wall_clock_was_set_samples_go_on(jump: float, own_clock: bool) -> None:
    machine = Machine(own_clock=own_clock)
    assert len(machine.good(3)) >= 17
    machine.wall += jump
    machine.good(3)
    after = machine.good(3)
    assert len(after) >= 17, "as many as before"
    # And each is of when it was made: a stamp of another clock is set right.
    assert all(abs(each.time_us / 1e6 - machine.wall) < 3 + 1.5 for each in after)


@pytest.mark.parametrize("jump", [-AN_HOUR, AN_HOUR, 30.0, -30.0])
def test_after_the_driver_s_clock_jumped_and_came_back_samples_go_on(jump: float) -> None:
    machine = Machine(own_clock=True)
    machine.good(3)
    machine.drivers += jump
    machine.good(4)
    if jump > 0:
        assert len(machine.good(3)) >= 17
    machine.drivers -= jump
    machine.good(4)
    assert len(machine.good(3)) >= 17


def test_a_machine_that_was_suspended_goes_on_at_once() -> None:
    machine = Machine()
    machine.good(3)
    machine.suspended(8 * AN_HOUR)
    assert len(machine.good(1)) >= 5


def test_one_sample_of_the_future_hides_none_that_come_after_it() -> None:
    for ahead in (1.5, AN_HOUR, 20 * AN_HOUR, 1e12):
        machine = Machine()
        machine.good(3)
        machine.busy[43] = 10
        machine.passes(LOOK)
        machine.made[42] = Sample(42, round((machine.wall + ahead) * 1e6), 20)
        assert {each.pid: each.busy_percent for each in machine.look()} == {42: -1, 43: 10}
        again = machine.good(1)
        assert sum(each.pid == 42 for each in again) >= 5


def test_a_process_of_which_the_driver_tells_nothing_else_is_not_taken_for_idle() -> None:
    """As long as it gives the sample of the future, others' samples say nothing of this one."""
    machine = Machine(busy={43: 10})
    machine.good(1)
    machine.made[42] = Sample(42, round((machine.wall + AN_HOUR) * 1e6), 20)
    for _ in range(20):
        machine.passes(LOOK)
        assert processes.doubtful(machine.look()) == {42}


@pytest.mark.parametrize("stamp", [10**18, 2**64 - 1, 2**63, 0, -1, 1])
def test_a_stamp_that_can_not_be_stops_nothing(stamp: int) -> None:
    machine = Machine()
    machine.good(2)
    for _ in range(20):
        machine.passes(LOOK)
        kept, machine.made[42] = machine.made[42], Sample(42, stamp, 99)
        assert all(each.busy_percent < 0 for each in machine.look())
        machine.made[42] = kept
    assert len(machine.good(1)) >= 5


@settings(max_examples=60, deadline=None)
@given(
    jumps=st.lists(st.tuples(st.sampled_from([*JUMPS, -2.5, 5.0]), st.booleans()), min_size=1, max_size=4),
    own_clock=st.booleans(),
    window=st.sampled_from([LOOK, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_set_no_sample_is_told_twice_and_none_stays_away(
    jumps: list[tuple[float, bool]], own_clock: bool, window: float, seed: int
) -> None:
    chance = random.Random(seed)
    machine = Machine(window=window, own_clock=own_clock)
    machine.good(3)
    for jump, of_the_driver in jumps:
        if of_the_driver and own_clock:
            machine.drivers += abs(jump)
        else:
            machine.wall += jump
        machine.passes(chance.random() * 2)
        machine.good(SETTLED_SECONDS)
        after = machine.good(4)
        assert len(after) >= 3 / window
        assert len({each.time_us for each in after}) == len(after)
        assert all(each.time_us / 1e6 <= machine.wall + 1 for each in after)


def test_a_process_at_rest_is_told_no_second_time() -> None:
    machine = Machine()
    machine.good(1)
    machine.busy = {}
    for jump in (-1.5, -3.0, -32.5):
        machine.wall += jump  # its last sample is of the time to come, and then of the present
        assert machine.good(30) == []


def test_stamps_that_do_not_go_on_with_the_clock_are_of_no_clock() -> None:
    machine = Machine()
    machine.good(2)
    for step in range(9):
        machine.passes(LOOK)
        machine.made[42] = Sample(42, round((machine.wall + AN_HOUR * 2**step) * 1e6), 20)
        assert [each.busy_percent for each in machine.look()] == [-1]
    after = machine.good(1)
    assert len(after) >= 5
    assert all(abs(each.time_us / 1e6 - machine.wall) < 2 for each in after)


# ---- as it is asked of NVML ----


class Driver:
    most_pid = 4_194_304
    native = None

    def ask(self, device: Any, name: str, call: Any) -> Answer[Any]:
        return Answer(call(device))


def test_the_driver_is_asked_from_the_newest_sample_on_and_anew_when_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, asked = Machine(), []

    def read(native: object, handle: object, since_us: int) -> Answer[list[Sample]]:
        asked.append(since_us)
        return Answer([each for each in (*machine.made.values(), Sample(-3, 10**15, 5)) if each.time_us > since_us])

    monkeypatch.setattr(lists, "read_samples", read)
    clock = SimpleNamespace(time_ns=lambda: round(machine.wall * 1e9), monotonic=lambda: machine.now)
    monkeypatch.setattr(nvml_processes, "time", clock)
    driver: Any = Driver()
    device = Device(None)
    counts = []
    for step in range(9):
        if step == 4:
            machine.wall -= AN_HOUR
        machine.passes(1.0)
        counts.append(len(nvml_processes.samples(driver, device).value or ()))
    assert counts == [1] * 9
    assert asked[0] == 0
    assert 0 < asked[3] - asked[2] < 1_100_000
    assert asked[4] == pytest.approx(asked[3] - AN_HOUR * 1e6 - 0.5e6, abs=1.1e6)


def test_samples_of_the_card_are_of_the_same_clock_as_those_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver's clock is another one, both are set right alike."""
    device, driver = Device(None), Driver()
    device.stamps.offset_us = round(AN_HOUR * 1e6)
    asked = []

    def read(native: object, handle: object, since_us: int) -> Answer[list[CardSample]]:
        asked.append(since_us)
        return Answer([CardSample(device.stamps.offset_us + 5_000_000, 30)])

    monkeypatch.setattr(lists, "read_card_samples", read)
    found = nvml_processes.card_samples(driver, device, [Sample(1, 5_000_000, 10)])  # type: ignore[arg-type]
    assert found == Answer([CardSample(5_000_000, 30)])
    assert device.stamps.offset_us + 4_999_000 < asked[0] < device.stamps.offset_us + 5_000_000


# ---- and what the correction makes of it ----


@pytest.mark.parametrize("own_clock", [False, True])
@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_moves_no_correction_and_freezes_it_for_seconds_only(jump: float, own_clock: bool) -> None:
    """A Pod of 20 % that uses what it is charged, from the driver's stamps to the correction."""
    machine = Machine(own_clock=own_clock)
    correction, last, charged = Correction(), None, 0
    frozen, values = [], []
    for look in range(150):
        if look == 60:
            machine.wall += jump
        machine.passes(LOOK)
        charged += round(0.2 * LOOK * 1e9)
        window = processes.next_window(
            last,
            Answer(machine.look()),
            Answer([]),
            now=machine.now,
            wall_offset=machine.wall - machine.now,
            doubted=True,
        )
        if window is not None and window is not last:
            reading = Reading(
                busy_ratio=window.ratios.get(42, 0.0),
                busy_at=window.ended_at,
                charged_ns=charged,
                a_launch_ns=1e6,
                charged_at=machine.now,
                share=0.2,
            )
            correction = correction.after(reading)
        last = window
        if look > 30:
            values.append(correction.value)
        if look > 60 + 6 * SETTLED_SECONDS:
            frozen.append(correction.frozen)
    assert all(value == pytest.approx(1.0, abs=0.02) for value in values)
    assert set(frozen) == {""}


def test_an_idle_window_after_a_suspended_machine_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still for CLOCK_MONOTONIC, so no window has passed without a sample."""
    machine = Machine()
    machine.passes(1.0)
    offset = machine.wall - machine.now
    first = processes.next_window(None, Answer(machine.look()), Answer([]), now=machine.now, wall_offset=offset)
    assert isinstance(first, BusyWindow)
    machine.suspended(AN_HOUR)
    machine.passes(SAMPLE_WINDOW_SECONDS / 2)
    machine.made = {}
    again = processes.next_window(
        first, Answer([]), Answer([]), now=machine.now, wall_offset=machine.wall - machine.now
    )
    assert again is first
