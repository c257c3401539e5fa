"""How busy the processes on a device were, as often as the driver tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWindow:
    """The driver's last window: when it ended (CLOCK_MONOTONIC in seconds), and by host pid the share of it, 0 to 1,
    with one of the process's kernels resident. Who is not named had nothing to do. card: the share of the same window
    with a kernel of anybody resident, as the driver tells it of the card as a whole; None where it does not. doubtful:
    host pids of which it told something that can't be; how busy they were is not known."""

    ended_at: float
    ratios: Mapping[int, float]
    card: float | None = None
    doubtful: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """Where the driver tells nothing of single processes: the share of a window, 0 to 1, with a kernel of anybody
    resident. uuids are the devices that it is about, more than one where MIG devices share a GPU instance; pids who was
    listed on them at its begin or its end, None where that is not known."""

    begun_at: float
    ended_at: float
    ratio: float
    uuids: frozenset[str]
    pids: frozenset[int] | None


Windows = Mapping[str, BusyWindow | DeviceWindow]  # by UUID of the device
