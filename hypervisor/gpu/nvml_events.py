"""Calls of NVML about events."""

from __future__ import annotations

from typing import Any

import pynvml

from hypervisor.gpu.codes import NOT_SUPPORTED
from hypervisor.gpu.nvml import Device, Nvml, handle_number
from hypervisor.gpu.wire import Answer


def make_event_set(nvml: Nvml) -> Answer[Any]:
    """A set that takes events of cards."""
    return nvml.ask(nvml.system, "nvmlEventSetCreate", lambda _: pynvml.nvmlEventSetCreate())


def free_event_set(nvml: Nvml, event_set: Any) -> Answer[None]:
    """End a set."""
    return nvml.ask(nvml.system, "nvmlEventSetFree", lambda _: pynvml.nvmlEventSetFree(event_set))


def watch(nvml: Nvml, device: Device, event_set: Any, wanted: int) -> Answer[int]:
    """Deliver those of the wanted events that the card has; the mask of them."""
    supported = nvml.ask(
        device,
        "nvmlDeviceGetSupportedEventTypes",
        lambda handle: int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)),
    )
    mask = (supported.value or 0) & wanted
    if not mask:
        return Answer(None, supported.code or NOT_SUPPORTED)

    def register(handle: Any) -> int:
        pynvml.nvmlDeviceRegisterEvents(handle, mask, event_set)
        return mask

    return nvml.ask(device, "nvmlDeviceRegisterEvents", register)


def next_event(nvml: Nvml, event_set: Any) -> Answer[tuple[int, int, int]]:
    """An event that has come: the card's handle as a number, type and data; TIMEOUT when there is none."""

    def call(_: Any) -> tuple[int, int, int]:
        told = pynvml.nvmlEventSetWait_v2(event_set, 0)
        return handle_number(told.device), int(told.eventType), int(told.eventData)

    return nvml.ask(nvml.system, "nvmlEventSetWait_v2", call)
