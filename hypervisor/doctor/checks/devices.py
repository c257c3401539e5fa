"""Device files: that they exist, are the right ones, and can be opened; and that no card is missing."""

from __future__ import annotations

import re

from hypervisor.doctor import pci
from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.bus import PRESENT, elsewhere
from hypervisor.doctor.checks.driver import MODULE, NVML
from hypervisor.doctor.process_files import has_open, waits_in
from hypervisor.doctor.subject import NodeSubject, Platform

NODES = "driver.device-files"
_MAJOR = 195
_INFORMATION = "/proc/driver/nvidia/gpus"
# Functions of the driver's modules in which a task waits; nvme_ and nvmem_ are others'.
_IN_DRIVER = re.compile(r"_?nv(?!me)|os_acquire_|uvm_|rm_")
# The driver's calls wait for each other in the kernel's own locks: whose task has a card open waits for the driver.
_FOR_LOCK = re.compile(r"_*(?:rwsem|down|mutex|rt_mutex|semaphore)")


@check(
    NODES,
    stage=Stage.DRIVER,
    looks_at="/dev/nvidia*, /proc/driver/nvidia/gpus/*/information, /proc/devices",
    source="article 2.1 and 3.3: ls -l /dev/nvidia*; nvidia-stack.md 7.1",
    requires=(MODULE,),
    gate=True,
)
def device_files(subject: NodeSubject) -> Outcome:
    """Is there a device file for the driver and for each card?"""
    if subject.platform is Platform.WSL:
        return passed("/dev/dxg is there, which is all that WSL 2 has")
    other = elsewhere(subject)
    if other is not None:
        return other
    majors = _majors(subject)
    problems = []
    expected = {"/dev/nvidiactl": 255} | {f"/dev/nvidia{minor}": minor for minor in _minors(subject)}
    for name, minor in expected.items():
        found = subject.root.node(name)
        if found is None:
            problems.append(f"{name} is missing")
        elif found.kind != "char":
            problems.append(f"{name} is a {found.kind} and no device")
        elif (found.major, found.minor) != (majors.get("nvidia", _MAJOR), minor):
            problems.append(f"{name} is {found.major}:{found.minor}, not {majors.get('nvidia', _MAJOR)}:{minor}")
    if not problems:
        return passed(f"{', '.join(expected)} are there")
    return failed(
        problems,
        "the module is loaded and its device files are missing or wrong: they are made by nvidia-modprobe and the"
        " driver's libraries, not by the kernel, so that they may be absent until the first use",
        "run 'nvidia-modprobe -c 0' (or nvidia-smi) as root, and enable nvidia-persistenced so that it is done at"
        " each start; remove files of wrong numbers first",
    )


@check(
    "driver.unified-memory",
    stage=Stage.DRIVER,
    looks_at="/dev/nvidia-uvm, /proc/modules, /proc/devices",
    source="article 2.1 and 3.3, which name NVreg_InitializeSystemMemoryAllocations; that has nothing to do with it",
    requires=(MODULE,),
    gate=True,
)
def unified_memory(subject: NodeSubject) -> Outcome:
    """Is the module for unified memory there, without which no CUDA program starts?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    loaded, found = "nvidia_uvm" in subject.kernel_modules, subject.root.node("/dev/nvidia-uvm")
    major = _majors(subject).get("nvidia-uvm")
    fits = found is not None and found.kind == "char" and major in (None, found.major)
    if loaded and fits:
        return passed("nvidia_uvm is loaded and /dev/nvidia-uvm is there")
    evidence = [
        f"module nvidia_uvm is {'loaded' if loaded else 'not loaded'}",
        f"/dev/nvidia-uvm is {'there' if found is not None else 'missing'}",
    ]
    if loaded and found is not None:
        return failed(
            [*evidence[:1], f"/dev/nvidia-uvm is {found.kind} {found.major}:{found.minor}, and the module has {major}"],
            "the module's number is chosen anew with each load, and this file is of an earlier one",
            "remove /dev/nvidia-uvm and /dev/nvidia-uvm-tools, then 'nvidia-modprobe -u -c 0'; containers that were"
            " given the old file have to be started anew",
        )
    return failed(
        evidence,
        "CUDA needs the module nvidia_uvm and its device file; NVML and nvidia-smi work without them",
        "run 'modprobe nvidia-uvm && nvidia-modprobe -u -c 0'; the option NVreg_InitializeSystemMemoryAllocations does"
        " not make this file (it zeroes host memory, and is on by default)",
    )


@check(
    "driver.access",
    stage=Stage.DRIVER,
    looks_at="opening /dev/nvidiactl",
    source="nvidia-stack.md 9.1 row 9 and 7.2: our own access lost is not the card lost",
    requires=(NODES,),
    gate=True,
)
def access(subject: NodeSubject) -> Outcome:
    """May this process open the driver?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    error = subject.root.open_error("/dev/nvidiactl")
    if not error:
        return passed("/dev/nvidiactl can be opened")
    evidence = [f"/dev/nvidiactl: {error}"]
    if error == "ETIMEDOUT":
        return failed(
            evidence,
            "the driver does not answer an open: a call hangs in it and holds its lock",
            "look for the hanging task (driver.hang), drain the node and restart it",
        )
    if error == "EPERM":
        return failed(
            evidence,
            "this container has lost its right to the device, by a 'systemctl daemon-reload' for instance; the cards"
            " may be well",
            "restart this container; use CDI or explicit device nodes instead of the legacy hook, so that systemd knows"
            " of the devices",
        )
    return failed(
        evidence,
        "the device file can't be opened by this user",
        "run as root, or in a container with the devices; mode and owner come from NVreg_DeviceFileMode and _UID",
    )


@check(
    "driver.parameters",
    stage=Stage.DRIVER,
    looks_at="/proc/driver/nvidia/params, /etc/modprobe.d/*.conf",
    source="article 2.1 and 4.1; nvidia-stack.md 7.4: the file is params, not parameters",
    requires=(MODULE,),
)
def parameters(subject: NodeSubject) -> Outcome:
    """Do the module's options take nothing away?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    evidence, cause, remedy = [], "", ""
    for line in (subject.root.text("/proc/driver/nvidia/params") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "ExcludedGpus" and value.strip(' "'):
            evidence.append(f"ExcludedGpus: {value.strip()}")
            cause, remedy = "the module's options exclude cards", "remove NVreg_ExcludedGpus to use them"
    for file in subject.root.names("/etc/modprobe.d"):
        text = subject.root.text(f"/etc/modprobe.d/{file}") or ""
        for line in text.splitlines():
            if re.match(r"\s*options\s+nvidia\s.*NVreg_EnablePCIEGen4=0", line):
                evidence.append(f"/etc/modprobe.d/{file}: {line.strip()}")
                cause = "PCIe generation 4 is turned off, which halves the bandwidth and moves no memory window"
                remedy = "remove the option; for cards that fail to start see pci.memory-windows"
    if evidence:
        return warned(evidence, cause, remedy)
    return passed("no option that takes something away; NVreg_InitializeSystemMemoryAllocations does not matter here")


@check(
    "driver.count",
    stage=Stage.DRIVER,
    looks_at="/sys/bus/pci/devices, /proc/driver/nvidia/gpus, NVML's list",
    source="article 4.1: four cards and two registered; nvidia-stack.md 9.1 rows 15 and 17: the lost-GPU detector",
    requires=(PRESENT, MODULE, NVML),
    gate=True,
)
def count(subject: NodeSubject) -> Outcome:
    """Has the driver every card that is on the bus?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    ours = {gpu.address for gpu in subject.gpus_on_bus if gpu.driver in ("", "nvidia")}
    driver = {name.lower() for name in subject.root.names(_INFORMATION)}
    missing = [f"{address} is on the bus and not in {_INFORMATION}" for address in sorted(ours - driver)]
    gone = [f"{address} is known to the driver and not on the bus" for address in sorted(driver - _on_bus(subject))]
    if subject.facts is not None and not missing:
        told = {pci.kernel_address(gpu.pci_bus_id) for gpu in subject.facts.gpus if gpu.pci_bus_id}
        missing += [f"{address} is on the bus and not in NVML's list" for address in sorted(ours - told)]
    if not missing and not gone:
        return passed(f"{len(ours)} cards on the bus, and as many by the driver")
    return failed(
        [*missing, *gone],
        "a card is lost: it fell off the bus, failed to start, or the driver let go of it",
        "read driver.xid and driver.probe for the reason; drain the node and restart it from cold; if it comes again,"
        " the card, its power or its slot is at fault",
    )


@check(
    "driver.health",
    stage=Stage.DRIVER,
    looks_at="health and conditions of each GPU by the daemon",
    source="nvidia-stack.md 1.7, 9.1 rows 6, 7, 8 and 15; article 5.3: ECC",
    requires=(NVML,),
    gate=True,
)
def health(subject: NodeSubject) -> Outcome:
    """Is every GPU healthy?"""
    if subject.facts is None:
        return not_applicable(subject.unanswered)
    bad: list[str] = []
    weak: list[str] = []
    for gpu in subject.facts.gpus:
        if gpu.health in ("healthy", "draining"):
            continue
        reasons = "; ".join(f"{each.code}: {each.message}" for each in gpu.conditions) or "no reason given"
        (weak if gpu.health in ("degraded", "unknown") else bad).append(
            f"GPU {gpu.index} {gpu.uuid} is {gpu.health}: {reasons}"
        )
    if bad:
        return failed(
            [*bad, *weak],
            "a GPU can't be used",
            "lost: restart from cold; unhealthy: reset it after 'DetachGpu' (nvidia-smi --gpu-reset) or do what the"
            " recovery action says; blind: restart the daemon's container, the card may be well",
        )
    if weak:
        return warned(
            weak,
            "a GPU works with less than it should give, or has not told yet",
            "look at cooling and power for reduced clocks, and at the row remapper and links for the rest",
        )
    return passed(f"{len(subject.facts.gpus)} GPUs are healthy")


@check(
    "driver.hang",
    stage=Stage.DRIVER,
    looks_at="/proc/*/stat, /proc/*/wchan, /proc/*/fd",
    source="article 4.4; nvidia-stack.md 7.3 and 9.2 row 33: nvidia-smi hangs",
)
def hang(subject: NodeSubject) -> Outcome:
    """Does no task hang in the driver?"""
    found = []
    for process in subject.processes:
        if not process.hangs:
            continue
        waits = waits_in(subject.root, process.pid)
        in_driver = _IN_DRIVER.match(waits) or process.command.startswith(("nvidia", "nv-"))
        if in_driver or (_FOR_LOCK.match(waits) and has_open(subject.root, process.pid, "/dev/nvidia")):
            found.append(f"{process.pid} ({process.command}) waits in {waits or 'the kernel'}")
    if not found:
        return passed("no task waits without end in the driver")
    return warned(
        found,
        "a call hangs in the driver; it may hold the driver's lock, and others then hang with it",
        "look again in a minute: if the same task still waits, read driver.xid, drain the node and restart it",
    )


def _on_bus(subject: NodeSubject) -> set[str]:
    return {gpu.address for gpu in subject.gpus_on_bus}


def _minors(subject: NodeSubject) -> list[int]:
    """Device minors by the driver; by the number of cards where the driver does not say."""
    found = []
    for name in subject.root.names(_INFORMATION):
        match = re.search(
            r"^Device Minor:\s*(\d+)", subject.root.text(f"{_INFORMATION}/{name}/information") or "", re.M
        )
        if match:
            found.append(int(match.group(1)))
    return sorted(found) or list(range(len(subject.gpus_on_bus)))


def _majors(subject: NodeSubject) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in (subject.root.text("/proc/devices") or "").splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name.startswith("nvidia"):
            found.setdefault(name.replace("nvidia-frontend", "nvidia"), int(number))
    return found


CHECKS = (device_files, unified_memory, access, parameters, count, health, hang)
