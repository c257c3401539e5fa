"""Compute limits against the simulator's busy time: cells in real time, and the same and more on the virtual clock.

BENCH_COMPUTE_CELLS bounds the cells in real time (12 s each and more; 24 unless given, at most 60), and
BENCH_COMPUTE_SECONDS the time in which a new one is begun (600 unless given). BENCH_COMPUTE_MATRIX says what runs on
the virtual clock: nothing given for the pairwise choice, a number for so many cells of the whole matrix by chance (the
same each time), or full for every cell, which takes hours.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.figure import Figure, median
from tests.pacing import Cell, Load, Result, run
from tests.pacing.matrix import covering, every_cell

MOST_CELLS = 60
LONGEST_SECONDS = 20.0  # a cell whose window is longer runs on the virtual clock only
SHOWN = 60  # of more cells only those are told one by one that are not within their target
CHANCE = 7


def measure() -> list[Figure]:
    """One figure for each cell, then the worst and the median of each kind."""
    figures = []
    began = time.monotonic()
    for real, cells in ((True, _in_real_time()), (False, _on_the_virtual_clock())):
        results, failed = (_one_by_one if real else _side_by_side)(cells)
        clock = "real time" if real else "virtual clock"
        figures += [_figure(result, clock) for result in results if len(results) <= SHOWN or not result.holds]
        figures += [_not_measured(cell, clock, why) for cell, why in failed]
        figures += list(_summary(results, clock))
    if os.environ.get("BENCH_COMPUTE_CELLS") != "0":
        figures += [_unlimited(), _ranks()]
    took = time.monotonic() - began
    return [*figures, Figure(name="compute: time that this bench took", value=took, unit="s")]


def _in_real_time() -> list[Cell]:
    wanted = min(int(os.environ.get("BENCH_COMPUTE_CELLS", "24")), MOST_CELLS)
    return [cell for cell in covering(2) if cell.window_seconds <= LONGEST_SECONDS][:wanted]


def _on_the_virtual_clock() -> list[Cell]:
    wanted = os.environ.get("BENCH_COMPUTE_MATRIX", "")
    if not wanted:
        return covering(2)
    cells = list(every_cell())
    return cells if wanted == "full" else random.Random(CHANCE).sample(cells, min(int(wanted), len(cells)))


Failed = list[tuple[Cell, str]]


def _one_by_one(cells: Sequence[Cell]) -> tuple[list[Result], Failed]:
    """Cells in real time; one that fails does not hide the others, and no new one begins when the time is up."""
    results: list[Result] = []
    failed: Failed = []
    until = time.monotonic() + float(os.environ.get("BENCH_COMPUTE_SECONDS", "600"))
    for cell in cells:
        if time.monotonic() >= until:
            failed.append((cell, "BENCH_COMPUTE_SECONDS were over"))
            continue
        try:
            results.append(_run(cell, real=True))
        except Exception as error:  # noqa: BLE001 - whatever it is belongs into the table
            failed.append((cell, f"{type(error).__name__}: {error}"))
    return results, failed


def _side_by_side(cells: Sequence[Cell]) -> tuple[list[Result], Failed]:
    """Cells on the virtual clock, which does not see that others run."""

    def one(cell: Cell) -> Result | str:
        try:
            return _run(cell, real=False)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs into the table
            return f"{type(error).__name__}: {error}"

    if cells:
        one(Cell(pods=(Load(percent=50),), seconds=1.0))  # builds what all need
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(one, cells))
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    failed = [(cell, outcome) for cell, outcome in zip(cells, outcomes, strict=True) if isinstance(outcome, str)]
    return results, failed


def _run(cell: Cell, *, real: bool, limited: bool = True) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return run(cell, Path(folder), real=real, limited=limited)


def _figure(result: Result, clock: str) -> Figure:
    cell = result.cell
    settled = "not" if result.settle_seconds == float("inf") else f"{result.settle_seconds:.1f} s"
    return Figure(
        name=f"compute, {clock}: {cell}",
        value=result.error(),
        unit="points",
        target=f"within {cell.points:g}",
        holds=result.holds,
        note=f"settled {settled}, longest stall {result.longest_stall_ms:.1f} ms, after the first second "
        f"{result.longest_later_stall_ms:.1f}, of {result.stall_bound_ms:.1f}",
    )


def _not_measured(cell: Cell, clock: str, why: str) -> Figure:
    return Figure(
        name=f"compute, {clock}: {cell}", value=float("nan"), unit="points", holds=False, note=f"not measured: {why}"
    )


def _summary(results: list[Result], clock: str) -> Iterable[Figure]:
    kinds = {"alone": [each for each in results if len(each.cell.pods) == 1]}
    kinds["beside others"] = [each for each in results if len(each.cell.pods) > 1]
    for name, some in kinds.items():
        if not some:
            continue
        errors = [each.error() for each in some]
        yield Figure(
            name=f"compute, {clock}: {name}, worst of {len(some)} cells",
            value=max(errors, key=abs),
            unit="points",
            least=min(errors),
            most=max(errors),
            note=f"median of the absolute errors {median([abs(error) for error in errors]):.2f}; "
            f"{sum(each.holds for each in some)} within their target, "
            f"{sum(each.longest_stall_ms <= each.stall_bound_ms for each in some)} within the bound of stalls, "
            f"{sum(each.longest_later_stall_ms <= each.stall_bound_ms for each in some)} after the first second",
        )


def _unlimited() -> Figure:
    """A Pod without a limit loses nothing: the same load with the library at 100 % and without it."""
    cell = Cell(pods=(Load(percent=100, kernels=(100,)),))
    with_it, without = _run(cell, real=True), _run(cell, real=True, limited=False)
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
    return _figure(_run(Cell(pods=(Load(percent=50, devices=4, ranks=True),)), real=False), "virtual clock")
