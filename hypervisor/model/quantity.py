"""Quantities as people write them: 8Gi, 8192Mi, 24G bytes; 312 TFLOPS; 40 %. Exact: integers and decimals."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from hypervisor.model.allocation import Compute

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|Pi|k|K|M|G|T|P|)B?", re.ASCII)
_COMPUTE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(%|TFLOPS|tflops|)", re.ASCII)
MAX_BYTES = 2**44 - 1  # what a total in the limit files can hold


class QuantityError(ValueError):
    """A quantity that can't be read; the text says what was given and what is allowed."""


def parse_bytes(text: str) -> int:
    """Bytes from text such as 8Gi, 1.5Gi or 24G. Raises QuantityError, also for fractions of a byte."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is not an amount of memory; write it as 8Gi, 8192Mi or 24G")
    number, unit = match.groups()
    value = Decimal(number) * (_BINARY.get(unit) or _DECIMAL[unit])
    if value != value.to_integral_value():
        raise QuantityError(f"{text!r} is not a whole number of bytes")
    if value > MAX_BYTES:
        raise QuantityError(f"{text!r} is more than the 16Ti that can be limited")
    return int(value)


def parse_compute(text: str) -> Compute:
    """Compute from text such as 40%, 12.5% or 312 (TFLOPS). Raises QuantityError; does not judge whether it fits."""
    match = _COMPUTE.fullmatch(text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is not an amount of compute; write a percentage as 40% or TFLOPS as 312")
    number, unit = match.groups()
    try:
        value = Decimal(number)
    except InvalidOperation as error:
        raise QuantityError(f"{text!r} is not a number") from error
    if value <= 0:
        raise QuantityError(f"{text!r} is not above 0; leave compute out for no limit")
    if unit == "%":
        if value > 100:
            raise QuantityError(f"{text!r} is more than the whole card; a percentage is above 0 and at most 100")
        return Compute(percent=value)
    return Compute(tflops=value)


def format_bytes(value: int) -> str:
    """Bytes for people, in the largest binary unit that keeps one decimal exact enough: 8Gi, 79.6Gi, 512Mi, 0."""
    if value == 0:
        return "0"
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= size:
            whole, rest = divmod(value, size)
            return f"{whole}{unit}" if rest == 0 else f"{value / size:.1f}{unit}"
    return str(value)
