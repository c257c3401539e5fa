"""How much VRAM the processes of an allocation hold beyond what the limiter accounts: contexts and modules.

Pure. The driver's figure and the limiter's are read at different moments, and a program that allocates in between
makes the difference of the two wrong by that much. So a difference counts only when the account of the process was
the same before and after the driver's reading; until there is one, the smallest difference that is consistent with
both is taken, which never refuses memory without cause.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """One process on one device. accounted: what its slot held, less contexts that are not measured yet; before is
    None when it was not there at the round before."""

    driver_bytes: int
    accounted_before: int | None
    accounted_now: int


def overhead_of(sample: MemorySample, known: int | None) -> tuple[int, int | None]:
    """The overhead of one process in bytes, and what to know of it from now on. Never below 0.

    known is the last figure that counted, None before there was one.
    """
    now = max(0, sample.driver_bytes - sample.accounted_now)
    if sample.accounted_before == sample.accounted_now:
        return now, now
    if known is not None:
        return known, known
    most = max(sample.accounted_now, sample.accounted_before or 0)
    return max(0, sample.driver_bytes - most), None
