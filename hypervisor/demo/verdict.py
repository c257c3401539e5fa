"""Whether every limit held, from samples; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypervisor.demo.truth import Sample

TOLERANCE = 0.05
SETTLE_SECONDS = 1.0
LEAST_WINDOW_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence of the verdict."""

    holds: bool
    text: str


def achieved(samples: Sequence[Sample], program: str, *, begin: float, end: float) -> tuple[float, float] | None:
    """Share of GPU time between two times of the source's clock, and the window's length in seconds.

    None when fewer than two samples with the program lie within.
    """
    inside = [s for s in samples if begin <= s.at_seconds <= end and program in s.programs]
    if len(inside) < 2 or inside[-1].at_seconds <= inside[0].at_seconds:
        return None
    window = inside[-1].at_seconds - inside[0].at_seconds
    busy = inside[-1].programs[program].busy_seconds - inside[0].programs[program].busy_seconds
    return busy / window, window


def judge_compute(
    samples: Sequence[Sample], program: str, *, limit: float, begin: float, end: float, phase: str
) -> Finding:
    """The limit held when the share achieved, after a second to settle, is within TOLERANCE of it."""
    found = achieved(samples, program, begin=begin + SETTLE_SECONDS, end=end)
    if found is None or found[1] < LEAST_WINDOW_SECONDS:
        return Finding(holds=False, text=f"{program}: too few samples {phase}; give the demonstration more --seconds")
    share, window = found
    return Finding(
        holds=abs(share - limit) <= TOLERANCE,
        text=f"{program}: compute limit {limit * 100:.0f}%, achieved {share * 100:.1f}% over {window:.1f} s {phase}",
    )


def why_starved(load: float, processors: int) -> str:
    """What to say of a broken limit on a machine that has too much else to do; "" where it has not."""
    if load <= 2 * processors:
        return ""
    return (
        f"this machine has a load of {load:.0f} on {processors} processors: programs that wait for one can't use their "
        "share of the GPU; try again when it is idle"
    )


def judge_memory(samples: Sequence[Sample], program: str, *, limit_bytes: int) -> Finding:
    """The limit held when the peak was never above it, and something was held at all."""
    peaks = [s.programs[program].peak_bytes for s in samples if program in s.programs]
    peak = max(peaks, default=0)
    return Finding(
        holds=0 < peak <= limit_bytes,
        text=f"{program}: VRAM limit {limit_bytes} bytes, peak {peak} bytes",
    )
