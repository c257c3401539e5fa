"""Widths of text on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model.text import first_columns, text_width


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("train", 5), ("训练", 4), ("job-训练", 8), ("e\u0301", 1), ("\u200b", 0), ("█░", 2), ("ﾊﾊ", 2)],
)
def test_the_width_of(text: str, width: int) -> None:
    assert text_width(text) == width


@given(text=st.text(max_size=40), width=st.integers(-1, 40))
def test_the_beginning_fits_and_no_more_would(text: str, width: int) -> None:
    found = first_columns(text, width)
    assert text.startswith(found)
    assert text_width(found) <= max(0, width)
    assert found == text or text_width(text[: len(found) + 1]) > max(0, width)
