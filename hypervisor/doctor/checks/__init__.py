"""All checks, in the order of the chain. A new one is a function in the file of its subject, and its place there."""

from __future__ import annotations

from hypervisor.doctor.check import Check
from hypervisor.doctor.checks import (
    bus,
    cuda_version,
    daemon,
    devices,
    driver,
    faults,
    kubelet,
    memory,
    runtime,
    scheduling,
)
from hypervisor.doctor.subject import NodeSubject

NODE_CHECKS: tuple[Check[NodeSubject], ...] = (
    *bus.CHECKS,
    *driver.CHECKS,
    *devices.CHECKS,
    *faults.CHECKS,
    *daemon.CHECKS,
    *memory.CHECKS,
    *kubelet.CHECKS,
    *scheduling.CHECKS,
    *memory.SCHEDULING_CHECKS,
    *runtime.CHECKS,
    *cuda_version.CHECKS,
)
