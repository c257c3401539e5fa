"""The matrix on the virtual clock: a choice in which all values of any two factors come together, or with
PACING_MATRIX=full every cell that can exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pacing import Cell, run
from tests.pacing.matrix import covering, every_cell

CELLS = list(every_cell()) if os.environ.get("PACING_MATRIX") == "full" else covering(2)

# Never far above the limit, whatever is beside it. How far below, and which cells miss their target, is told by
# `make bench`, cell by cell: many processes of short kernels beside a card that others fill.
MOST_ABOVE, MOST_BELOW = 2.0, 4.0


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_each_cell_is_near_its_limit(cell: Cell, tmp_path: Path) -> None:
    assert -MOST_BELOW <= run(cell, tmp_path).error() <= MOST_ABOVE
