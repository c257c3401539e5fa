"""The matrix on the virtual clock: a choice in which all values of any two factors come together, or with
PACING_MATRIX=full every cell that can exist."""

from __future__ import annotations

import os

import pytest

from tests.pacing import Cell, Result
from tests.pacing.campaign import measured
from tests.pacing.matrix import covering, every_cell

FULL = os.environ.get("PACING_MATRIX") == "full"
CELLS = list(every_cell()) if FULL else covering(2)

# Cells of the pairwise choice that miss their target, and how far they may be off. docs/compute.md says why.
OFF = {
    # Exchanges whose ranks are in several processes: what one is late by the others wait for.
    "90 %, 20000 us, grid 108, graph, 2 processes, 4 streams, 4 devices; beside: no limit": 8.0,
    "90 %, 20 us, grid 1, graph, 8 processes, 4 streams, 4 devices": 3.0,
}


def points(cell: Cell) -> float:
    """What the cell allows: a point alone on one device, else two."""
    return max([cell.points, *(off for start, off in OFF.items() if str(cell).startswith(start) and not FULL)])


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_each_cell_is_near_its_limit(cell: Cell) -> None:
    """Never above its target, and below it only where that is known."""
    result = measured(cell)
    assert isinstance(result, Result), result
    assert -points(cell) <= result.error() <= cell.points


@pytest.mark.slow
def test_what_is_known_to_be_off_is_in_the_choice() -> None:
    assert all(any(str(cell).startswith(start) for cell in covering(2)) for start in OFF)
