"""PCI addresses, bit masks of CPUs and NUMA nodes, and what sysfs says of them. Parsers are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.ASCII | re.IGNORECASE)
_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)

PCI_DEVICES = Path("/sys/bus/pci/devices")


def normalise(address: str) -> str:
    """A PCI address as sysfs writes it: NVML's 00000000:3B:00.0 gives 0000:3b:00.0. Unknown text is kept as it is."""
    match = _ADDRESS.fullmatch(address.strip())
    if match is None:
        return address.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def pci_identifier(combined: int) -> str:
    """vendor:device from NVML's device << 16 | vendor: 0x233010de gives 10de:2330."""
    return f"{combined & 0xFFFF:04x}:{combined >> 16 & 0xFFFF:04x}"


def members(words: Iterable[int]) -> list[int]:
    """Numbers of the bits that are set, in words of 64 bits, lowest first."""
    return [64 * place + bit for place, word in enumerate(words) if word for bit in range(64) if word >> bit & 1]


def as_cpu_list(numbers: Sequence[int]) -> str:
    """Rising numbers as Linux writes them: 0-3,8. Empty for none."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numa_node_of(address: str, devices: Path = PCI_DEVICES) -> int | None:
    """NUMA node by sysfs; None where it is not known, which the kernel writes as -1."""
    try:
        node = int((devices / address / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cpu_list_of(address: str, devices: Path = PCI_DEVICES) -> str:
    """CPUs near a device by sysfs, as a Linux list; "" where it is not known."""
    try:
        text = (devices / address / "local_cpulist").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if _CPU_LIST.fullmatch(text) else ""


def on_bus(address: str, devices: Path = PCI_DEVICES) -> bool:
    """Whether the kernel sees a device at this address."""
    return (devices / address).exists()
