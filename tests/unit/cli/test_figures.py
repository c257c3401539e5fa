"""How figures are written for people."""

from __future__ import annotations

import pytest

from hypervisor.cli import figures


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (3.26, "3.3"), (-0.06, "-0.1"), (-0.04, "0"), (0.0, "0"), (-12.0, "-12")]
)
def test_a_number_has_one_decimal_at_most_and_nothing_is_less_than_nothing(value: float, text: str) -> None:
    assert figures.number(value) == text
