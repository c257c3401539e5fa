"""Bars, sparklines and lines keep their width whatever they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model.text import text_width
from hypervisor.top.cells import ASCII, UNICODE, Line, Span, Style, bar, cut, sparkline

words = st.text(st.sampled_from("ab 表ç"), max_size=40)
ratios = st.one_of(st.none(), st.floats(allow_nan=False, min_value=-10, max_value=10))


@given(ratio=ratios, width=st.integers(0, 80), limit=st.one_of(st.none(), st.floats(0, 2)))
def test_a_bar_has_its_width(ratio: float | None, width: int, limit: float | None) -> None:
    drawn = bar(ratio, width, UNICODE, style=Style.GOOD, limit=limit)
    assert sum(len(span.text) for span in drawn) == width


def test_a_bar_shows_the_ratio_and_the_limit() -> None:
    drawn = "".join(span.text for span in bar(0.5, 10, ASCII, style=Style.GOOD, limit=0.8))
    assert drawn == "#####...|."


@given(values=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=200), width=st.integers(0, 80))
def test_a_sparkline_has_its_width(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width, UNICODE)) == width


def test_a_sparkline_tells_little_from_nothing_and_unknown() -> None:
    assert sparkline([0.0, 0.001, None, 0.5, 1.0], 6, ASCII) == "  . =%"


@given(text=st.text(max_size=60), width=st.integers(0, 40))
def test_text_of_others_is_cut_and_made_printable(text: str, width: int) -> None:
    found = cut(text, width, UNICODE)
    assert text_width(found) <= width
    assert found.isprintable()


@given(text=st.text(max_size=60), width=st.integers(0, 40))
def test_a_line_has_its_width_in_any_script(text: str, width: int) -> None:
    assert text_width(Line((Span(cut(text, 30, UNICODE)), Span("end"))).fitted(width).text) == width


@pytest.mark.parametrize("width", [0, 3, 5, 20])
def test_a_line_is_filled_or_cut(width: int) -> None:
    assert len(Line((Span("abc"), Span("de"))).fitted(width).text) == width


@given(parts=st.lists(st.tuples(words, st.sampled_from(Style)), max_size=4), width=st.integers(2, 30))
def test_a_wrapped_line_loses_no_letter_and_keeps_to_its_columns(parts: list[tuple[str, Style]], width: int) -> None:
    whole = Line(tuple(Span(*part) for part in parts))
    lines = whole.wrapped(width)
    assert all(text_width(each.text) <= width for each in lines)
    letters = [(mark, span.style) for each in lines for span in each.spans for mark in span.text if mark != " "]
    assert letters == [(mark, style) for text, style in parts for mark in text if mark != " "]


def test_a_line_is_broken_between_words() -> None:
    assert [each.text for each in Line((Span("one two"), Span(" three"))).wrapped(8)] == ["one two", "three"]
    assert [each.text for each in Line((Span("abcdefgh ij"),)).wrapped(4)] == ["abcd", "efgh", "ij"]
    assert [each.text for each in Line().wrapped(4)] == [""]
