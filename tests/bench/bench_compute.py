"""Compute limits against the simulator's busy time: cells in real time, and the same and more on the virtual clock.

In real time runs a choice in which all values of any two factors come together, of those cells whose window is no
longer than 20 s. BENCH_COMPUTE_CELLS bounds it (12 s each and more; at most 60, which is the whole choice, unless
given), and BENCH_COMPUTE_SECONDS the time in which a new one is begun (600 unless given).

BENCH_COMPUTE_MATRIX says what runs on the virtual clock: nothing given for the pairwise choice, a number for so many
cells of the whole matrix by chance (the same each time), full for every cell, which takes hours, distinct for one of
those that have the same figures in the simulator, missed for those of BENCH_COMPUTE_RESULTS that missed their target
under an earlier revision, other-N for N cells by chance with values that are not in the matrix, none for nothing. With

- BENCH_COMPUTE_RESULTS=FILE each outcome is appended to that file as it comes, what is in it is not run again, and the
  table is of all that it holds, with those that have the same figures;
- BENCH_COMPUTE_PART=k/n only that part of the cells runs;
- BENCH_COMPUTE_LONGEST=S only cells run whose window is no longer;
- BENCH_COMPUTE_MATRIX_SECONDS=S none is begun when they are over;
- BENCH_COMPUTE_WORKERS=N so many run side by side (one for each processor unless given).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.bench.figure import Figure
from tests.pacing import Cell, Load, Result, campaign
from tests.pacing.matrix import (
    Choice,
    cell_of,
    covering_choices,
    every_choice,
    left_out,
    other_choices,
    tuples_of,
    words_of,
)
from tests.pacing.outcome import Outcome, kept, missed, outcome_of, revision
from tests.pacing.summary import Summary, summaries, where_it_misses

MOST_CELLS = 60
LONGEST_SECONDS = 20.0  # a cell whose window is longer runs on the virtual clock only
OTHER = "other-"
SHOWN = 60  # of more cells only those are told one by one that are not within their target


def measure() -> list[Figure]:
    """One figure for each cell, then what they say together."""
    began = time.monotonic()
    figures = [*_real_time(), *_on_the_virtual_clock(), *_combinations()]
    if os.environ.get("BENCH_COMPUTE_CELLS") != "0":
        figures += [_unlimited(), _ranks()]
    took = time.monotonic() - began
    return [*figures, Figure(name="compute: time that this bench took", value=took, unit="s")]


def _told(outcomes: Sequence[Outcome], clock: str, *, every: Sequence[Outcome] | None = None) -> Iterator[Figure]:
    """every: what the summary is of; as the outcomes unless given."""
    few = len(outcomes) <= SHOWN
    every = outcomes if every is None else every
    yield from (_figure(each, clock) for each in (outcomes if few else missed(outcomes)))
    for part in summaries(every):
        if not few or part.name in ("alone", "beside others"):
            yield _summary(part, clock)
    for part in where_it_misses(every) if not few else ():
        yield _summary(part, clock)


def _combinations() -> Iterator[Figure]:
    """How many cells the matrix has, and how many combinations of values are none, by the reason."""
    cells, without = len(every_choice()), left_out()
    all_of_them = cells + sum(without.values())
    yield Figure(name="compute: combinations of the matrix", value=all_of_them, unit="combinations")
    yield Figure(name="compute: cells of the matrix", value=cells, unit="combinations")
    for why, count in without.items():
        yield Figure(name=f"compute: left out, {why}", value=count, unit="combinations")


def _real_time() -> Iterator[Figure]:
    """Each cell, what they say together, and how much of the choice that is."""
    wanted = min(int(os.environ.get("BENCH_COMPUTE_CELLS", str(MOST_CELLS))), MOST_CELLS)
    if wanted == 0:
        return
    choice = covering_choices(2, among=[each for each in every_choice() if _is_short(each)])
    found = _one_by_one(choice[:wanted])
    yield from _told(found, "real time")
    ran = [each for each, outcome in zip(choice, found, strict=False) if not outcome.why]
    pairs, every = tuples_of(ran), tuples_of(every_choice())
    yield Figure(
        name="compute, real time: pairs of values that came together",
        value=len(pairs),
        unit="pairs",
        baseline=len(every),
        target=f"{len(tuples_of(choice))}, all but those of cells with longer windows",
        holds=len(pairs) == len(tuples_of(choice)),
        note=f"{len(ran)} of the {len(choice)} cells of the choice ran",
    )


def _is_short(choice: Choice) -> bool:
    return cell_of(choice).window_seconds <= LONGEST_SECONDS


def _one_by_one(choices: Iterable[Choice]) -> list[Outcome]:
    """Cells in real time; no new one begins when the time is up."""
    until = time.monotonic() + float(os.environ.get("BENCH_COMPUTE_SECONDS", "600"))
    found = []
    for choice in choices:
        cell = cell_of(choice)
        late = time.monotonic() >= until
        result = "BENCH_COMPUTE_SECONDS were over" if late else campaign.measured(cell, real=True)
        found.append(outcome_of(cell, result, values=words_of(choice)))
    return found


def _on_the_virtual_clock() -> Iterator[Figure]:
    file = Path(path) if (path := os.environ.get("BENCH_COMPUTE_RESULTS")) else None
    known = kept(file) if file is not None else []
    ran = campaign.outcomes(
        _wanted(os.environ.get("BENCH_COMPUTE_MATRIX", ""), known),
        workers=int(os.environ.get("BENCH_COMPUTE_WORKERS", os.cpu_count() or 1)),
        seconds=float(os.environ.get("BENCH_COMPUTE_MATRIX_SECONDS", "inf")),
        file=file,
    )
    new = list(ran)
    if file is None:
        yield from _told(new, "virtual clock")
    else:
        yield from _told(kept(file), "virtual clock", every=campaign.with_those_alike(kept(file)))


def _wanted(matrix: str, known: Sequence[Outcome]) -> list[Choice]:
    """The cells that are to run. Raises ValueError."""
    if matrix == "none":
        return []
    every = covering_choices(2) if not matrix else campaign.in_order()
    if matrix.isdecimal():
        every = every[: int(matrix)]
    elif matrix.startswith(OTHER) and matrix.removeprefix(OTHER).isdecimal():
        every = other_choices(int(matrix.removeprefix(OTHER)))
    elif matrix not in ("", "full", "distinct", "missed"):
        raise ValueError(
            f"BENCH_COMPUTE_MATRIX={matrix}: a number, full, distinct, missed, none or {OTHER}N (N cells) is needed"
        )
    longest = float(os.environ.get("BENCH_COMPUTE_LONGEST", "inf"))
    some = campaign.part(every, os.environ.get("BENCH_COMPUTE_PART", ""))
    some = [choice for choice in some if cell_of(choice).window_seconds <= longest]
    if matrix == "missed":
        return campaign.to_repeat(some, known, revision())
    return campaign.distinct(some, known) if matrix == "distinct" else campaign.left(some, known)


def _figure(outcome: Outcome, clock: str) -> Figure:
    settled = "not" if outcome.settle_seconds == float("inf") else f"{outcome.settle_seconds:.1f} s"
    tenths = ""
    if outcome.median is not None and outcome.worst is not None:
        tenths = f"of its tenths median {outcome.median:.2f}, worst {outcome.worst:.2f}; "
    note = (
        f"{tenths}settled {settled}, longest stall {outcome.stall_ms:.1f} ms, after the first second "
        f"{outcome.later_stall_ms:.1f}, of {outcome.stall_bound_ms:.1f}"
    )
    return Figure(
        name=f"compute, {clock}: {outcome.cell}",
        value=outcome.error,
        unit="points",
        target=f"within {outcome.points:g}",
        holds=outcome.holds,
        note=f"not measured: {outcome.why}" if outcome.why else note,
    )


def _summary(part: Summary, clock: str) -> Figure:
    return Figure(
        name=f"compute, {clock}: {part.name}, worst of {part.count} cells",
        value=part.worst,
        unit="points",
        least=part.least,
        most=part.most,
        note=f"median of the absolute errors {part.median:.2f}; {part.within} within their target; settled in "
        f"{part.settle_median:.1f} s (median), {part.settle_most:.1f} s (most); longest stall "
        f"{part.longest_stall_ms:.0f} ms, {part.stalls_within} within the bound of stalls, "
        f"{part.later_stalls_within} after the first second, {part.stalls_without} beyond it but no "
        "longer than without the limiter",
    )


def _result(cell: Cell, *, real: bool, limited: bool = True) -> Result:
    result = campaign.measured(cell, real=real, limited=limited)
    if isinstance(result, str):
        raise RuntimeError(f"{cell}: {result}")
    return result


def _unlimited() -> Figure:
    """A Pod without a limit loses nothing: the same load with the library at 100 % and without it."""
    cell = Cell(pods=(Load(percent=100, kernels=(100,)),))
    with_it, without = _result(cell, real=True), _result(cell, real=True, limited=False)
    return Figure(
        name="compute, real time: no limit, kernels of 100 us",
        value=with_it.percent(1, 11),
        unit="% of the device",
        baseline=without.percent(1, 11),
        target="as without the library",
        holds=with_it.percent(1, 11) >= without.percent(1, 11) - 1,
    )


def _ranks() -> Figure:
    """Four processes, each with a device of its own, that meet after each kernel."""
    cell = Cell(pods=(Load(percent=50, devices=4, ranks=True),))
    return _figure(outcome_of(cell, _result(cell, real=False), values={}), "virtual clock")
