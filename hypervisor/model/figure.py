"""A figure with its provenance: value, source, time of observation, and why it is absent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)


class FigureSource(Enum):
    """Where a figure comes from; the names are those of the API."""

    DRIVER = "driver"
    CATALOGUE = "catalogue"
    FORMULA = "formula"
    OVERRIDE = "override"
    LIMITER = "limiter"
    SYSTEM = "system"
    PARENT = "parent"
    GPM = "gpm"


@dataclass(frozen=True, slots=True)
class Figure(Generic[Number]):
    """One figure. Exactly one of value and absent_reason is set.

    Units are in the name of the field that holds the figure. observed_at is CLOCK_MONOTONIC in seconds.
    """

    value: Number | None
    source: FigureSource | None = None
    observed_at: float = 0.0
    stale: bool = False
    absent_reason: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.absent_reason):
            raise ValueError("a figure has a value or a reason for its absence, and not both")

    @classmethod
    def absent(cls, reason: str) -> Figure[Number]:
        """A figure that is not known, and why."""
        return cls(value=None, absent_reason=reason)

    def as_stale(self) -> Figure[Number]:
        """The same figure, marked as standing in for newer readings that failed."""
        return self if self.value is None else replace(self, stale=True)
