"""What collectors may read: one snapshot and the statistics of all feeds and queues, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypervisor.model import NodeSnapshot, RefusalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    """One moment. wall_time in seconds since the epoch; monotonic_time in seconds of CLOCK_MONOTONIC.

    statistics: name of a feed or queue -> its frozen dataclass of numbers; a field that ends with _total only grows.
    """

    snapshot: NodeSnapshot
    wall_time: float
    monotonic_time: float
    statistics: Mapping[str, object]
    refusals: Mapping[RefusalReason, int]
