"""The daemon's part: what the driver tells of each window, the shipped control logic, the words in the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypervisor.limits import LimitFiles, UsageSurvey, new_survey_buffer
from hypervisor.limits.aligned import Aligned
from hypervisor.limits.control import Correction, Reading
from hypervisor.limits.lending import EXPIRY_MS, Demand, contract
from hypervisor.limits.narrowed import busy_of
from hypervisor.limits.neighbours import expected_turns, holds_until_ms, neighbours, others_busy
from tests.pacing.cell import Load

# Of the limiter on the virtual clock, as limiter/tests/os_clock_virtual.h says; it has no 0.
CLOCK_BEGAN_SECONDS = 1.0


class Daemon:
    """Reads and corrects all Pods of a cell."""

    def __init__(self, pods: Sequence[tuple[Load, LimitFiles | None]], *, clock_ahead: float) -> None:
        """clock_ahead: the limiter's clock when that of the marks is 0."""
        self._clock_ahead = clock_ahead
        self._pods = pods
        self._corrections = [[Correction() for _ in range(load.devices)] for load, _ in pods]
        self._aligned = [[Aligned(clock_ahead) for _ in range(load.devices)] for load, _ in pods]
        self._buffer = new_survey_buffer()
        self._busy: Sequence[Sequence[Mapping[int, float]]] = ()
        self._cards: Sequence[float] = ()
        self._at = 0.0
        self._contracted: tuple[float | None, ...] = (None,) * len(pods)

    def window_ended(self, now: float, busy: Sequence[Sequence[Mapping[int, float]]], cards: Sequence[float]) -> None:
        """One window of the driver's samples is over; busy seconds so far by Pod, device and process, and by device."""
        last, since = self._busy, now - self._at
        cards_of = [_whole(until - before, since) for until, before in zip(cards, self._cards, strict=False)]
        self._busy, self._at, self._cards = busy, now, cards
        self._contract(now)
        if not last:
            return
        for pod, (load, files) in enumerate(self._pods):
            if files is None or files.usage is None:
                continue
            survey = files.usage.survey(self._buffer, device_count=load.devices)
            for device in range(load.devices):
                ratios, own = self._busy_ratios(last, device, since), busy[pod][device]
                seen = busy_of(ratios, [pid for pid in own if pid in ratios], cards_of[device])
                reading = Reading(
                    processes=sum(pid in ratios for pid in own),
                    busy_ratio=seen.ratio,
                    off=seen.off,
                    busy_at=now,
                    charged_ns=survey.devices[device].charged_ns,
                    a_launch_ns=_a_launch_ns(survey, device),
                    charged_at=now,
                    share=self._contracted[pod] or load.share,
                    unfinished_ns=sum(slot.devices[device].unfinished_ns for slot in survey.slots if slot.devices),
                    under_way=any(slot.devices and slot.devices[device].unfinished_ns for slot in survey.slots),
                )
                files.shm.set_neighbours(device, neighbours(ratios, own), holds_until_ms(self._clock_ahead + now))
                aligned = self._aligned[pod][device]
                aligned.expect(expected_turns(ratios, own), others_busy(ratios, own))
                ready = aligned.after(reading, files.usage, device)
                files.shm.set_others(device, aligned.turns.value)
                if aligned.left.ratio is not None:
                    files.shm.set_left(device, aligned.left.ratio)
                if ready is None:
                    continue
                correction = self._corrections[pod][device] = self._corrections[pod][device].after(ready)
                ppm, settled = (round(value * 1e6) for value in (correction.value, correction.settled))
                at_ns = round((self._clock_ahead + now) * 1e9)
                files.shm.set_correction(device, ppm, at_ns, settled_ppm=settled)

    def _busy_ratios(
        self, last: Sequence[Sequence[Mapping[int, float]]], device: int, window: float
    ) -> Mapping[int, float]:
        """Of those processes on a device that were busy, as the driver tells it: whole percents."""
        return {
            pid: _whole(seconds - before[device].get(pid, 0.0), window)
            for devices, before in zip(self._busy, last, strict=True)
            if device < len(devices)
            for pid, seconds in devices[device].items()
            if seconds > before[device].get(pid, 0.0)
        }

    def _contract(self, now: float) -> None:
        """Where limits sum up to more than the first device: all Pods of a cell are always at work."""
        asked = [
            Demand(
                limit=load.share,
                request=load.share if load.request is None else load.request / 100,
                weight=2,
                active=True,
                borrows=False,
            )
            for load, files in self._pods
            if files is not None
        ]
        if len(asked) < len(self._pods):
            return  # a neighbour that nobody manages
        self._contracted = contract(asked)
        for (_, files), share in zip(self._pods, self._contracted, strict=True):
            if files is not None and share is not None:
                files.shm.contract(0, round(share * 1e6), round((self._clock_ahead + now) * 1e3) + EXPIRY_MS)

    def correction(self, pod: int) -> float:
        """What is in force on the first device."""
        return self._corrections[pod][0].value


def _whole(seconds: float, window: float) -> float:
    """In whole percents."""
    return round(100 * seconds / window) / 100


def _a_launch_ns(survey: UsageSurvey, device: int) -> float:
    charged = [slot.devices[device] for slot in survey.slots if slot.devices]
    return sum(each.charged_ns for each in charged) / max(sum(each.launches for each in charged), 1)
