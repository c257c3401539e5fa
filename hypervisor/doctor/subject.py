"""What the checks are given: the files of the machine, what its driver and daemon say, and what is asked for."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hypervisor.doctor import pci, process_files
from hypervisor.doctor.cuda import CudaRequirement
from hypervisor.doctor.facts import FROM_DAEMON, NodeFacts
from hypervisor.doctor.kubernetes import Objects
from hypervisor.doctor.root import Root
from hypervisor.gpu.health import policy

DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"


class Platform(Enum):
    """Where the GPUs come from, which decides what files there must be."""

    PCI = "pci"
    WSL = "wsl"
    TEGRA = "tegra"
    SIMULATED = "simulated"


@dataclass(frozen=True)
class NodeSubject:
    """A node. facts is None when nobody could be asked, and facts_absent says why.

    now is wall time in seconds; requirement is a CUDA version that the node must be able to run; only_uuid narrows the
    view to one card of the node.
    """

    root: Root
    facts: NodeFacts | None = None
    facts_absent: str = ""
    objects: Objects = field(default_factory=Objects)
    requirement: CudaRequirement | None = None
    now: float = 0.0
    http_port: int = 8001
    only_uuid: str = ""
    xid_policy_file: Path | None = None

    @functools.cached_property
    def platform(self) -> Platform:
        """A simulated driver has no files in the kernel, and WSL and Jetson have others."""
        if self.facts is not None and self.facts.simulated:
            return Platform.SIMULATED
        if self.gpus_on_bus:
            return Platform.PCI
        if self.root.node("/dev/dxg") is not None:
            return Platform.WSL
        if any(self.root.node(name) is not None for name in ("/dev/nvmap", "/dev/nvhost-ctrl", "/dev/nvgpu")):
            return Platform.TEGRA
        return Platform.PCI

    @functools.cached_property
    def gpus_on_bus(self) -> tuple[pci.PciGpu, ...]:
        """NVIDIA GPUs by the kernel."""
        found = pci.gpus(self.root)
        return tuple(gpu for gpu in found if gpu.address == self._only_address) if self.only_uuid else found

    @functools.cached_property
    def kernel_log(self) -> tuple[str, ...] | None:
        """Lines of the kernel's log; None where there is none. Raises UnreadableError."""
        lines = self.root.kernel_log()
        if lines is None or not self.only_uuid:
            return lines
        slot = self._only_address.partition(".")[0]
        return tuple(line for line in lines if slot in line)

    @functools.cached_property
    def xid_policy(self) -> policy.XidPolicy:
        """What an Xid means, with the numbers that the site's file treats otherwise. Raises PolicyError."""
        return policy.load(self.xid_policy_file)

    @property
    def _only_address(self) -> str:
        """PCI address of the one card, as the kernel writes it; "" when that is not known."""
        every = self.facts.gpus if self.facts is not None else ()
        bus_id = next((gpu.pci_bus_id for gpu in every if gpu.uuid == self.only_uuid), "")
        return pci.kernel_address(bus_id)

    @functools.cached_property
    def processes(self) -> tuple[process_files.Process, ...]:
        """All processes."""
        return tuple(process_files.processes(self.root))

    @functools.cached_property
    def kernel_modules(self) -> frozenset[str]:
        """Modules that are loaded."""
        return frozenset(line.split()[0] for line in (self.root.text("/proc/modules") or "").splitlines() if line)

    @property
    def module_version(self) -> str:
        """Version of the loaded kernel module; "" when none is."""
        return self.root.word("/sys/module/nvidia/version")

    @property
    def driver_version(self) -> str:
        """Of the driver, from whoever says it."""
        told = self.facts.driver_version if self.facts is not None else ""
        return told or self.module_version

    @property
    def has_daemon(self) -> bool:
        return self.facts is not None and self.facts.source == FROM_DAEMON

    @property
    def unanswered(self) -> str:
        """Why nothing is known of GPUs or of a daemon, for a check that has nothing to look at."""
        if self.facts is None:
            return self.facts_absent or "nobody was asked"
        return "no daemon was asked" if self.facts.gpus else "no GPU is known"

    @property
    def has_kubelet(self) -> bool:
        return self.root.node("/var/lib/kubelet") is not None
