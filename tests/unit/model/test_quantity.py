"""Quantities are read exactly, and refused with words."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.model import Compute
from hypervisor.model.quantity import MAX_BYTES, QuantityError, format_bytes, parse_bytes, parse_compute


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8Gi", 8 * 2**30),
        ("8192Mi", 8 * 2**30),
        ("24G", 24 * 10**9),
        ("1.5Gi", 3 * 2**29),
        ("512", 512),
        ("8GiB", 8 * 2**30),
        ("0", 0),
    ],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "8gi", "-1Gi", "8 Gi x", "1e9", "0.3", "17Ti", "Gi", "\uff18Gi", "nan"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40%", Compute(percent=Decimal(40))),
        ("12.5 %", Compute(percent=Decimal("12.5"))),
        ("312", Compute(tflops=Decimal(312))),
        ("98.9TFLOPS", Compute(tflops=Decimal("98.9"))),
        ("100%", Compute(percent=Decimal(100))),
    ],
)
def test_compute(text: str, value: Compute) -> None:
    assert parse_compute(text) == value


@pytest.mark.parametrize("text", ["0%", "0", "101%", "-5%", "40 percent", "nan", "inf", "1e2", "", "%", "1.0000001"])
def test_what_is_no_amount_of_compute_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_compute(text)


@given(st.integers(min_value=0, max_value=MAX_BYTES))
def test_whole_bytes_survive(value: int) -> None:
    assert parse_bytes(str(value)) == value


@given(st.integers(min_value=1, max_value=16383))
def test_formatted_mebibytes_are_read_back(mebibytes: int) -> None:
    if mebibytes % 1024 == 0 or mebibytes < 1024:
        assert parse_bytes(format_bytes(mebibytes * 2**20)) == mebibytes * 2**20
