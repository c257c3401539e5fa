"""The driver: its kernel module, its libraries, and whether both are of one version."""

from __future__ import annotations

import re

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.bus import BOUND, PRESENT, elsewhere
from hypervisor.doctor.cuda import version
from hypervisor.doctor.kernel_log import matching, since_load
from hypervisor.doctor.library_variables import files_named
from hypervisor.doctor.subject import NodeSubject, Platform
from hypervisor.gpu.library import KNOWN_DIRECTORIES

MODULE = "driver.module-loaded"
KERNEL_MATCH = "driver.kernel-match"
SECURE_BOOT = "driver.secure-boot"
LIBRARY = "driver.library"
VERSION_MATCH = "driver.version-match"
NVML = "driver.nvml"
_SECURE_BOOT_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Before it NVML lacks calls that its wrappers use at every start (nvidia-stack.md 9.2 rows 24, 30, 37).
_LEAST_DRIVER = (450,)
_VERSIONED = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(\d+\.\d+(?:\.\d+)*)$")


@check(
    KERNEL_MATCH,
    stage=Stage.DRIVER,
    looks_at="the kernel's log",
    source="article 2.1: a module built for another kernel",
    requires=(PRESENT,),
    gate=True,
)
def kernel_match(subject: NodeSubject) -> Outcome:
    """Was the module built for the kernel that runs?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    lines = matching(
        since_load(subject.kernel_log or ()),
        r"nvidia\w*: disagrees about version of symbol",
        r"nvidia\w*: version magic .* should be",
        r"nvidia\w*: Unknown symbol",
    )
    if not lines:
        return passed("the kernel complains of no symbol of the module")
    return failed(
        lines,
        "the NVIDIA module was built for another kernel than the one that runs",
        "install the headers of the running kernel (uname -r) and build the module anew: 'dkms autoinstall', or"
        " reinstall the driver; then 'modprobe nvidia'",
    )


@check(
    SECURE_BOOT,
    stage=Stage.DRIVER,
    looks_at="the SecureBoot variable of the firmware, /sys/kernel/security/lockdown, /proc/modules",
    source="article 2.1 and 3.3, which turn Secure Boot off; signing keeps it on",
    requires=(PRESENT,),
    gate=True,
)
def secure_boot(subject: NodeSubject) -> Outcome:
    """Does Secure Boot keep the module out?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    rejected = matching(
        subject.kernel_log or (),
        r"Loading of unsigned module is rejected",
        r"Lockdown: .*unsigned module loading is restricted",
        r"nvidia\w*: module verification failed.*rejected",
        r"Loading of module with unavailable key is rejected",
    )
    enabled = (subject.root.text(_SECURE_BOOT_VARIABLE) or "").endswith("\x01")
    lockdown = re.search(r"\[(\w+)\]", subject.root.text("/sys/kernel/security/lockdown") or "")
    if "nvidia" in subject.kernel_modules or not (enabled or rejected):
        return passed("Secure Boot is on and the module is loaded" if enabled else "Secure Boot is off")
    evidence = [
        *(["Secure Boot is on"] if enabled else []),
        *([f"lockdown: {lockdown.group(1)}"] if lockdown else []),
        "the module nvidia is not loaded",
        *rejected,
    ]
    return failed(
        evidence,
        "Secure Boot loads signed modules only, and the NVIDIA module is not signed with a key that the machine knows",
        "install the distribution's signed driver packages, or sign the module and enrol the key ('mokutil --import"
        " KEY.der', then confirm at the next start); turning Secure Boot off also works and gives it up",
    )


@check(
    MODULE,
    stage=Stage.DRIVER,
    looks_at="/proc/modules, /sys/module/nvidia",
    source="article 2.1 and 3.3: lsmod; handbook: CUDA or NVML errors, no driver",
    requires=(PRESENT, BOUND, KERNEL_MATCH, SECURE_BOOT),
    gate=True,
)
def module_loaded(subject: NodeSubject) -> Outcome:
    """Is the kernel module nvidia loaded?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    if "nvidia" in subject.kernel_modules:
        return passed(f"nvidia {subject.module_version}".strip())
    return failed(
        ["/proc/modules has no nvidia"],
        "the NVIDIA kernel module is not installed or not loaded",
        "run 'modprobe nvidia' and read what it says; without a driver, install NVIDIA's packages for this"
        " distribution, or the driver container of the GPU Operator",
    )


@check(
    "driver.probe",
    stage=Stage.DRIVER,
    looks_at="the kernel's log",
    source="article 4.1; nvidia-stack.md 3.3: lines without Xid",
    requires=(MODULE,),
    gate=True,
)
def probe(subject: NodeSubject) -> Outcome:
    """Could the driver start every card?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    lines = matching(
        since_load(subject.kernel_log or ()),
        r"NVRM: (?:GPU \S+: )?(?:RmInitAdapter|rm_init_adapter) failed",
        r"NVRM: The NVIDIA GPU \S+ \(PCI ID",
        r"NVRM: The NVIDIA probe routine failed for \d+ device",
        r"nvidia:? probe of \S+ failed with error",
        r"nvidia \S+: probe with driver nvidia failed",
    )
    if not lines:
        return passed("no card failed to start")
    return failed(
        lines,
        "the driver saw a card and could not start it: its memory windows, its power, its firmware, or a driver that"
        " does not know it",
        "see pci.memory-windows first; then 'nvidia-bug-report.sh', the supported models of this driver version, and"
        " whether the card works after a cold start",
    )


@check(
    LIBRARY,
    stage=Stage.DRIVER,
    looks_at="libnvidia-ml.so.1 and libcuda.so.1 in the usual folders, or where the daemon's variables lead",
    source="handbook: libnvidia-ml.so.1 cannot open; nvidia-stack.md 9.2 row 22",
    requires=(MODULE,),
    gate=True,
)
def library(subject: NodeSubject) -> Outcome:
    """Are the driver's libraries installed?"""
    if subject.platform is Platform.SIMULATED:
        return not_applicable("the GPUs are simulated: their libraries lie in no search path")
    wanted = ["libnvidia-ml.so.1", "libcuda.so.1"]
    if subject.platform is Platform.TEGRA:
        wanted = ["libcuda.so.1"]
    found = {name: [] for name in wanted}  # type: dict[str, list[str]]
    for directory in _library_folders(subject):
        for name in wanted:
            if subject.root.node(f"{directory}/{name}") is not None:
                found[name].append(directory)
    for name, path in files_named(subject).items():
        if name in found:
            found[name].insert(0, path)
    missing = [name for name, places in found.items() if not places]
    if not missing:
        return passed(*(f"{name} in {places[0]}" for name, places in found.items()))
    return failed(
        [f"no {' and no '.join(missing)} in {', '.join(_library_folders(subject))}"],
        "the driver's user libraries are not installed, or lie where nobody looks",
        "install the driver's library packages (libnvidia-compute, nvidia-driver-cuda-libs); where they lie elsewhere,"
        " set TF_NVML_LIB_PATH and TF_CUDA_LIB_PATH to the files that end in .so.1; in a container, install the NVIDIA"
        " Container Toolkit",
    )


@check(
    VERSION_MATCH,
    stage=Stage.DRIVER,
    looks_at="/sys/module/nvidia/version, the libraries' file names, NVML's answer, the kernel's log",
    source="nvidia-stack.md 7.3 and 9.2 rows 23 and 26: an upgrade under a loaded module",
    requires=(MODULE, LIBRARY),
    gate=True,
)
def version_match(subject: NodeSubject) -> Outcome:
    """Are kernel module and libraries of one version?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    module = subject.module_version
    if not module:
        return not_applicable("the module tells no version")
    libraries = sorted(
        {
            match.group(1)
            for directory in _library_folders(subject)
            if "/run/nvidia/driver" not in directory
            for name in subject.root.names(directory)
            if (match := _VERSIONED.match(name))
        }
    )
    told = subject.facts.driver_version if subject.facts is not None else ""
    evidence = [f"module {module}", f"libraries {', '.join(libraries) or 'without a version'}"]
    if told:
        evidence.append(f"NVML says {told}")
    mismatch = matching(since_load(subject.kernel_log or ()), r"NVRM: API mismatch")
    if (libraries and module not in libraries) or (told and told != module):
        return failed(
            [*evidence, *mismatch],
            "the driver's packages were upgraded while the old module stayed loaded: new processes fail with"
            " 'driver/library version mismatch', those that run go on",
            "drain the node and restart it, or reload the module when nothing uses it ('rmmod nvidia_uvm nvidia_drm"
            " nvidia_modeset nvidia && modprobe nvidia'); keep unattended upgrades from the driver's packages",
        )
    if len(libraries) > 1:
        return warned(
            evidence,
            "libraries of several driver versions lie side by side, and which one is used depends on the loader",
            "remove the packages of the versions that are not loaded, then run ldconfig",
        )
    if mismatch:
        return warned(
            [*evidence, *mismatch],
            "a program came with libraries of another driver version than the module: those of an image or of a folder"
            " of its own, for the node's are right",
            "take the driver's libraries out of that image (the NVIDIA Container Toolkit mounts the node's), and see"
            " LD_LIBRARY_PATH; a container from before an upgrade has to be made anew",
        )
    return passed(*evidence)


@check(
    "driver.version-supported",
    stage=Stage.DRIVER,
    looks_at="/sys/module/nvidia/version or NVML's answer",
    source="nvidia-stack.md 9.2 rows 24, 25, 30 and 37: symbols that old drivers lack",
    requires=(MODULE,),
    gate=True,
)
def version_supported(subject: NodeSubject) -> Outcome:
    """Is the driver new enough?"""
    found = version(subject.driver_version)
    if not found:
        return not_applicable("no driver version is known")
    if found < _LEAST_DRIVER:
        return failed(
            [f"driver {subject.driver_version}"],
            "this driver lacks calls that NVML's users make at every start ('symbol lookup error', AttributeError)",
            "install a driver of branch 470 or newer; 535 and newer tell health in full",
        )
    return passed(f"driver {subject.driver_version}")


@check(
    NVML,
    stage=Stage.DRIVER,
    looks_at="what NVML answered the daemon or the gpu-reader",
    source="article 3.3: nvidia-smi -L; nvidia-stack.md 9.2 rows 21, 23, 31 and 33",
    requires=(MODULE, LIBRARY, VERSION_MATCH),
    gate=True,
)
def nvml(subject: NodeSubject) -> Outcome:
    """Does NVML answer and list GPUs?"""
    if subject.facts is None:
        return not_applicable(subject.unanswered)
    codes = {"NvmlNotFound", "DriverNotLoaded", "NvmlFailed", "NoGpus", "ReaderHung", "ReaderRestarting", "Starting"}
    broken = [each for each in subject.facts.conditions if each.code in codes and each.status == "True"]
    if broken:
        return failed(
            [f"{each.code}: {each.message}" for each in broken],
            "the driver's management library gives no answer that the daemon can use",
            "what the message says; afterwards 'nvidia-smi -L' must list every card",
        )
    if not subject.facts.gpus:
        return failed(
            [f"{subject.facts.source} lists no GPU"],
            "NVML answers and has no GPU",
            "see pci.gpu-present and driver.count",
        )
    return passed(f"{len(subject.facts.gpus)} GPUs by {subject.facts.source}")


def _library_folders(subject: NodeSubject) -> tuple[str, ...]:
    return tuple(name for name in KNOWN_DIRECTORIES if subject.root.node(name) is not None) or KNOWN_DIRECTORIES[:3]


CHECKS = (kernel_match, secure_boot, module_loaded, probe, library, version_match, version_supported, nvml)
