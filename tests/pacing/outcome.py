"""What is kept of a cell that has run: enough to judge it, in a line of a file."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from buildsupport.native import ROOT
from tests.pacing.cell import Cell
from tests.pacing.result import Result

PACED_BY = ("limiter/src", "limiter/include", "hypervisor/limits")  # what a result is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """error and points as of Result and Cell; NaN and why where the cell could not be measured.

    median and worst: of the errors of the tenths of the window, without signs; None where an older run kept none.
    values: by factor of the matrix, empty for a cell that is not of it. settle_seconds: inf where it never settled.
    stall_without_ms: the longest one of the same load without the limiter, 0 where it was not asked for.
    revision: of the limiter.
    """

    cell: str
    values: Mapping[str, str]
    alone: bool
    points: float
    error: float = math.nan
    median: float | None = None
    worst: float | None = None
    settle_seconds: float = math.inf
    stall_ms: float = math.nan
    later_stall_ms: float = math.nan
    stall_bound_ms: float = math.nan
    stall_without_ms: float = 0.0
    revision: str = ""
    why: str = ""

    @property
    def holds(self) -> bool:
        """Is the error within what the cell allows? Not where it is not known."""
        return abs(self.error) <= self.points

    @property
    def stalls_by_itself(self) -> bool:
        """Did a launch wait beyond the bound, and no longer than the driver's own queue makes it wait?"""
        return self.stall_bound_ms < self.stall_ms <= self.stall_without_ms

    @property
    def key(self) -> str:
        """The same for each run of the cell."""
        return " ".join(f"{factor}={value}" for factor, value in self.values.items()) or self.cell


def outcome_of(cell: Cell, result: Result | str, *, values: Mapping[str, str], revision: str = "") -> Outcome:
    """What came of a cell: its result, or why there is none."""
    known = {
        "cell": str(cell),
        "values": dict(values),
        "alone": len(cell.pods) == 1,
        "points": cell.points,
        "revision": revision,
    }
    if isinstance(result, str):
        return Outcome(**known, why=result)
    tenths = sorted(map(abs, result.errors()))
    return Outcome(
        **known,
        error=result.error(),
        median=tenths[(len(tenths) - 1) // 2],
        worst=tenths[-1],
        settle_seconds=result.settle_seconds,
        stall_ms=result.longest_stall_ms,
        later_stall_ms=result.longest_later_stall_ms,
        stall_bound_ms=result.stall_bound_ms,
    )


def keep(path: Path, outcome: Outcome) -> None:
    """Append an outcome; several processes may do so at once."""
    line = json.dumps(asdict(outcome)).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # who wrote the line before was killed in it
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def kept(path: Path) -> list[Outcome]:
    """The last outcome of each cell, in the order in which they came; what is no outcome is left out."""
    found: dict[str, Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):  # half a line, or of another version of this file
            continue
        found.pop(outcome.key, None)
        found[outcome.key] = outcome
    return list(found.values())


def revision() -> str:
    """The commit that last changed what paces, with a + where it was changed since; "" outside a repository."""
    git = ["git", "-C", str(ROOT)]
    try:
        last = subprocess.run([*git, "log", "-1", "--format=%h", "--", *PACED_BY], capture_output=True, text=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *PACED_BY], capture_output=True)
    except OSError:
        return ""
    return last.stdout.strip() + ("+" if changed.returncode == 1 else "")


def missed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those outside their target, the worst first."""
    return sorted(
        (each for each in outcomes if not each.holds),
        key=lambda each: math.inf if math.isnan(each.error) else abs(each.error) - each.points,
        reverse=True,
    )
