"""Processes of one Pod share its time, whatever each of them launches; on the virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pacing import Cell, Load, run


@pytest.mark.parametrize("kernels", [(1000, 1000), (1000, 5000), (100, 10000), (20, 20000), (200, 200, 4000)])
def test_each_process_has_as_much_time(kernels: tuple[int, ...], tmp_path: Path) -> None:
    """By launches, of 20 us and 20 ms in turn the one would have a thousandth of what the other has."""
    load = Load(
        percent=50, kernels=(max(kernels),), kernels_each=tuple((each,) for each in kernels), processes=len(kernels)
    )
    result = run(Cell(pods=(load,), seconds=10), tmp_path)
    times = [each * count for each, count in zip(kernels, result.launches, strict=True)]
    assert result.percent(1, 11) == pytest.approx(50, abs=1)
    assert [each / sum(times) for each in times] == pytest.approx([1 / len(kernels)] * len(kernels), rel=0.2)
