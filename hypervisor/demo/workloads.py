"""The programs of the demonstration and what each may have."""

from __future__ import annotations

from dataclasses import dataclass

GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One client program with its share. later_percent: the limit after the change half way; None: no change."""

    name: str
    gpu: int
    percent: int
    vram_bytes: int
    kernel_microseconds: int
    hold_bytes: int
    later_percent: int | None = None

    def client_arguments(self, seconds: float) -> tuple[str, ...]:
        return (
            f"--kernel-us={self.kernel_microseconds}",
            f"--hold={self.hold_bytes}",
            f"--seconds={seconds:.0f}",
        )


def workloads(*, gpu_count: int, vram_bytes: int) -> tuple[Workload, ...]:
    """Three throttled programs: two share the first card, the third has the second card where there is one.

    vram_bytes is the smallest card's; the shares of memory fit into it.
    """
    unit = max(min(vram_bytes // 40, GIBIBYTE), 2**28)
    return (
        Workload(
            name="training", gpu=0, percent=50, vram_bytes=16 * unit, kernel_microseconds=1000, hold_bytes=8 * unit
        ),
        Workload(
            name="serving",
            gpu=0,
            percent=20,
            vram_bytes=8 * unit,
            kernel_microseconds=400,
            hold_bytes=4 * unit,
            later_percent=40,
        ),
        Workload(
            name="notebook",
            gpu=1 if gpu_count > 1 else 0,
            percent=30 if gpu_count > 1 else 10,
            vram_bytes=4 * unit,
            kernel_microseconds=2000,
            hold_bytes=unit,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class GreedyProgram:
    """A program that allocates step by step until it is refused."""

    name: str = "greedy"
    gpu: int
    vram_bytes: int = 2 * GIBIBYTE
    step_bytes: int = 2**28
