"""Kubernetes' quantities, exact: 10, 0.5, 500m, 8Gi, 8192Mi, 24G, 3e2."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d{1,18}(?:\.\d{0,9})?|\.\d{1,9}))"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE](?P<exponent>[+-]?\d{1,2}))?",
    re.ASCII,
)
_SUFFIX = {
    **{f"{letter}i": Decimal(2) ** (10 * (place + 1)) for place, letter in enumerate("KMGTPE")},
    **{letter: Decimal(10) ** (3 * (place + 1)) for place, letter in enumerate("kMGTPE")},
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
}


class BadQuantityError(ValueError):
    """Text that is no quantity."""


def parse_quantity(text: str) -> Decimal:
    """The value of a quantity, in its unit's base. Raises BadQuantityError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadQuantityError("it is no quantity such as 10, 500m or 8Gi")
    value = Decimal(match["number"])
    if match["suffix"]:
        return value * _SUFFIX[match["suffix"]]
    return value.scaleb(int(match["exponent"])) if match["exponent"] else value
