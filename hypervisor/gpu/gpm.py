"""GPM's word on a GPU or a GPU instance, judged: which windows are believed. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from hypervisor.gpu import wire
from hypervisor.gpu.codes import ErrorClass, classify
from hypervisor.model.busy import BusyWindow, DeviceWindow

# Counters are read a moment apart, so a share may come out a little above all there is; beyond, it is none.
MOST_PERCENT = 105.0
# A shorter window is coarse, and what happened in a longer one is no news.
LEAST_SECONDS, MOST_SECONDS = 0.05, 5.0


def targets_of(card: str, instances: Mapping[str, int], wanted: Collection[str]) -> list[wire.GpmTarget]:
    """What GPM is to be asked of, for the wanted devices of a card.

    instances: the number of the GPU instance of each of its MIG devices, by UUID. All devices of a GPU instance are one
    target, for GPM does not tell them apart.
    """
    if not instances:
        return [wire.GpmTarget(None, (card,))] if card in wanted else []
    numbers = sorted({number for uuid, number in instances.items() if uuid in wanted})
    return [
        wire.GpmTarget(number, tuple(sorted(uuid for uuid, own in instances.items() if own == number)))
        for number in numbers
    ]


def bring_up_to_date(
    windows: dict[str, BusyWindow | DeviceWindow],
    readings: Iterable[wire.GpmReading],
    wanted: AbstractSet[str],
    *,
    now: float,
) -> list[tuple[str, str]]:
    """Put what is believed into the windows of the wanted devices; gives by UUID what was wrong with the rest."""
    rejected = []
    for reading in readings:
        wrong = wrong_with(reading, now=now)
        for uuid in wanted & set(reading.target.uuids):
            if wrong:
                rejected.append((uuid, wrong))
            window = next_window(windows.get(uuid), reading, now=now)
            if window is not None:
                windows[uuid] = window
            else:
                windows.pop(uuid, None)
    return rejected


def next_window(last: BusyWindow | DeviceWindow | None, told: wire.GpmReading, *, now: float) -> DeviceWindow | None:
    """The window that a reading tells of; the last one where it can't be believed, None where there never is one."""
    before = last if isinstance(last, DeviceWindow) else None
    percent = told.busy_percent.value
    if percent is None:
        return None if classify(told.busy_percent.code) is ErrorClass.ABSENT else before
    if wrong_with(told, now=now) or (before is not None and told.ended_at <= before.ended_at):
        return before
    return DeviceWindow(
        begun_at=told.begun_at,
        ended_at=told.ended_at,
        ratio=min(percent / 100, 1.0),
        uuids=frozenset(told.target.uuids),
        pids=frozenset(told.pids) if told.pids is not None else None,
    )


def wrong_with(told: wire.GpmReading, *, now: float) -> str:
    """Why a reading can't be believed, as the metric of such readings has it; "" when it can, and where there is none
    because this driver or GPU has no GPM."""
    percent = told.busy_percent.value
    if percent is None:
        return "" if classify(told.busy_percent.code) is ErrorClass.ABSENT else "failed"
    if not math.isfinite(percent) or not 0 <= percent <= MOST_PERCENT:
        return "range"
    if not all(map(math.isfinite, (told.begun_at, told.ended_at))) or told.ended_at > now:
        return "mismatch"
    return "" if LEAST_SECONDS <= told.ended_at - told.begun_at <= MOST_SECONDS else "mismatch"
