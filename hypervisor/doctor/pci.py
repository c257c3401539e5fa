"""GPUs on the PCI bus, as the kernel shows them: there whether or not a driver is."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.doctor.root import Root

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One NVIDIA GPU. driver is "" when none is bound; device is the id, 0x2330 for instance."""

    address: str
    device: str
    driver: str

    @property
    def place(self) -> str:
        return f"{DEVICES}/{self.address}"


def gpus(root: Root) -> tuple[PciGpu, ...]:
    """All NVIDIA GPUs of the bus, by address: class 0x0300 (VGA) and 0x0302 (3D)."""
    found = []
    for address in root.names(DEVICES):
        place = f"{DEVICES}/{address}"
        if root.word(f"{place}/vendor") != NVIDIA:
            continue
        if not root.word(f"{place}/class").startswith(("0x0300", "0x0302")):
            continue
        driver = (root.link(f"{place}/driver") or "").rstrip("/").rpartition("/")[2]
        found.append(PciGpu(address, root.word(f"{place}/device"), driver))
    return tuple(found)


def kernel_address(bus_id: str) -> str:
    """NVML's 00000000:3B:00.0 as the kernel writes it: 0000:3b:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def base_address_problem(root: Root, gpu: PciGpu) -> str:
    """What is wrong with the memory windows of a card; "" when nothing is.

    The first line of `resource` is BAR 0, the registers, without which no driver can work: 0 means that the firmware or
    the kernel found no room for it.
    """
    text = root.text(f"{gpu.place}/resource")
    if not text:
        return ""
    first = text.splitlines()[0].split()
    if len(first) == 3 and int(first[2], 16) != 0 and int(first[0], 16) == 0 and int(first[1], 16) == 0:
        return f"{gpu.address}: BAR 0 has flags {first[2]} and no address"
    return ""


def link_width(root: Root, gpu: PciGpu) -> tuple[int, int] | None:
    """Lanes in use and lanes possible; None where the kernel does not say."""
    current, most = root.word(f"{gpu.place}/current_link_width"), root.word(f"{gpu.place}/max_link_width")
    if not current.isdecimal() or not most.isdecimal():
        return None
    return int(current), int(most)


def numa_node(root: Root, gpu: PciGpu) -> int | None:
    """NUMA node; None where it is not known, which the kernel writes as -1."""
    text = root.word(f"{gpu.place}/numa_node")
    return int(text) if text.isdecimal() else None
