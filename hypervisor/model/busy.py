"""How busy the processes on a device were, as often as the driver tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWindow:
    """The driver's last window: when it ended (CLOCK_MONOTONIC in seconds), and by host pid the share of it, 0 to 1,
    with one of the process's kernels resident. Who is not named had nothing to do."""

    ended_at: float
    ratios: Mapping[int, float]
