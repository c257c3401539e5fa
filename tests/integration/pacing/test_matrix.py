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


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_each_cell_is_near_its_limit(cell: Cell) -> None:
    result = measured(cell)
    assert isinstance(result, Result), result
    assert result.holds, result.error()
