"""The daemon's part: what the driver would tell once a second, the shipped control logic, the words in the files."""

from __future__ import annotations

from collections.abc import Sequence

from hypervisor.limits import LimitFiles, new_survey_buffer
from hypervisor.limits.control import Correction, Reading
from tests.pacing.cell import Load

WINDOWS_A_READING = 1


class Daemon:
    """Reads and corrects all Pods of a cell."""

    def __init__(self, pods: Sequence[tuple[Load, LimitFiles | None]]) -> None:
        self._pods = pods
        self._corrections = [[Correction() for _ in range(load.devices)] for load, _ in pods]
        self._buffer = new_survey_buffer()
        self._busy: list[list[float]] = []
        self._at = 0.0
        self._windows = 0

    def window_ended(self, now: float, busy: Sequence[Sequence[float]]) -> None:
        """One window of the driver's samples is over; busy seconds so far by Pod and device."""
        last, since = self._busy, now - self._at
        self._busy, self._at = [list(each) for each in busy], now
        self._windows += 1
        if not last or self._windows % WINDOWS_A_READING:
            return
        for pod, (load, files) in enumerate(self._pods):
            if files is None or files.usage is None:
                continue
            survey = files.usage.survey(self._buffer, device_count=load.devices)
            for device in range(load.devices):
                percent = round(100 * (busy[pod][device] - last[pod][device]) / since)
                reading = Reading(
                    busy_ratio=percent / 100,
                    busy_at=now,
                    charged_ns=survey.devices[device].charged_ns,
                    launches=sum(slot.devices[device].launches for slot in survey.slots if slot.devices),
                    charged_at=now,
                    share=load.share,
                )
                correction = self._corrections[pod][device] = self._corrections[pod][device].after(reading)
                files.shm.set_correction(device, round(correction.value * 1e6), round(now * 1e9))

    def correction(self, pod: int) -> float:
        """What is in force on the first device."""
        return self._corrections[pod][0].value
