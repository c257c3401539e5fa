"""Long work in small parts: a generator that yields where others may have their turn, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Parts = Generator[None, None, T]


def drained(parts: Parts[T]) -> T:
    """The result of all parts, done at a stretch."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: T = end.value
            return result
