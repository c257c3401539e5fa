"""VRAM limits by the kernel's device-memory controller (driver 615 and newer): of a cgroup, not of a client.

Behind it the driver charges every allocation of every process of the cgroup, whatever the program does; managed memory
is not charged. Files of cgroup v2, one line a region: dmem.capacity (root), dmem.max and dmem.min; a card's region is
nvidia/<PCI address>/vidmem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MAX = "max"


class MemoryControlError(Exception):
    """A limit is not in force; the text says where and why."""


@dataclass(frozen=True, slots=True)
class MemoryControl:
    """The controller of a cgroup-v2 tree. Methods raise MemoryControlError."""

    root: Path

    @classmethod
    def find(cls, root: Path) -> MemoryControl | None:
        """The controller, where kernel and driver have it: else None, and limits are MPS's."""
        found = cls(root)
        return found if found._regions() else None

    def region(self, pci_bus_id: str) -> str | None:
        """The region of a card, by its PCI address as NVML spells it; None when the driver charges nothing to it."""
        wanted = _address(pci_bus_id)
        return next((name for name in self._regions() if _address(name.split("/")[1]) == wanted), None)

    def set(self, cgroup: Path, region: str, *, hard_bytes: int | None, soft_bytes: int = 0) -> None:
        """Limit a cgroup, and read it back. The soft limit counts only as far as all cgroups above it grant it."""
        enable(self.root, cgroup, "dmem")
        above = [path for path in cgroup.parents if path != self.root and self.root in path.parents]
        if soft_bytes:
            for path in reversed(above):
                granted = self._read(path, "dmem.min").get(region, 0)
                if granted is not None and granted < soft_bytes:
                    self._write(path, "dmem.min", region, str(soft_bytes))
        self._write(cgroup, "dmem.min", region, str(soft_bytes))
        self._write(cgroup, "dmem.max", region, MAX if hard_bytes is None else str(hard_bytes))
        held = self._read(cgroup, "dmem.max").get(region)
        if held != hard_bytes:
            raise MemoryControlError(f"{cgroup}/dmem.max says {held} for {region}, and {hard_bytes} was set")

    def used(self, cgroup: Path, region: str) -> int | None:
        """Bytes that a cgroup holds; None where that is not told."""
        return self._read(cgroup, "dmem.current").get(region)

    def clear(self, cgroup: Path, region: str) -> None:
        """No limit any more; the soft limit first, for a cgroup that has one can't be removed cleanly."""
        self._write(cgroup, "dmem.min", region, "0")
        self._write(cgroup, "dmem.max", region, MAX)

    def _regions(self) -> tuple[str, ...]:
        try:
            lines = (self.root / "dmem.capacity").read_text().splitlines()
        except OSError:
            return ()
        return tuple(name for name in (line.split(" ")[0] for line in lines) if re.match(r"nvidia/[^/]+/vidmem$", name))

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


def _address(text: str) -> str:
    """A PCI address as domain, bus, device and function: NVML writes the domain with eight digits, the kernel four."""
    found = re.fullmatch(r"(?:([0-9a-fA-F]+):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    if found is None:
        return text.lower()
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}".lower()
