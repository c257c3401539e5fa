"""How far two sources of one amount of memory are apart. Pure; for the doctor and the metrics alike."""

from __future__ import annotations

MOST_DEVIATION = 0.15  # what counts as the same amount: the article's 5.3


def deviation(one: int, other: int, *, of: int | None = None) -> float:
    """The difference as a ratio of the larger amount, or of the whole of which both are parts; 0 where all is 0."""
    whole = of or max(one, other)
    return abs(one - other) / whole if whole else 0.0
