"""The live table: limit against achieved, in 80 columns and without colours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.model.quantity import format_bytes

HEADING = (
    f"{'PROGRAM':<10} {'GPU':>3}  {'COMPUTE LIMIT':>13} {'ACHIEVED':>9}  {'VRAM LIMIT':>10} {'HELD':>8} {'PEAK':>8}"
)
BAR_CELLS = 10  # what is left of 80 columns


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program; shares from 0 to 1, None where nothing is known yet."""

    name: str
    gpu: int
    limit_share: float
    achieved_share: float | None
    vram_limit_bytes: int
    held_bytes: int
    peak_bytes: int


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}%"


def format_row(row: Row) -> str:
    return (
        f"{row.name:<10} {row.gpu:>3}  {percent(row.limit_share):>13} {percent(row.achieved_share):>9}  "
        f"{format_bytes(row.vram_limit_bytes):>10} {format_bytes(row.held_bytes):>8} {format_bytes(row.peak_bytes):>8} "
        f"{bar(row.achieved_share)}"
    )


def bar(share: float | None) -> str:
    """A bar of BAR_CELLS for the whole card."""
    filled = 0 if share is None else min(BAR_CELLS, round(share * BAR_CELLS))
    return "#" * filled + "." * (BAR_CELLS - filled)


def format_table(rows: Iterable[Row], *, title: str) -> list[str]:
    """The table's lines, each at most 80 columns."""
    return [title[:80], HEADING, *(format_row(row)[:80] for row in rows)]
