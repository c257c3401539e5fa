"""What is known of the GPUs and of the driver while one gpu-reader follows the other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from hypervisor.config import Settings
from hypervisor.gpu import wire
from hypervisor.gpu.fleet import Fleet
from hypervisor.gpu.health.monitor import HealthMonitor
from hypervisor.gpu.observe import Observer
from hypervisor.gpu.statistics import Counters
from hypervisor.model.busy import BusyWindow, DeviceWindow

# Until NVML is first started anew for a GPU that is lost; see session.py.
FIRST_RENEWAL_SECONDS = 30.0


@dataclass(slots=True)
class Known:
    """What outlives a reader. Changed by sessions, in one trio thread."""

    settings: Settings
    environment: Mapping[str, str]
    observer: Observer
    fleet: Fleet
    health: HealthMonitor
    counters: Counters = field(default_factory=Counters)
    opened: wire.Opened | None = None
    sampled: frozenset[str] = frozenset()  # UUIDs of the GPUs whose processes are to be looked at between rounds
    sampling_wanted: trio.Event = field(default_factory=trio.Event)  # set while there are some
    windows: dict[str, BusyWindow | DeviceWindow] = field(default_factory=dict)  # of these, by UUID
    renewal_seconds: float = FIRST_RENEWAL_SECONDS
    events_told: trio.Event = field(default_factory=trio.Event)  # replaced with each answer about events

    def sample(self, uuids: frozenset[str]) -> None:
        """Look at the samples of these GPUs between rounds too, from now on."""
        if bool(uuids) != self.sampling_wanted.is_set():
            if uuids:
                self.sampling_wanted.set()
            else:
                self.sampling_wanted = trio.Event()
        self.sampled = uuids

    async def events_were_told(self) -> None:
        """Wait until the driver has answered once more about events. Cancelling stops the waiting and nothing else."""
        await self.events_told.wait()


def driver_of(known: Known, opened: wire.Opened | None = None) -> object:
    """What tells one driver from the next: the library's file, and the module's version."""
    opened = opened or known.opened
    try:
        file = os.stat(opened.library if opened else "")  # noqa: PTH116 - an empty name is no file; Path makes it "."
        library = (file.st_dev, file.st_ino, file.st_mtime_ns)
    except OSError:
        library = None
    return library, known.health.module_version(known.fleet)
