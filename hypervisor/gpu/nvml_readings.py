"""Calls of NVML whose answers are structures or have several versions: facts, readings, places."""

from __future__ import annotations

from functools import partial
from typing import Any

import pynvml

from hypervisor.gpu.codes import NOT_FOUND, SUCCESS
from hypervisor.gpu.nvml import Device, Nvml, Rung, text_of
from hypervisor.gpu.wire import Answer, Memory

AFFINITY_WORDS = 64  # 4096 CPUs
MOST_MIG_DEVICES = 64  # more than any card has; a count beyond is garbage


def pci(nvml: Nvml, device: Device) -> Answer[tuple[str, int]]:
    """Bus id as NVML writes it, and device << 16 | vendor."""

    def call(handle: Any) -> tuple[str, int]:
        info = pynvml.nvmlDeviceGetPciInfo(handle)
        return text_of(info.busId), int(info.pciDeviceId)

    return nvml.ask(device, "nvmlDeviceGetPciInfo_v3", call)


def link_remote(nvml: Nvml, device: Device, link: int) -> Answer[str]:
    """Bus id of the far end of an NVLink."""
    return nvml.ask(
        device,
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        lambda handle: text_of(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId),
        link,
    )


def memory(nvml: Nvml, device: Device) -> Answer[Memory]:
    """Memory, in the version that tells what is reserved where there is one."""

    def call_v2(handle: Any) -> Memory:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return Memory(int(info.total), int(info.free), int(info.used), int(info.reserved))

    def call_v1(handle: Any) -> Memory:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Memory(int(info.total), int(info.free), int(info.used), None)

    return nvml.climb(device, ("nvmlDeviceGetMemoryInfo_v2", call_v2), ("nvmlDeviceGetMemoryInfo", call_v1))


def utilization(nvml: Nvml, device: Device) -> Answer[tuple[int, int]]:
    """Percent of time with a kernel, and with memory traffic."""

    def call(handle: Any) -> tuple[int, int]:
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        return int(rates.gpu), int(rates.memory)

    return nvml.ask(device, "nvmlDeviceGetUtilizationRates", call)


def temperature(nvml: Nvml, device: Device) -> Answer[int]:
    """Celsius, of the GPU's own sensor."""
    return nvml.climb(
        device,
        ("nvmlDeviceGetTemperatureV", lambda handle: int(pynvml.nvmlDeviceGetTemperatureV(handle, 0))),
        ("nvmlDeviceGetTemperature", lambda handle: int(pynvml.nvmlDeviceGetTemperature(handle, 0))),
    )


def clock_event_reasons(nvml: Nvml, device: Device) -> Answer[int]:
    """Bits that say why the clocks are below their maximum."""
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

    def rung(name: str) -> Rung[int]:
        return name, lambda handle: int(getattr(pynvml, name)(handle))

    return nvml.climb(device, *map(rung, names))


def affinity(nvml: Nvml, device: Device, name: str, *arguments: int) -> Answer[list[int]]:
    """A bit mask of CPUs or NUMA nodes, in words of 64 bits."""
    return nvml.ask(
        device,
        name,
        lambda handle: [int(word) for word in getattr(pynvml, name)(handle, AFFINITY_WORDS, *arguments)],
    )


def mig_devices(nvml: Nvml, device: Device) -> tuple[list[Device], bool]:
    """Handles of the MIG devices of a divided card, and whether these are all; the numbering has holes."""
    most = nvml.number(device, "nvmlDeviceGetMaxMigDeviceCount")
    found = []
    complete = bool(most.value)  # a divided card has room for one at least
    for index in range(min(most.value or 0, MOST_MIG_DEVICES)):
        answer = nvml.ask(device, "nvmlDeviceGetMigDeviceHandleByIndex", partial(_mig_device, index), index)
        if answer.code == SUCCESS:
            found.append(Device(answer.value))
        elif answer.code != NOT_FOUND:
            complete = False
    return found, complete


def instance_attributes(nvml: Nvml, device: Device) -> Answer[tuple[int, int]]:
    """Multiprocessors and mebibytes of a MIG device."""

    def call(handle: Any) -> tuple[int, int]:
        attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
        return int(attributes.multiprocessorCount), int(attributes.memorySizeMB)

    return nvml.ask(device, "nvmlDeviceGetAttributes_v2", call)


def _mig_device(index: int, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
