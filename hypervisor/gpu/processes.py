"""Who is on a GPU and how busy: the process list with the samples beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypervisor.gpu import wire
from hypervisor.gpu.codes import NOT_SUPPORTED, ErrorClass, classify, words
from hypervisor.gpu.wire import Answer
from hypervisor.model.busy import BusyWindow, DeviceWindow
from hypervisor.model.gpu import ProcessOnGpu

# The longest window of a driver: before it is over, no new sample says nothing about a process.
SAMPLE_WINDOW_SECONDS = 1.2
# Some drivers never have a sample of anybody and say so as if all were idle (reported of Blackwell). After so long, in
# which the GPU was at work, or did not say that it rests, that is what it is.
SILENT_SECONDS = 3.0
# The driver stamps samples with wall time, which may have been set since.
MOST_SAMPLE_AGE_SECONDS = 60.0
# Drivers round up beyond 100; far beyond, a value is no percentage.
MOST_PERCENT = 200
# What the card as a whole did is held against the sum of all: there nothing may be rounded up.
WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Busy:
    """Share of the last window with a kernel resident, 0 to 1, and when that window ended (CLOCK_MONOTONIC)."""

    ratio: float
    observed_at: float


@dataclass(frozen=True, slots=True)
class Activity:
    """What is remembered from round to round."""

    processes: tuple[ProcessOnGpu, ...] | None = None
    busy: Mapping[int, Busy] = field(default_factory=dict)
    silent_since: float | None = None  # no sample of anybody since then, although the GPU did not say that it rests

    def is_silent(self, now: float) -> bool:
        """Whether no samples say that there never are any, and not that nobody is busy."""
        return self.silent_since is not None and now - self.silent_since >= SILENT_SECONDS

    def doubts(self, samples: Answer[list[wire.Sample]]) -> bool:
        """Whether no samples need not say that nobody is busy: the GPU did not rest at the last look without one. Who
        is at work would have its charges lowered, were it taken for idle until SILENT_SECONDS are over."""
        return self.silent_since is not None and tells_nothing(samples)

    def heard(
        self, samples: Answer[list[wire.Sample]], gpu_percent: int | None, now: float, *, nobody: bool
    ) -> Activity:
        """After one more look at samples. gpu_percent: how busy the GPU says that it is as a whole; None where it does
        not say, which is no proof that it rests. nobody: no process is on it."""
        if not tells_nothing(samples):
            return replace(self, silent_since=None)
        if self.is_silent(now):
            return self  # until a sample comes: that nobody is busy for a while changes nothing
        if nobody or gpu_percent == 0:
            return replace(self, silent_since=None)
        return self if self.silent_since is not None else replace(self, silent_since=now)

    def believed(self, samples: Answer[list[wire.Sample]], now: float) -> Answer[list[wire.Sample]]:
        """Samples, or that the driver has none."""
        return Answer(None, NOT_SUPPORTED) if tells_nothing(samples) and self.is_silent(now) else samples


def combine(
    last: Activity,
    listed: Answer[list[wire.Process]],
    samples: Answer[list[wire.Sample]],
    *,
    now: float,
    wall_offset: float,
    gpu_percent: int | None = None,
) -> tuple[Activity, str]:
    """Processes of this round, and a problem or "". wall_offset is wall time less CLOCK_MONOTONIC, in seconds;
    gpu_percent how busy the GPU says that it is as a whole, None where it does not say.

    A list that failed gives no processes: who is on the card is then not known, which is told and not guessed.
    """
    now_known = last.heard(samples, gpu_percent, now, nobody=listed.value == [])
    silent_since = now_known.silent_since
    doubted = now_known.doubts(samples)
    samples = now_known.believed(samples, now)
    sampled = average(samples.value or (), now=now, wall_offset=wall_offset)
    busy = {**last.busy, **sampled}
    if listed.value is None:
        absent = classify(listed.code) is ErrorClass.ABSENT
        return Activity(None, busy, silent_since), "" if absent else f"list of processes: {words(listed.code)}"
    kept: dict[int, Busy] = {}
    found = []
    for process in listed.value:
        own = None if process.mps else _busy_of(process.pid, busy, samples, now, doubted=doubted)
        if own is not None:
            kept[process.pid] = own
        found.append(
            ProcessOnGpu(
                pid=process.pid,
                memory_bytes=process.memory_bytes,
                busy_ratio=own.ratio if own else None,
                busy_observed_at=own.observed_at if own else None,
            )
        )
    return Activity(tuple(found), kept, silent_since), ""


def tells_nothing(samples: Answer[list[wire.Sample]]) -> bool:
    """An answer without a sample that can be believed."""
    return samples.value is not None and doubtful(samples.value) >= {each.pid for each in samples.value}


def _busy_of(
    pid: int, busy: Mapping[int, Busy], samples: Answer[list[wire.Sample]], now: float, *, doubted: bool
) -> Busy | None:
    known = busy.get(pid)
    if samples.value is None:
        # Without samples nothing is known of now; what was known keeps its time.
        return None if classify(samples.code) is ErrorClass.ABSENT else known
    if known is not None and now - known.observed_at < SAMPLE_WINDOW_SECONDS:
        return known
    return None if doubted or pid in doubtful(samples.value) else Busy(0.0, now)


def doubtful(samples: Iterable[wire.Sample]) -> frozenset[int]:
    """Pids of samples that are no percentage. Taken for idle, they would open the limit of whoever they are."""
    return frozenset(each.pid for each in samples if not 0 <= each.busy_percent <= MOST_PERCENT)


def average(samples: tuple[wire.Sample, ...] | list[wire.Sample], *, now: float, wall_offset: float) -> dict[int, Busy]:
    """Mean of each process's samples, with the time of the newest; now where that time can't be right."""
    by_pid: dict[int, list[wire.Sample]] = {}
    for sample in samples:
        if 0 <= sample.busy_percent <= MOST_PERCENT:
            by_pid.setdefault(sample.pid, []).append(sample)
    found = {}
    for pid, own in by_pid.items():
        ended = max(each.time_us for each in own) / 1e6 - wall_offset
        believable = now - MOST_SAMPLE_AGE_SECONDS <= ended <= now
        ratio = sum(min(each.busy_percent, 100) for each in own) / len(own) / 100
        found[pid] = Busy(ratio, ended if believable else now)
    return found


def _card_ratio(samples: Sequence[wire.Sample], card: Sequence[wire.CardSample]) -> float | None:
    """What the card as a whole did in the window of these samples; None unless each process has one of the same
    moment, the card has just one of it, and all of them are shares."""
    newest = max(each.time_us for each in samples)
    at_once = [each for each in samples if newest - each.time_us <= wire.SAME_MOMENT_US]
    whole = [each for each in card if abs(each.time_us - newest) <= wire.SAME_MOMENT_US]
    pids = {each.pid for each in samples}
    if len(at_once) != len(samples) or len(pids) != len(samples) or len(whole) != 1:
        return None
    percents = [*(each.busy_percent for each in samples), whole[0].busy_percent]
    return whole[0].busy_percent / 100 if all(0 <= each <= WHOLE_PERCENT for each in percents) else None


def next_window(
    last: BusyWindow | DeviceWindow | None,
    samples: Answer[list[wire.Sample]],
    card: Answer[list[wire.CardSample]],
    *,
    now: float,
    wall_offset: float,
    doubted: bool = False,
) -> BusyWindow | None:
    """The window that new samples tell of; the last one while the driver says nothing new, None where it never does.
    card: samples of the card as a whole.

    All samples of a window come together, so a process without one had nothing to do in it. Where nobody has one for
    longer than any window lasts, nobody has, unless that is doubted. Who has one that can't be is not known.
    """
    last = last if isinstance(last, BusyWindow) else None
    if samples.value is None:
        return None if classify(samples.code) is ErrorClass.ABSENT else last
    found = average(samples.value, now=now, wall_offset=wall_offset)
    if found:
        ended_at = max(each.observed_at for each in found.values())
        return BusyWindow(
            ended_at=ended_at,
            ratios={pid: each.ratio for pid, each in found.items()},
            card=_card_ratio(samples.value, card.value or ()),
            doubtful=doubtful(samples.value),
        )
    if samples.value or doubted:
        return last
    if last is None or now - last.ended_at >= SAMPLE_WINDOW_SECONDS:
        return BusyWindow(ended_at=now, ratios={})
    return last
