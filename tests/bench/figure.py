"""One measured figure, with what it is measured against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of this run. least and most are the spread over repetitions; baseline is of the same run.

    holds says whether the target was met; None where there is only something to know. peer is another limiter's
    figure of the same run.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    holds: bool | None = None
    least: float | None = None
    most: float | None = None
    baseline: float | None = None
    peer: float | None = None
    device: str = "simulator"
    note: str = ""


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the lower of the two."""
    return sorted(values)[(len(values) - 1) // 2]


def table(figures: Iterable[Figure]) -> list[str]:
    """The figures as lines of a Markdown table, with a column for another limiter where there is one."""
    figures = list(figures)
    compared = any(figure.peer is not None for figure in figures)
    lines = [
        f"| what | value | spread | baseline |{' peer |' if compared else ''} target | met | device | note |",
        f"|---|---|---|---|{'---|' if compared else ''}---|---|---|---|",
    ]
    for figure in figures:
        peer = "" if figure.peer is None else f"{figure.peer:.4g}"
        spread = "" if figure.least is None or figure.most is None else f"{figure.least:.4g} to {figure.most:.4g}"
        baseline = "" if figure.baseline is None else f"{figure.baseline:.4g}"
        met = {True: "yes", False: "no", None: ""}[figure.holds]
        lines.append(
            f"| {figure.name} | {figure.value:.4g} {figure.unit} | {spread} | {baseline} "
            f"{f'| {peer} ' if compared else ''}| {figure.target} | {met} | {figure.device} | {figure.note} |"
        )
    return lines
