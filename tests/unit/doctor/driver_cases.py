"""Faults of cards and driver: the article's first stage, nvidia-stack.md 7.3, 9.1 and 9.2, the handbook's libraries."""

from __future__ import annotations

from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.machines import BUS, DRIVER, LIBRARIES, SECURE_BOOT, UUIDS, Machine, condition, process

_PCI = "/sys/bus/pci/devices"
FIRST = f"{_PCI}/{BUS[0]}"


def _no_cards(machine: Machine) -> None:
    for address in BUS:
        machine.remove(f"{_PCI}/{address}/vendor")


def _audio_only(machine: Machine) -> None:
    for address in BUS:
        machine.write(f"{_PCI}/{address}/class", "0x040300\n")


def _bound(*drivers: str) -> object:
    def change(machine: Machine) -> None:
        for address, driver in zip(BUS, drivers, strict=False):
            machine.index.links[f"{_PCI}/{address}/driver"] = f"../../bus/pci/drivers/{driver}"

    return change


def _unloaded(machine: Machine) -> Machine:
    return machine.write("/proc/modules", "ext4 1 0 - Live 0x0\n")


def _secure_boot(machine: Machine) -> Machine:
    return _unloaded(machine).write(SECURE_BOOT, "\x06\x00\x00\x00\x01")


def _no_libraries(machine: Machine) -> None:
    for name in ("libnvidia-ml.so", "libcuda.so"):
        machine.remove(f"{LIBRARIES}/{name}.1")


def _upgraded(machine: Machine) -> None:
    for name in ("libnvidia-ml.so", "libcuda.so"):
        machine.remove(f"{LIBRARIES}/{name}.{DRIVER}").write(f"{LIBRARIES}/{name}.580.65.06", "")


def _old_driver(version: str) -> object:
    def change(machine: Machine) -> None:
        machine.told(driver_version=version).write("/sys/module/nvidia/version", f"{version}\n")
        for name in ("libnvidia-ml.so", "libcuda.so"):
            machine.remove(f"{LIBRARIES}/{name}.{DRIVER}").write(f"{LIBRARIES}/{name}.{version}", "")

    return change


def _lost_to_the_driver(machine: Machine) -> None:
    (machine.directory / f"proc/driver/nvidia/gpus/{BUS[1]}/information").unlink()
    (machine.directory / f"proc/driver/nvidia/gpus/{BUS[1]}").rmdir()


def _gone_from_bus(machine: Machine) -> None:
    machine.remove(f"{_PCI}/{BUS[1]}/vendor")
    machine.told(gpus=machine.facts.gpus[:1])  # type: ignore[union-attr]


def _xid(number: int, rest: str = "pid=1234, name=python") -> object:
    return lambda machine: machine.log(f"NVRM: Xid (PCI:0000:18:00): {number}, {rest}")


CASES = (
    Case("article 2.1: the kernel must see the card", "pci.gpu-present", FAIL, _no_cards, "passed through"),
    Case("7.1: class 0x0300 or 0x0302 is the truth", "pci.gpu-present", FAIL, _audio_only),
    Case("7.3: nouveau bound", "pci.driver-bound", FAIL, _bound("nouveau", "nouveau"), "blacklist nouveau"),
    Case("7.3: vfio-pci holds all", "pci.driver-bound", FAIL, _bound("vfio-pci", "vfio-pci"), "virtual machines"),
    Case("7.3: vfio-pci holds one", "pci.driver-bound", WARN, _bound("nvidia", "vfio-pci"), BUS[1]),
    Case(
        "article 4.1: probe fails with SR-IOV; 7.3: BAR sizes",
        "pci.memory-windows",
        FAIL,
        lambda m: (
            m.write(f"{FIRST}/resource", f"0x{0:016x} 0x{0:016x} 0x0000000000040200\n"),
            m.write(f"{FIRST}/sriov_numvfs", "4\n"),
        ),
        "Above 4G Decoding",
    ),
    Case(
        "3.3: PCI I/O region invalid",
        "pci.memory-windows",
        FAIL,
        lambda m: m.log("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:"),
    ),
    Case("7.1: link width", "pci.link-width", WARN, lambda m: m.write(f"{FIRST}/current_link_width", "8\n"), "8 of 16"),
    Case("7.1: link width", "pci.link-width", WARN, lambda m: m.write(f"{_PCI}/{BUS[1]}/current_link_width", "1\n")),
    Case(
        "article 2.1: disagrees about version of symbol",
        "driver.kernel-match",
        FAIL,
        lambda m: _unloaded(m).log("nvidia: disagrees about version of symbol module_layout"),
        "dkms",
    ),
    Case(
        "article 2.1: built for another kernel",
        "driver.kernel-match",
        FAIL,
        lambda m: _unloaded(m).log("nvidia: version magic '5.10.0 SMP' should be '5.15.0 SMP'"),
        "headers of the running kernel",
    ),
    Case("article 2.1 and 3.3: Secure Boot", "driver.secure-boot", FAIL, _secure_boot, "mokutil --import"),
    Case(
        "article 2.1: the kernel refuses unsigned modules",
        "driver.secure-boot",
        FAIL,
        lambda m: _unloaded(m).log(
            "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"
        ),
        "sign the module",
    ),
    Case("article 3.3: lsmod without nvidia", "driver.module-loaded", FAIL, _unloaded, "modprobe nvidia"),
    Case(
        "handbook: no driver installed",
        "driver.module-loaded",
        FAIL,
        lambda m: (m.index.links.clear(), _unloaded(m)),
        "install NVIDIA's packages",
    ),
    Case(
        "article 4.1: probe failed with error -1",
        "driver.probe",
        FAIL,
        lambda m: m.log("nvidia: probe of 0000:81:00.0 failed with error -1"),
    ),
    Case(
        "3.3: RmInitAdapter failed",
        "driver.probe",
        FAIL,
        lambda m: m.log("NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0x56:1474)"),
    ),
    Case("handbook: libnvidia-ml.so.1 not found; 9.2/22", "driver.library", FAIL, _no_libraries, "TF_NVML_LIB_PATH"),
    Case(
        "handbook: cuInit_fn != nullptr",
        "driver.library",
        FAIL,
        lambda m: m.remove(f"{LIBRARIES}/libcuda.so.1"),
        "libcuda",
    ),
    Case("9.2/23: packages upgraded under the module", "driver.version-match", FAIL, _upgraded, "rmmod"),
    Case(
        "9.2/26: host driver replaced",
        "driver.version-match",
        FAIL,
        lambda m: m.told(driver_version="580.65.06"),
        "580.65",
    ),
    Case(
        "9.2/23: two versions side by side",
        "driver.version-match",
        WARN,
        lambda m: m.write(f"{LIBRARIES}/libcuda.so.535.54.03", ""),
    ),
    Case("9.2/24: drivers 430 to 450 lack symbols", "driver.version-supported", FAIL, _old_driver("440.33.01")),
    Case("9.2/37: legacy drivers 340 and 390", "driver.version-supported", FAIL, _old_driver("390.157")),
    Case(
        "9.2/21: start failed, no GPUs",
        "driver.nvml",
        FAIL,
        lambda m: m.told(conditions=(condition("DriverNotLoaded"),), gpus=()),
    ),
    Case("9.2/33: nvidia-smi hangs", "driver.nvml", FAIL, lambda m: m.told(conditions=(condition("ReaderHung"),))),
    Case("handbook: no GPU found by a running hypervisor", "driver.nvml", FAIL, lambda m: m.told(gpus=())),
    Case(
        "article 2.1: /dev/nvidiactl is missing",
        "driver.device-files",
        FAIL,
        lambda m: m.remove("/dev/nvidiactl"),
        "nvidia-modprobe",
    ),
    Case(
        "7.3: major and minor numbers",
        "driver.device-files",
        FAIL,
        lambda m: m.char("/dev/nvidia1", 195, 0),
        "195:0, not",
    ),
    Case(
        "article 2.1: /dev/nvidia-uvm is missing; 7.4: not by NVreg_",
        "driver.unified-memory",
        FAIL,
        lambda m: m.remove("/dev/nvidia-uvm"),
        "modprobe nvidia-uvm",
    ),
    Case(
        "7.4: the node comes from the module nvidia-uvm",
        "driver.unified-memory",
        FAIL,
        lambda m: m.write("/proc/modules", "nvidia 1 0 - Live 0x0\n"),
        "not loaded",
    ),
    Case(
        "9.1/9: EPERM is our own access lost",
        "driver.access",
        FAIL,
        lambda m: m.char("/dev/nvidiactl", 195, 255, open_error="EPERM"),
        "restart this container",
    ),
    Case(
        "9.2/33: the driver hangs in open",
        "driver.access",
        FAIL,
        lambda m: m.char("/dev/nvidiactl", 195, 255, open_error="ETIMEDOUT"),
        "hang",
    ),
    Case(
        "article 4.1's options lower the link",
        "driver.parameters",
        WARN,
        lambda m: m.append(
            "/etc/modprobe.d/nvidia.conf", "options nvidia NVreg_EnablePCIEGen4=0 NVreg_UsePageAttributeTable=0\n"
        ),
        "halves the bandwidth",
    ),
    Case(
        "7.1: params is the file",
        "driver.parameters",
        WARN,
        lambda m: m.write("/proc/driver/nvidia/params", 'ExcludedGpus: "GPU-1"\n'),
    ),
    Case("9.1/15: on the bus, not with the driver", "driver.count", FAIL, _lost_to_the_driver, BUS[1]),
    Case("9.1/15: fell off the bus", "driver.count", FAIL, _gone_from_bus, "not on the bus"),
    Case(
        "article 4.1: the driver lists fewer",
        "driver.count",
        FAIL,
        lambda m: m.told(gpus=m.facts.gpus[:1]),  # type: ignore[union-attr]
        "NVML's list",
    ),
    Case(
        "9.1/6: uncorrectable ECC from before the start",
        "driver.health",
        FAIL,
        lambda m: m.gpu(1, health="unhealthy", conditions=(condition("GpuUnreadable", "row remap failed"),)),
        UUIDS[1],
    ),
    Case(
        "9.1/15: a lost GPU is kept and told",
        "driver.health",
        FAIL,
        lambda m: m.gpu(0, health="lost", conditions=(condition("GpuLost"),)),
        "GpuLost",
    ),
    Case(
        "9.1/7 and 8: one lost GPU is told, the others are not blamed",
        "driver.health",
        FAIL,
        lambda m: m.gpu(1, health="lost", conditions=(condition("GpuLost"),)),
        UUIDS[1],
    ),
    Case(
        "9.1/10: code 999 is vague and no verdict on the card",
        "driver.health",
        WARN,
        lambda m: m.gpu(0, health="unknown", conditions=(condition("GpuUnreadable", "unknown error (999)"),)),
        "999",
    ),
    Case(
        "9.1/9: blind is our own access, and not the card",
        "driver.health",
        FAIL,
        lambda m: m.gpu(0, health="blind", conditions=(condition("AccessDenied"),)),
        "the card may be well",
    ),
    Case(
        "1.7: hardware slowdown degrades",
        "driver.health",
        WARN,
        lambda m: m.gpu(0, health="degraded", conditions=(condition("ClocksReduced"),)),
        "cooling",
    ),
    Case(
        "1.5: state 2 with NVSwitches is not schedulable yet",
        "driver.fabric",
        FAIL,
        lambda m: m.gpu(1, allocatable=False, conditions=(condition("FabricNotReady", "in progress"),)),
        "the cards are not broken",
    ),
    Case(
        "1.5: NVSwitches and no fabric manager: error 802",
        "driver.fabric",
        FAIL,
        lambda m: m.write("/proc/driver/nvidia-nvswitch/devices/0000:c1:00.0/information", ""),
        "nvidia-fabricmanager",
    ),
    Case(
        "1.11: an unlicensed vGPU has throttled clocks",
        "driver.vgpu-licence",
        WARN,
        lambda m: m.gpu(0, health="degraded", conditions=(condition("VgpuUnlicensed", "no licence"),)),
        "ClientConfigToken has no token",
    ),
    Case(
        "1.11: licence state matters in a vGPU guest",
        "driver.vgpu-licence",
        WARN,
        lambda m: (
            m.write("/etc/nvidia/ClientConfigToken/client.tok", ""),
            m.gpu(1, health="degraded", conditions=(condition("VgpuUnlicensed", "expired"),)),
        ),
        "GPU 1",
    ),
    Case(
        "article 4.4 and 9.2/33: a task in D",
        "driver.hang",
        WARN,
        lambda m: process(m, 77, "python", state="D", wchan="nvidia_ioctl"),
        "77 (python)",
    ),
    Case("9.2/33: nvidia-smi hangs", "driver.hang", WARN, lambda m: process(m, 78, "nvidia-smi", state="D", wchan="0")),
    Case("9.1/3: 109 is a reset", "driver.xid", FAIL, _xid(109), "--gpu-reset"),
    Case("9.1/14: 62 that NVML missed", "driver.xid", FAIL, _xid(62), "--gpu-reset"),
    Case("3.1: 79 takes a restart of the machine", "driver.xid", FAIL, _xid(79, "GPU has fallen off the bus."), "cold"),
    Case("9.1/6: 48, a double-bit error", "driver.xid", FAIL, _xid(48)),
    Case("3.1: 54 is power or mechanics", "driver.xid", FAIL, _xid(54), "power cables"),
    Case("3.1: 74 is a link", "driver.xid", WARN, _xid(74), "NVLink"),
    Case("3.3: NVLink5, fatal", "driver.xid", FAIL, _xid(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08")),
    Case("9.1/2: an unknown number takes nothing away", "driver.xid", WARN, _xid(999)),
    Case(
        "3.3: without an Xid",
        "driver.fallen-off-bus",
        FAIL,
        lambda m: m.log("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."),
        "cold",
    ),
    Case(
        "3.3: with an Xid",
        "driver.fallen-off-bus",
        FAIL,
        lambda m: m.log("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ),
    Case(
        "3.3: SXid",
        "driver.nvswitch",
        WARN,
        lambda m: m.log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal"),
    ),
    Case(
        "3.3: SXid", "driver.nvswitch", WARN, lambda m: m.log("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal")
    ),
)
