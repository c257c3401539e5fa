"""The time of a message: ages and wall times are made from it, so that a clock that is set back harms nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf import timestamp_pb2

_NANOSECONDS = 10**9
_MAX_SECONDS = 253402300799  # the last second of year 9999, the most that a Timestamp may say


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instant on both clocks: CLOCK_MONOTONIC and wall time, in seconds."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        return cls(monotonic=time.monotonic(), wall=time.time())

    def age(self, observed_at: float) -> float:
        """Seconds since an instant of the monotonic clock; never negative."""
        return max(0.0, self.monotonic - observed_at)

    def wall_of(self, observed_at: float) -> timestamp_pb2.Timestamp:
        """The wall time of an instant of the monotonic clock, to the millisecond. To be copied, not changed."""
        return _shared_timestamp(round(self.wall - (self.monotonic - observed_at), 3))


@lru_cache(maxsize=64)
def _shared_timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """All figures of a round have the same time of observation."""
    return wall_timestamp(seconds)


def wall_timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """A Timestamp of wall time in seconds; what it can't hold is held to what it can."""
    nanoseconds = round(min(max(seconds, 0.0), float(_MAX_SECONDS)) * _NANOSECONDS)
    whole, rest = divmod(nanoseconds, _NANOSECONDS)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=rest)
