"""What is counted of the gpu-reader and of the driver behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypervisor.gpu import wire
from hypervisor.gpu.health.monitor import HealthStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReaderStatistics:
    """A copy of the counters. Counts are since the start of the daemon, over all readers.

    calls are NVML calls by name and code (negative codes are ours: see codes.py), call_seconds the time in them by
    name; a call that hung is in hangs and not in calls. rejected_readings counts readings that were not believed, by
    UUID, field and reason (failed, zero, range, mismatch). nameplate_bytes is the memory of each card's model by the
    catalogue. child_pid is None while no reader runs; lingering_children were killed and have not ended; stands_by says
    whether another reader could take over at once.
    """

    child_pid: int | None
    restarts: int
    rounds: int
    failures: int
    hangs: int
    last_round_seconds: float
    lingering_children: int
    calls: Mapping[tuple[str, int], int]
    call_seconds: Mapping[str, float]
    rejected_readings: Mapping[tuple[str, str, str], int]
    health: HealthStatistics
    nameplate_bytes: Mapping[str, int] = field(default_factory=dict)
    stands_by: bool = False


@dataclass(slots=True)
class Counters:
    """The counters themselves, with one owner."""

    child_pid: int | None = None
    starts: int = 0
    rounds: int = 0
    failures: int = 0
    hangs: int = 0
    last_round_seconds: float = 0.0
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    call_seconds: dict[str, float] = field(default_factory=dict)
    rejected: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add_calls(self, calls: Iterable[wire.Call]) -> None:
        """Add what a reader counted."""
        for call in calls:
            key = (call.name, call.code)
            self.calls[key] = self.calls.get(key, 0) + call.count
            self.call_seconds[call.name] = self.call_seconds.get(call.name, 0.0) + call.seconds

    def add_rejections(self, uuid: str, rejections: Iterable[tuple[str, str]]) -> None:
        """Add readings of a device that were not believed: field and reason."""
        for name, reason in rejections:
            key = (uuid, name, reason)
            self.rejected[key] = self.rejected.get(key, 0) + 1

    def copy(
        self, *, lingering: int, health: HealthStatistics, nameplate_bytes: Mapping[str, int], stands_by: bool
    ) -> GpuReaderStatistics:
        """The counters as they are now."""
        return GpuReaderStatistics(
            child_pid=self.child_pid,
            restarts=max(self.starts - 1, 0),
            rounds=self.rounds,
            failures=self.failures,
            hangs=self.hangs,
            last_round_seconds=self.last_round_seconds,
            lingering_children=lingering,
            calls=dict(self.calls),
            call_seconds=dict(self.call_seconds),
            rejected_readings=dict(self.rejected),
            health=health,
            nameplate_bytes=nameplate_bytes,
            stands_by=stands_by,
        )
