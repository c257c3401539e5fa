"""Which allocation a process on a GPU belongs to; pure.

The pids are the host's: the driver names them, and the daemon has found those of attached processes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypervisor.model import AllocationUsage, ProcessOnGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """Processes of one device, split by whether they belong to an allocation."""

    owned: tuple[tuple[ProcessOnGpu, str], ...]
    foreign: tuple[ProcessOnGpu, ...]


def allocation_of_pid(usages: Iterable[AllocationUsage]) -> Mapping[int, str]:
    """Host pid -> allocation id, from the processes that have attached to limit files."""
    return {
        process.host_pid: usage.allocation_id
        for usage in usages
        for process in usage.processes
        if process.host_pid is not None
    }


def attribute(processes: Iterable[ProcessOnGpu], allocation_of: Mapping[int, str]) -> Attributed:
    """Split the processes of a device."""
    owned: list[tuple[ProcessOnGpu, str]] = []
    foreign: list[ProcessOnGpu] = []
    for process in processes:
        allocation_id = allocation_of.get(process.pid)
        if allocation_id is None:
            foreign.append(process)
        else:
            owned.append((process, allocation_id))
    return Attributed(owned=tuple(owned), foreign=tuple(foreign))
