"""VRAM limits of cgroups, enforced by driver or kernel (driver 615 and newer): of a cgroup, not of a client.

The driver charges every allocation of every process of the cgroup, whatever the program does; managed memory is not
charged. NVIDIA wants limits set through NVML, which finds the card's key, uses the kernel's controller (dmem, 6.14 and
newer) where it is there and the driver's own accounting (misc) where it is not; so that is done wherever the driver has
the call. Where it has not, but the controller knows the card, the limit is written into the controller's files, one
line a region: dmem.capacity (root), dmem.max and dmem.min; a card's region is nvidia/<PCI address>/vidmem.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog
import trio

from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED
from hypervisor.gpu.errand import ErrandError
from hypervisor.gpu.wire import MemoryLimitTold

log = structlog.get_logger("device-memory")
MAX = "max"
DRIVER_SECONDS = 10.0
_REGIONS_SECONDS = 10.0  # a driver that is loaded later brings its regions


class MemoryControlError(Exception):
    """A limit is not in force; the text says where and why."""


class DriverLimits(Protocol):
    """NVML's calls; see hypervisor.gpu.memory_limits."""

    async def limit(self, bus_id: str, cgroup: Path, hard_bytes: int | None) -> MemoryLimitTold:
        """Set and read back. Raises ErrandError."""
        ...


def _from_the_top(told: str) -> str:
    return told.lstrip("/")


def _nobody() -> bool | None:
    return False


@dataclass(slots=True)
class MemoryControl:
    """VRAM limits in a cgroup-v2 tree. Cards are named by bus id, as NVML spells it. Methods raise MemoryControlError.

    at: the path from the top of what /proc/PID/cgroup tells. driver_has_it: whether the driver is new enough for
    `driver` to be asked; None while it has not answered.
    """

    root: Path
    driver: DriverLimits | None = None
    driver_has_it: Callable[[], bool | None] = _nobody
    at: Callable[[str], str] = _from_the_top
    _without: set[str] = field(default_factory=set)  # cards for which the driver said that it has no limits
    _known: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    @property
    def present(self) -> bool:
        """Whether any card's memory may be limited."""
        return (self.driver is not None and self.driver_has_it() is True) or bool(self._regions())

    async def driver_known(self) -> None:
        """Until the driver has answered, so that what is not covered then is never. Raises MemoryControlError after
        DRIVER_SECONDS. Cancelling only ends the wait."""
        with trio.move_on_after(DRIVER_SECONDS):
            while self.driver is not None and self.driver_has_it() is None:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.05)
        if self.driver is not None and self.driver_has_it() is None:
            raise MemoryControlError("the driver has not answered yet, so nobody knows whether VRAM can be limited")

    def covers(self, bus_id: str) -> bool:
        """Whether a card's memory can be limited; if not, limits are MPS's and the limiter's."""
        return self._by_driver(bus_id) or self.region(bus_id) is not None

    def _by_driver(self, bus_id: str) -> bool:
        return self.driver is not None and bool(bus_id) and bus_id not in self._without and self.driver_has_it() is True

    def region(self, bus_id: str) -> str | None:
        """The kernel's region of a card; None when the controller does not know it."""
        wanted = address(bus_id)
        return next((name for name in self._regions() if address(name.split("/")[1]) == wanted), None)

    async def limit(self, cgroup: Path, bus_id: str, hard_bytes: int | None) -> bool:
        """Limit a cgroup on a card, and read it back; None: no more. False: nobody can limit this card. Cancelling
        stops the waiting; the limit may have been set."""
        region = self.region(bus_id)
        if region is not None:
            enable(self.root, cgroup, "dmem")
        if self._by_driver(bus_id) and await self._through_driver(cgroup, bus_id, hard_bytes, region):
            return True
        if region is None:
            return False
        self._in_files(cgroup, region, hard_bytes)
        return True

    async def _through_driver(self, cgroup: Path, bus_id: str, hard_bytes: int | None, region: str | None) -> bool:
        """False: this driver limits nothing on this card."""
        if self.driver is None:
            return False
        try:
            told = await self.driver.limit(bus_id, cgroup, hard_bytes)
        except ErrandError as error:
            # Where the kernel knows the card, "not supported" is about this cgroup: it has no files of the controller.
            # Who is not root may not set limits at all, and does without.
            none = error.code == FUNCTION_NOT_FOUND or (error.code == NO_PERMISSION and os.geteuid() != 0)
            if none or (error.code == NOT_SUPPORTED and region is None):
                log.info("the driver limits no cgroups", card=bus_id, why=str(error))
                self._without.add(bus_id)
                return False
            hint = "; is the dmem controller enabled above it?" if error.code == NOT_SUPPORTED else ""
            raise MemoryControlError(f"{cgroup} can't be limited on card {bus_id}: {error}{hint}") from error
        if told.hard_bytes != hard_bytes:
            raise MemoryControlError(
                f"the driver says {told.hard_bytes} bytes for {cgroup} on card {bus_id}, and {hard_bytes} was set"
            )
        return True

    def _in_files(self, cgroup: Path, region: str, hard_bytes: int | None) -> None:
        self._write(cgroup, "dmem.max", region, MAX if hard_bytes is None else str(hard_bytes))
        held = self._read(cgroup, "dmem.max").get(region)
        if held != hard_bytes:
            raise MemoryControlError(f"{cgroup}/dmem.max says {held} for {region}, and {hard_bytes} was set")

    def _regions(self) -> tuple[str, ...]:
        now = time.monotonic()
        if now - self._known[0] > _REGIONS_SECONDS:
            try:
                lines = (self.root / "dmem.capacity").read_text().splitlines()
            except OSError:
                lines = []
            names = (line.split(" ")[0] for line in lines)
            self._known = (now, tuple(name for name in names if re.match(r"nvidia/[^/]+/vidmem$", name)))
        return self._known[1]

    def _read(self, cgroup: Path, name: str) -> dict[str, int | None]:
        try:
            lines = (cgroup / name).read_text().splitlines()
        except OSError as error:
            raise MemoryControlError(f"{cgroup}/{name} can't be read: {error.strerror}") from error
        pairs = (line.rsplit(" ", 1) for line in lines if " " in line)
        return {region: None if amount == MAX else int(amount) for region, amount in pairs}

    def _write(self, cgroup: Path, name: str, region: str, amount: str) -> None:
        try:
            # One region a write: the kernel takes the others as they are.
            with (cgroup / name).open("w") as file:
                file.write(f"{region} {amount}")
        except OSError as error:
            raise MemoryControlError(
                f"{cgroup}/{name} can't be set: {error.strerror}; is the dmem controller enabled above it?"
            ) from error


def enable(root: Path, cgroup: Path, controller: str) -> None:
    """Have a cgroup get the files of a controller: each cgroup above it must hand it on. Where one does not, what is
    set in those files fails and says so."""
    for path in reversed([above for above in cgroup.parents if above == root or root in above.parents]):
        control = path / "cgroup.subtree_control"
        try:
            if controller not in control.read_text().split():
                control.write_text(f"+{controller}")
        except OSError:
            return


def address(text: str) -> str:
    """A PCI address as domain, bus, device and function: NVML writes the domain with eight digits, the kernel four."""
    found = re.fullmatch(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    if found is None:
        return text.lower()
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()
