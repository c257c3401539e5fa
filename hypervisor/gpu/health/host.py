"""The host beside the driver's own word: the PCI bus, our access to the device nodes, the module's version.

Everything lies under a root, so that a daemon in a container, or a test, can look elsewhere. Nothing here waits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VENDOR = "0x10de"
# VGA and 3D controllers; the others of the vendor are switches, sound, USB.
GPU_CLASSES = ("0x0300", "0x0302")
# Given to a virtual machine or to another driver on purpose: not for us to miss.
FOREIGN_DRIVERS = frozenset({"vfio-pci", "pci-stub", "pci-pf-stub"})


@dataclass(frozen=True, slots=True)
class BusGpu:
    """An NVIDIA GPU on the PCI bus, and the kernel driver it is bound to, "" for none."""

    address: str
    driver: str


@dataclass(frozen=True, slots=True)
class Host:
    """A root under which /dev, /proc, /run and /sys lie."""

    root: Path

    @property
    def kernel_log(self) -> Path:
        """The kernel's log."""
        return self.root / "dev" / "kmsg"

    def gpus_on_bus(self) -> tuple[BusGpu, ...] | None:
        """The NVIDIA GPUs that the kernel sees, by address; None where there is no list."""
        devices = self.root / "sys" / "bus" / "pci" / "devices"
        try:
            entries = sorted(devices.iterdir())
        except OSError:
            return None
        return tuple(
            BusGpu(entry.name, _driver(entry))
            for entry in entries
            if _text(entry / "vendor") == VENDOR and _text(entry / "class")[:6] in GPU_CLASSES
        )

    def on_bus(self, address: str) -> bool:
        """Whether the kernel sees a device at this address."""
        return (self.root / "sys" / "bus" / "pci" / "devices" / address).exists()

    def binding(self, address: str) -> int | None:
        """What tells this binding of a device to a driver from every other one of this boot; None without a driver.

        The kernel makes the link anew with each, and gives no number twice.
        """
        try:
            return (self.root / "sys" / "bus" / "pci" / "devices" / address / "driver").lstat().st_ino
        except OSError:
            return None

    def module_version(self) -> str:
        """Version of the kernel module that is loaded; "" when none is."""
        return _text(self.root / "sys" / "module" / "nvidia" / "version")

    def denied_nodes(self, minor: int | None) -> tuple[str, ...]:
        """Device nodes that this process may not open, or that are missing, with why: the driver then seems gone."""
        names = ["nvidiactl", *([f"nvidia{minor}"] if minor is not None else [])]
        return tuple(
            f"/dev/{name}: {reason}" for name in names if (reason := _why_closed(self.root / "dev" / name)) is not None
        )

    def missing_toolkit(self) -> Path | None:
        """The file that NVIDIA's operator has yet to write before containers can use GPUs; None when all is well.

        Without the operator there is no such folder, and nothing to wait for.
        """
        folder = self.root / "run" / "nvidia" / "validations"
        ready = folder / "toolkit-ready"
        return ready if folder.is_dir() and not ready.exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _why_closed(node: Path) -> str | None:
    # Not by opening it: a driver that hangs would take us with it. The check of rights knows cgroups too.
    if not node.exists():
        return "it is missing"
    if not os.access(node, os.R_OK | os.W_OK):
        return "not permitted; the cgroup or the mode of the file took it away"
    return None
