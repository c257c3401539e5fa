"""Why there is nothing to read, in words that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hypervisor.gpu import wire
from hypervisor.gpu.codes import (
    DRIVER_NOT_LOADED,
    GPU_NOT_FOUND,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    UNINITIALIZED,
    words,
)
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.fleet import Hole
from hypervisor.gpu.library import PATH_VARIABLE
from hypervisor.model.health import HealthCode

# Codes of a reading that are about NVML itself: it has to be started anew.
LIBRARY_CODES = (UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH)


class UnusableError(Exception):
    """NVML can't be used at all now."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def no_gpus() -> Finding:
    """NVML works and counts no GPU."""
    return Finding(HealthCode.NO_GPUS, "the driver works and finds no GPU; check lspci and the kernel's log")


def uncounted(code: int) -> Finding:
    """NVML works and can't count the GPUs."""
    return Finding(HealthCode.NVML_FAILED, f"the driver can't count its GPUs: {words(code)}; it is asked again")


def finding_of(failed: wire.Failed, environment: Mapping[str, str]) -> Finding:
    """What a start that failed means."""
    machine = environment.get("SIM_MACHINE")
    if failed.code == LIBRARY_NOT_FOUND:
        return Finding(
            HealthCode.NVML_NOT_FOUND,
            f"failed to load accelerator library: {failed.detail}; install the NVIDIA driver, or set"
            f" {PATH_VARIABLE} to the file libnvidia-ml.so.1",
        )
    if failed.code == DRIVER_NOT_LOADED and machine:
        if Path(machine).exists():
            return Finding(
                HealthCode.DRIVER_NOT_LOADED,
                f"the simulated machine {machine} is damaged or of another version of the simulator; remove it, and "
                "make another one with 'hypervisor sim create'",
            )
        return Finding(
            HealthCode.DRIVER_NOT_LOADED,
            f"no simulated machine at {machine}; make one with 'hypervisor sim create'",
        )
    if failed.code == DRIVER_NOT_LOADED:
        return Finding(
            HealthCode.DRIVER_NOT_LOADED,
            f"{failed.detail} is there and the NVIDIA kernel module is not loaded; run 'modprobe nvidia' and look at"
            " the kernel's log",
        )
    if failed.code == LIB_RM_VERSION_MISMATCH:
        return Finding(
            HealthCode.NVML_FAILED,
            f"{failed.detail} and the kernel module are of different driver versions; restart the machine, or reload"
            " the module, after the driver's upgrade",
        )
    if failed.code == GPU_NOT_FOUND:
        return no_gpus()
    if failed.code == NO_PERMISSION:
        return Finding(
            HealthCode.NVML_FAILED,
            f"no permission to use the driver ({words(failed.code)}); the daemon needs access to /dev/nvidiactl",
        )
    detail = f": {failed.detail}" if failed.detail else ""
    return Finding(HealthCode.NVML_FAILED, f"NVML can't {failed.stage} ({words(failed.code)}){detail}")


def of_holes(holes: Mapping[int, Hole]) -> list[Finding]:
    """GPUs that the driver counts and can't open, of which nothing is known."""
    if not holes:
        return []
    told = ", ".join(f"GPU at index {index}: {words(hole.code)}" for index, hole in sorted(holes.items()))
    return [Finding(HealthCode.GPU_UNREADABLE, f"can't be opened: {told}")]


def raise_for_library(reply: wire.ReadDone) -> None:
    """Raises UnusableError when a reading says that NVML is not usable any more."""
    for told in reply.devices:
        if told.memory.code in LIBRARY_CODES:
            raise UnusableError(
                Finding(HealthCode.NVML_FAILED, f"the driver changed ({words(told.memory.code)}); NVML is started anew")
            )
