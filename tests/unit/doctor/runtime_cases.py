"""Faults of the container runtime: the article's fifth stage and 4.3, 4.4; nvidia-stack.md 7.2, 9.1 row 20, 9.6."""

from __future__ import annotations

from typing import Any

from hypervisor.doctor.cuda import CudaRequirement
from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.machines import DRIVER, LIBRARIES, Machine

CONTAINERD = "/etc/containerd/config.toml"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
CDI = "/etc/cdi/nvidia.yaml"


def _plain_containerd(machine: Machine) -> None:
    machine.write(CONTAINERD, "version = 2\n").remove(CDI)


def _docker_only(machine: Machine) -> None:
    machine.remove(CONTAINERD)
    machine.write("/etc/docker/daemon.json", '{"log-driver": "json-file"}')


def _old_toolkit(version: str) -> Any:
    def change(machine: Machine) -> None:
        machine.remove(f"{LIBRARIES}/libnvidia-container.so.1.17.4")
        machine.write(f"{LIBRARIES}/libnvidia-container.so.{version}", "")

    return change


def _legacy(machine: Machine) -> Machine:
    return machine.write(TOOLKIT, '[nvidia-container-runtime]\nmode = "legacy"\n')


def _wants(cuda: str = "", constraint: str = "") -> Any:
    def change(machine: Machine) -> None:
        machine.requirement = CudaRequirement("image", cuda, constraint)

    return change


def _limit(name: str, value: int) -> Any:
    line = f"{name:<26}{value:<21}{value:<21}units\n"
    return lambda machine: machine.write("/proc/800/limits", line)


def _old_driver(machine: Machine) -> None:
    """535.54.03 and CUDA 12.1 of pytorch 23.07 run; 12.4 does with what 12.2 has."""
    machine.told(driver_version="535.54.03", cuda_version="12.2")
    machine.write("/sys/module/nvidia/version", "535.54.03\n")
    _wants("12.4")(machine)


CASES = (
    Case(
        "article 2.5: no nvidia runtime in containerd", "runtime.handler", FAIL, _plain_containerd, "runtimeClassName"
    ),
    Case("table of 3.4: the runtime is not configured", "runtime.handler", FAIL, _docker_only, "nvidia-ctk runtime"),
    Case(
        "9.2/22: a configuration that is none", "runtime.handler", FAIL, lambda m: m.write(CONTAINERD, "version = = 2")
    ),
    Case(
        "article 3.4: which nvidia-container-toolkit",
        "runtime.toolkit",
        FAIL,
        lambda m: m.remove("/usr/bin/nvidia-container-runtime"),
        "install nvidia-container-toolkit",
    ),
    Case("article 2.5: 535 takes toolkit 1.13", "runtime.toolkit", FAIL, _old_toolkit("1.11.0"), "1.13"),
    Case(
        "9.1/20: one dead GPU and the legacy hook",
        "runtime.dead-card",
        FAIL,
        lambda m: _legacy(m).gpu(1, health="lost"),
        "nvidia-container-cli",
    ),
    Case(
        "7.2: legacy enumerates all, one fell off the bus",
        "runtime.dead-card",
        FAIL,
        lambda m: _legacy(m).log("NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus."),
        "cdi",
    ),
    Case(
        "7.2: the spec names the libcuda of an old driver",
        "runtime.cdi-current",
        FAIL,
        lambda m: m.replace(CDI, DRIVER, "535.54.03"),
        "nvidia-ctk cdi generate",
    ),
    Case("7.2: a device that is gone", "runtime.cdi-current", FAIL, lambda m: m.replace(CDI, "nvidia0", "nvidia7")),
    Case("9.6/94: systemd and the legacy hook", "runtime.devices-kept", WARN, _legacy, "create-dev-char-symlinks"),
    Case(
        "7.2: links of other devices do not help",
        "runtime.devices-kept",
        WARN,
        lambda m: _legacy(m).char("/dev/char/1:3", 1, 3),
        "daemon-reload",
    ),
    Case("article 4.4: ulimit -u of 1024", "runtime.process-limits", WARN, _limit("Max processes", 1024), "LimitNPROC"),
    Case("7.3: nofile", "runtime.process-limits", WARN, _limit("Max open files", 1024), "Max open files 1024"),
    Case(
        "7.3: file-nr",
        "runtime.process-limits",
        WARN,
        lambda m: m.write("/proc/sys/fs/file-nr", "99000\t0\t100000\n"),
        "whole system",
    ),
    Case(
        "article 4.3: driver insufficient for the runtime", "runtime.cuda-version", FAIL, _wants("13.0"), "insufficient"
    ),
    Case("article 4.3: minor-version compatibility", "runtime.cuda-version", WARN, _old_driver, "550.54.14"),
    Case(
        "7.3: NVIDIA_REQUIRE_CUDA",
        "runtime.cuda-version",
        FAIL,
        _wants(constraint="cuda>=12.9 brand=tesla,driver>=575,driver<576"),
        "not met",
    ),
)
