"""GPUs without memory of their own (Jetson, GB10): what they can have is a share of the host's. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypervisor.gpu import wire
from hypervisor.gpu.judge import MemoryUse
from hypervisor.model.figure import Figure, FigureSource
from hypervisor.model.gpu import GpuIdentity

# By name: a card that fails to tell its memory must not pass for one that has none.
_INTEGRATED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra|Jetson|nvgpu)\b", re.ASCII | re.IGNORECASE)


def is_integrated(identity: GpuIdentity) -> bool:
    """Whether a device shares the host's memory."""
    return identity.partition is None and _INTEGRATED.search(identity.model) is not None


def use_by_processes(listed: Sequence[wire.Process] | None, total: int, now: float) -> MemoryUse:
    """What the processes hold together: the driver tells of each, and of no sum."""
    if listed is None or any(process.memory_bytes is None for process in listed):
        absent: Figure[int] = Figure.absent("the driver does not say what each process holds of the host's memory")
        return MemoryUse(absent, absent, absent)
    used = min(sum(process.memory_bytes or 0 for process in listed), total)
    return MemoryUse(
        Figure(used, FigureSource.DRIVER, now),
        Figure(total - used, FigureSource.SYSTEM, now),
        Figure.absent("a GPU that shares the host's memory reserves none"),
    )
