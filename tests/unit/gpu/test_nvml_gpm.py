"""How GPM is asked: a chain of samples for each target, who was there at both ends, and nothing left allocated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pynvml
import pytest

from hypervisor.gpu import nvml_gpm, nvml_processes
from hypervisor.gpu.codes import SUCCESS, TIMEOUT
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.nvml_gpm import GpmWatch
from hypervisor.gpu.survey import Card
from hypervisor.gpu.wire import Answer, GpmReading, GpmTarget, Process

FIRST, SECOND = GpmTarget(1, ("MIG-a", "MIG-b")), GpmTarget(2, ("MIG-c",))


@dataclass
class Driver:
    """GPM as the driver has it, on a clock of ours; counts what is allocated."""

    now: float = 100.0
    busy: float = 25.0
    allocated: int = 0
    fails: str = ""
    lists: dict[str, list[int] | None] = field(default_factory=lambda: {"MIG-a": [7], "MIG-b": [], "MIG-c": []})
    asked: list[str] = field(default_factory=list)
    system: Device = field(default_factory=lambda: Device(None))

    def ask(self, device: Device, name: str, call: Callable[[Any], Any], *_: int) -> Answer[Any]:
        self.asked.append(name)
        if name == self.fails:
            return Answer(None, TIMEOUT)
        try:
            return Answer(call(device.handle), SUCCESS)
        except pynvml.NVMLError as error:
            return Answer(None, error.value)

    def alloc(self) -> Any:
        self.allocated += 1
        return object()

    def free(self, _: Any) -> None:
        self.allocated -= 1

    def processes(self, _: Nvml, device: Device, __: int | None) -> Answer[list[Process]]:
        pids = self.lists[device.handle]
        return Answer(None, TIMEOUT) if pids is None else Answer([Process(pid, None) for pid in pids])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(nvml_processes, "processes", made.processes)
    monkeypatch.setattr(nvml_gpm, "_supported", lambda _: True)
    monkeypatch.setattr(nvml_gpm, "_busy_percent", lambda *_: Answer(made.busy))
    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", made.alloc)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", made.free)
    monkeypatch.setattr(pynvml, "nvmlGpmMigSampleGet", lambda _, __, sample: sample)
    return made


@pytest.fixture
def card() -> Card:
    card = Card("0000:01:00.0", Device("GPU"), "GPU-a")
    card.instances = [(uuid, Device(uuid)) for uuid in ("MIG-a", "MIG-b", "MIG-c")]
    return card


def take(watch: GpmWatch, driver: Driver, card: Card, *targets: GpmTarget, after: float = 0.2) -> list[GpmReading]:
    driver.now += after
    return watch.take(cast("Nvml", driver), card, targets).readings


def test_each_window_begins_where_the_one_before_ended(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    assert take(watch, driver, card, FIRST) == []
    (first,) = take(watch, driver, card, FIRST)
    (second,) = take(watch, driver, card, FIRST)
    assert (first.target, first.busy_percent, first.pids) == (FIRST, Answer(25.0), [7])
    assert first.ended_at == second.begun_at == pytest.approx(100.4)
    assert second.ended_at == pytest.approx(100.6)


def test_who_was_there_at_either_end_is_told(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    driver.lists["MIG-b"] = [9]  # goes after the window has begun
    take(watch, driver, card, FIRST)
    driver.lists["MIG-b"] = []
    assert take(watch, driver, card, FIRST)[0].pids == [7, 9]
    assert take(watch, driver, card, FIRST)[0].pids == [7]
    driver.lists["MIG-b"] = [11]  # comes before it has ended
    assert take(watch, driver, card, FIRST)[0].pids == [7, 11]


def test_a_list_that_can_not_be_read_makes_both_its_windows_nobody_s(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    take(watch, driver, card, FIRST)
    driver.lists["MIG-b"] = None
    assert take(watch, driver, card, FIRST)[0].pids is None
    driver.lists["MIG-b"] = []
    assert take(watch, driver, card, FIRST)[0].pids is None
    assert take(watch, driver, card, FIRST)[0].pids == [7]
    card.instances.pop(1)
    assert take(watch, driver, card, FIRST)[0].pids is None, "one of its devices is not known any more"


def test_a_sample_that_fails_begins_no_window(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    take(watch, driver, card, FIRST)
    driver.fails = "nvmlGpmMigSampleGet"
    (failed,) = take(watch, driver, card, FIRST)
    assert failed.busy_percent == Answer(None, TIMEOUT)
    driver.fails = ""
    assert take(watch, driver, card, FIRST) == []
    assert take(watch, driver, card, FIRST)[0].begun_at == pytest.approx(100.6)


def test_the_driver_is_not_asked_sooner_than_it_can_tell(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    take(watch, driver, card, FIRST)
    driver.asked.clear()
    assert take(watch, driver, card, FIRST, after=0.05) == []
    assert driver.asked == []
    assert len(take(watch, driver, card, FIRST, after=0.06)) == 1


def test_two_samples_a_target_are_enough_and_go_with_it(driver: Driver, card: Card) -> None:
    watch = GpmWatch()
    for _ in range(50):
        take(watch, driver, card, FIRST, SECOND)
    assert driver.allocated == 4
    take(watch, driver, card, SECOND)
    assert driver.allocated == 2
    take(watch, driver, card)
    assert driver.allocated == 0
    assert take(watch, driver, card, FIRST) == [], "what was forgotten begins anew"
