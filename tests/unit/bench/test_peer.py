"""Another limiter in the table of figures."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import main
from tests.bench.figure import Figure, table


def test_another_limiter_is_a_column_only_where_there_is_one() -> None:
    plain = Figure(name="a", value=1, unit="ns", baseline=2)
    assert "peer" not in "\n".join(table([plain]))
    lines = table([Figure(name="b", value=1, unit="ns", baseline=2, peer=30), plain])
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    at = cells[0].index("peer")
    assert [row[at] for row in cells[2:]] == ["30", ""]
    assert len({len(row) for row in cells}) == 1


def test_a_library_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEER_LIMITER", "/nowhere/lib.so")
    assert main(["limiter"]) == 2
    assert "PEER_LIMITER names no file: /nowhere/lib.so" in capsys.readouterr().err
