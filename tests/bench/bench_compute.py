"""Compute limits against the simulator's busy time: cells in real time, and the same and more on the virtual clock.

BENCH_COMPUTE_CELLS bounds the cells in real time (12 s each and more; 24 unless given, at most 60).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.bench.figure import Figure, median
from tests.pacing import Cell, Load, Result, run
from tests.pacing.matrix import covering

MOST_CELLS = 60
LONGEST_SECONDS = 20.0  # a cell whose window is longer runs on the virtual clock only
POINTS_ALONE, POINTS_BESIDE = 1.0, 2.0


def measure() -> list[Figure]:
    """One figure for each cell, then the worst and the median of each kind."""
    wanted = min(int(os.environ.get("BENCH_COMPUTE_CELLS", "24")), MOST_CELLS)
    pairs = covering(2)
    short = [cell for cell in pairs if cell.window_seconds <= LONGEST_SECONDS][:wanted]
    figures = []
    for real, cells in ((True, short), (False, pairs)):
        results = [_run(cell, real=real) for cell in cells]
        clock = "real time" if real else "virtual clock"
        figures += [_figure(result, clock) for result in results]
        figures += list(_summary(results, clock))
    figures.append(_unlimited())
    return figures


def _run(cell: Cell, *, real: bool, limited: bool = True) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return run(cell, Path(folder), real=real, limited=limited)


def _points(cell: Cell) -> float:
    return POINTS_ALONE if len(cell.pods) == 1 and cell.pods[0].processes == 1 else POINTS_BESIDE


def _figure(result: Result, clock: str) -> Figure:
    cell, error = result.cell, result.error()
    settled = "not" if result.settle_seconds == float("inf") else f"{result.settle_seconds:.1f} s"
    return Figure(
        name=f"compute, {clock}: {cell}",
        value=error,
        unit="points",
        target=f"within {_points(cell):g}",
        holds=abs(error) <= _points(cell),
        note=f"settled {settled}, longest stall {result.longest_stall_ms:.1f} ms of {result.stall_bound_ms:.1f}",
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
            f"{sum(abs(each.error()) <= _points(each.cell) for each in some)} within their target, "
            f"{sum(each.longest_stall_ms <= each.stall_bound_ms for each in some)} within the bound of stalls",
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
