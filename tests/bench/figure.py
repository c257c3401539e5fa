"""One measured figure, with what it is measured against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of this run. least and most are the spread over repetitions; baseline is of the same run.

    holds says whether the target was met; None where there is only something to know.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    holds: bool | None = None
    least: float | None = None
    most: float | None = None
    baseline: float | None = None
    device: str = "simulator"
    note: str = ""


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the lower of the two."""
    return sorted(values)[(len(values) - 1) // 2]


def table(figures: Iterable[Figure]) -> list[str]:
    """The figures as lines of a Markdown table."""
    lines = [
        "| what | value | spread | baseline | target | met | device | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for figure in figures:
        spread = "" if figure.least is None or figure.most is None else f"{figure.least:.4g} to {figure.most:.4g}"
        baseline = "" if figure.baseline is None else f"{figure.baseline:.4g}"
        met = {True: "yes", False: "no", None: ""}[figure.holds]
        lines.append(
            f"| {figure.name} | {figure.value:.4g} {figure.unit} | {spread} | {baseline} | {figure.target} | {met} "
            f"| {figure.device} | {figure.note} |"
        )
    return lines
