"""Which readings are believed. Pure.

A reading that failed, is zero without cause or is out of range leaves the last good one standing, marked stale. A
capacity moves only on readings that agree with each other and with the nameplate, and never to zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from hypervisor.gpu import wire
from hypervisor.gpu.codes import ErrorClass, classify, words
from hypervisor.gpu.wire import Answer
from hypervisor.model.figure import Figure, FigureSource

Number = TypeVar("Number", int, float)

# Readings in a row that must agree before a capacity changes.
AGREEING_READINGS = 3


@dataclass(frozen=True, slots=True)
class Range:
    """What a reading can be, in NVML's unit; scale turns it into ours. Zero counts only where a GPU can be at zero."""

    name: str
    low: int
    high: int
    scale: float = 1.0


UTILIZATION = Range("utilization", 0, 100, 0.01)
MEMORY_UTILIZATION = Range("memory utilization", 0, 100, 0.01)
TEMPERATURE = Range("temperature", 1, 130)
POWER = Range("power", 1, 20_000_000, 0.001)
POWER_LIMIT = Range("power limit", 1, 20_000_000, 0.001)
ENERGY = Range("energy", 0, 10**15, 0.001)
SM_CLOCK = Range("SM clock", 0, 10_000, 1e6)
MEMORY_CLOCK = Range("memory clock", 0, 30_000, 1e6)


@dataclass(frozen=True, slots=True)
class Judged(Generic[Number]):
    """The figure to publish, and what was wrong with the reading; "" when nothing was."""

    figure: Figure[Number]
    problem: str = ""


def judge(answer: Answer[int], last: Figure[float], allowed: Range, now: float) -> Judged[float]:
    """One reading against its range."""
    if answer.value is None:
        return unread(answer.code, last, allowed.name)
    if not allowed.low <= answer.value <= allowed.high:
        return rejected(
            last, f"{allowed.name} of {answer.value} is outside {allowed.low} to {allowed.high}", allowed.name
        )
    return Judged(Figure(answer.value * allowed.scale, FigureSource.DRIVER, now))


def unread(code: int, last: Figure[Number], name: str) -> Judged[Number]:
    """No value came. What a GPU never had is no problem; what it had and lost is one."""
    if last.value is not None:
        return Judged(last.as_stale(), f"{name}: {words(code)}")
    problem = "" if classify(code) is ErrorClass.ABSENT else f"{name}: {words(code)}"
    return Judged(Figure.absent(words(code)), problem)


def rejected(last: Figure[Number], problem: str, name: str) -> Judged[Number]:
    """A value came that can't be true."""
    if last.value is not None:
        return Judged(last.as_stale(), problem)
    return Judged(Figure.absent(f"no reading of the {name} could be believed yet"), problem)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory of a device, and a change that is not believed yet: its value and how often it was read in a row."""

    figure: Figure[int]
    candidate: int | None = None
    agreeing: int = 0


NO_CAPACITY = Capacity(Figure.absent("not read yet"))


def judge_capacity(
    last: Capacity, answer: Answer[wire.Memory], bounds: tuple[int, int], now: float
) -> tuple[Capacity, str]:
    """Total memory; bounds are the least and the most bytes that this model can have."""
    if answer.value is None:
        judged = unread(answer.code, last.figure, "memory")
        return Capacity(judged.figure), judged.problem
    total = answer.value.total
    low, high = bounds
    if not low <= total <= high:
        judged = rejected(last.figure, f"total memory of {total} bytes is outside {low} to {high}", "total memory")
        return Capacity(judged.figure), judged.problem
    if last.figure.value in (None, total):
        return Capacity(Figure(total, FigureSource.DRIVER, now)), ""
    agreeing = last.agreeing + 1 if last.candidate == total else 1
    if agreeing >= AGREEING_READINGS:
        return Capacity(Figure(total, FigureSource.DRIVER, now)), ""
    problem = f"total memory changed to {total} bytes, which is believed after {AGREEING_READINGS} readings"
    return Capacity(last.figure.as_stale(), total, agreeing), problem


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use, free, and held by driver and firmware; used never contains reserved where that is known."""

    used: Figure[int]
    free: Figure[int]
    reserved: Figure[int]


NO_MEMORY_USE = MemoryUse(Figure.absent("not read yet"), Figure.absent("not read yet"), Figure.absent("not read yet"))


def judge_memory_use(
    last: MemoryUse, answer: Answer[wire.Memory], *, capacity: Capacity, now: float
) -> tuple[MemoryUse, str]:
    """Use of memory, out of a reading whose total is that of the capacity."""
    told = answer.value
    if told is None:
        return stale_use(last, words(answer.code)), ""  # told of the capacity already
    total = capacity.figure.value
    if total is None or capacity.figure.stale:
        return stale_use(last, "the total of the same reading is not believed"), ""
    parts = (told.used, told.free, told.reserved or 0)
    if any(part > total for part in parts) or told.used + told.free == 0:
        problem = (
            f"memory use of {told.used} with {told.free} free and {told.reserved} reserved is not of {total} bytes"
        )
        return stale_use(last, "no reading of the memory use could be believed yet"), problem

    def figure(value: int) -> Figure[int]:
        return Figure(value, FigureSource.DRIVER, now)

    used, reserved = split_used(told)
    return (
        MemoryUse(
            figure(used),
            figure(told.free),
            figure(reserved) if reserved is not None else Figure.absent("this driver counts it as used"),
        ),
        "",
    )


def split_used(told: wire.Memory) -> tuple[int, int | None]:
    """Used without reserved, and reserved. Drivers differ in whether used contains it; the sum says which it is."""
    if told.reserved is None:
        return told.used, None
    without = told.total - told.free - told.reserved
    included = abs(told.free + told.used - told.total)
    excluded = abs(told.free + told.used + told.reserved - told.total)
    if included < excluded:
        return max(told.used - told.reserved, 0), told.reserved
    # Where neither sum is right, the larger of the two ways to work it out: use is never told too low.
    return max(told.used, without if excluded else 0), told.reserved


def stale_use(last: MemoryUse, why: str) -> MemoryUse:
    """The last good use, or why there is none."""
    if last.used.value is None:
        return MemoryUse(Figure.absent(why), Figure.absent(why), Figure.absent(why))
    return replace(last, used=last.used.as_stale(), free=last.free.as_stale(), reserved=last.reserved.as_stale())
