"""How figures are written for people."""

from __future__ import annotations

import pytest

from hypervisor.cli import figures


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (3.26, "3.3"), (-0.06, "-0.1"), (-0.04, "0"), (0.0, "0"), (-12.0, "-12")]
)
def test_a_number_has_one_decimal_at_most_and_nothing_is_less_than_nothing(value: float, text: str) -> None:
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.05, "50 ms"),
        (-0.35, "-350 ms"),
        (-1.234, "-1.23 s"),
        (0.0012, "1.2 ms"),
        (20e-6, "20 us"),
        (1.5e-6, "1.5 us"),
        (0.0, "0"),
        (0.9999, "1 s"),
        (0.0009999, "1 ms"),
        (123.4, "123 s"),
        (86_400.0, "86400 s"),
    ],
)
def test_a_span_is_in_the_unit_that_people_would_take(seconds: float, text: str) -> None:
    assert figures.span(seconds) == text
