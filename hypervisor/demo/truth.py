"""What the programs really used, from a source other than the limiter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Busy GPU time since the program began, in seconds, and device memory: now and at its peak, in bytes."""

    busy_seconds: float
    held_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at all programs; at_seconds is the source's own clock."""

    at_seconds: float
    programs: Mapping[str, Usage]


class Truth(Protocol):
    """A source of samples."""

    name: str

    def sample(self) -> Sample: ...


class LedgerTruth:
    """The simulated machine's own ledger: exact busy integrals and exact peaks, by group of processes."""

    name = "the simulator's ledger"

    def __init__(self, machine: Path) -> None:
        self._machine = machine

    def sample(self) -> Sample:
        from hypervisor.simulation.machine import opened

        with opened(self._machine) as machine:
            state = machine.show()
        programs = {}
        for group in state["groups"]:
            usages = group["gpus"].values()
            programs[group["name"]] = Usage(
                busy_seconds=sum(usage["busy_ns"] for usage in usages) / 1e9,
                held_bytes=sum(usage["bytes"] for usage in usages),
                peak_bytes=sum(usage["peak_bytes"] for usage in usages),
            )
        return Sample(at_seconds=state["clock"]["now_ns"] / 1e9, programs=programs)


class DriverTruth:
    """NVML's figures by process, as the daemon reports them; for a real card, which keeps no ledger."""

    name = "the driver's process samples"

    def __init__(self, query: Callable[[], dict[str, Any]], clock: Callable[[], float]) -> None:
        self._query = query
        self._clock = clock
        self._last_at: float | None = None
        self._programs: dict[str, Usage] = {}

    def sample(self) -> Sample:
        now = self._clock()
        elapsed = 0.0 if self._last_at is None else now - self._last_at
        self._last_at = now
        for item in self._query()["items"]:
            name = item["spec"]["allocationId"]
            before = self._programs.get(name, Usage(busy_seconds=0, held_bytes=0, peak_bytes=0))
            used = [device.get("usage", {}) for device in item.get("devices", [])]
            busy = sum(float(part.get("busyRatio", {}).get("value", 0)) for part in used)
            held = sum(int(part.get("reserved", {}).get("bytes", 0)) for part in used)
            self._programs[name] = Usage(
                busy_seconds=before.busy_seconds + busy * elapsed,
                held_bytes=held,
                peak_bytes=max(before.peak_bytes, held),
            )
        return Sample(at_seconds=now, programs=dict(self._programs))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects that a client wrote, one a line; a last line that is not finished yet is left out."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
