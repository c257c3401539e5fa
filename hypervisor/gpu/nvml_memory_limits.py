"""Limits on the VRAM of a control group through NVML, in the gpu-reader: set, and read back.

nvmlDeviceSetMemoryLimits_v1 takes the full path of a cgroup-v2 directory; the driver then finds out by itself whether
the kernel's controller (dmem) or its own accounting (misc) enforces it. The soft limit stays 0: it is a reservation
that the driver adds to all groups above and takes away only when it is told to, and who is above his own can be ended
by an MPS server for somebody else.
"""

from __future__ import annotations

from typing import Any

import pynvml

from hypervisor.gpu.codes import SUCCESS
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.wire import MemoryLimit, MemoryLimitTold

UNLIMITED = 2**64 - 1
_SET, _GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


def reply(nvml: Nvml, device: Device, request: MemoryLimit) -> MemoryLimitTold:
    """The reply to a request to limit."""
    here = Device(device.handle)  # nothing is remembered: what one group has not, another may have
    name = request.cgroup.encode()
    hard = UNLIMITED if request.hard_bytes is None else request.hard_bytes

    def put(handle: Any) -> None:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, pynvml.c_nvmlSetMemoryLimits_v1_t(name, 0, hard))

    def get(handle: Any) -> tuple[int, int]:
        told = pynvml.c_nvmlGetMemoryLimits_v1_t(name, 0, 0, 0)
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, told)
        return int(told.hardLimit), int(told.currentUsed)

    done = nvml.ask(here, _SET, put)
    if done.code != SUCCESS:
        return MemoryLimitTold(done.code, _SET)
    held = nvml.ask(here, _GET, get)
    if held.value is None:
        return MemoryLimitTold(held.code, _GET)
    found, used = held.value
    return MemoryLimitTold(SUCCESS, _GET, None if found == UNLIMITED else found, used)
