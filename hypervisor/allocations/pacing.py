"""How the compute limit of an allocation is kept on one device, in figures for people and metrics."""

from __future__ import annotations

from hypervisor.allocations.held import DeviceMemory, Held
from hypervisor.limits import DeviceAccount
from hypervisor.model import Figure, FigureSource, IsolationMode, LearnedCost, Pacing
from hypervisor.model.allocation import SHARE_FULL_PPM

ACHIEVED_SECONDS = 10.0
COSTS_SECONDS = 10.0  # between two looks at the table, which is large
TOP_FUNCTIONS = 5
_NS = 1_000_000_000
_MOST_AHEAD_NS = 3600 * _NS  # a word further ahead than this was not written by a limiter


def pacing_of(held: Held, place: int, busy: Figure[float], *, burst_seconds: float) -> Pacing | None:
    """The figures; None where this library does not limit compute. busy is the driver's figure of the last window."""
    grant, memory = held.allocation.grants[place], held.devices[place]
    limited = grant.limit_share_ppm < SHARE_FULL_PPM or memory.contracted is not None
    if held.allocation.spec.isolation is not IsolationMode.SOFT or not limited:
        return None
    _look_at_costs(held, place, memory)
    correction = memory.correction
    return Pacing(
        achieved_ratio=_achieved(memory, busy),
        balance_seconds=_balance(held, place, grant.limit_share_ppm, burst_seconds),
        correction=correction.value if correction is not None else 1.0,
        correction_frozen=correction.frozen if correction is not None else "no reading yet",
        lent_ratio=_lent(memory, grant.limit_share_ppm),
        costs=memory.costs,
    )


def _lent(memory: DeviceMemory, limit_ppm: int) -> float:
    return memory.lent if memory.contracted is None else memory.contracted - limit_ppm / SHARE_FULL_PPM


def _achieved(memory: DeviceMemory, busy: Figure[float]) -> Figure[float]:
    if busy.value is None:
        memory.recent_busy = ()
        return busy
    if not memory.recent_busy or memory.recent_busy[-1][0] != busy.observed_at:
        kept = (*memory.recent_busy, (busy.observed_at, busy.value))
        memory.recent_busy = tuple(each for each in kept if busy.observed_at - each[0] < ACHIEVED_SECONDS)
    mean = sum(value for _, value in memory.recent_busy) / len(memory.recent_busy)
    return Figure(mean, busy.source, busy.observed_at)


def _balance(held: Held, place: int, share_ppm: int, burst_seconds: float) -> Figure[float]:
    survey = held.survey
    if survey is None:
        return Figure.absent(held.finding or "the usage file has not been read")
    return Figure(
        burst_seconds - owed_seconds(survey.devices[place], survey.at, share_ppm), FigureSource.LIMITER, survey.at
    )


def owed_seconds(account: DeviceAccount, at: float, share_ppm: int) -> float:
    """GPU seconds charged ahead of the clock, and debt; 0 for words that no limiter writes."""
    ahead_ns = account.bucket_ns - round(at * _NS)
    ahead = ahead_ns * share_ppm / SHARE_FULL_PPM if 0 < ahead_ns < _MOST_AHEAD_NS else 0.0
    debt = account.debt_ns if account.debt_ns < _MOST_AHEAD_NS else 0
    return (ahead + debt) / _NS


def _look_at_costs(held: Held, place: int, memory: DeviceMemory) -> None:
    usage = held.files.usage if held.files is not None else None
    if usage is None or held.survey is None or held.survey.at - memory.costs_at < COSTS_SECONDS:
        return
    found = usage.top_costs(place, TOP_FUNCTIONS)
    if found:  # until there is something to see, look each time
        memory.costs_at = held.survey.at
    memory.costs = tuple(
        LearnedCost(
            name=entry.name,
            seconds=entry.cost_ns / _NS,
            launches=entry.launches,
            samples=entry.samples,
            graph=entry.graph,
        )
        for entry in found
    )
