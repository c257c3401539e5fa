"""Faults as they are met in the field, posed from the sources alone, and machines that are well and look otherwise."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.kubelet_cases import CHECKPOINT, PLUGIN_LOG, _set
from tests.unit.doctor.machines import (
    BUS,
    DRIVER,
    LIBRARIES,
    POD_UID,
    UUIDS,
    Machine,
    process,
    words,
)
from tests.unit.doctor.runtime_cases import _wants

_CONFIG = "/etc/kubernetes/kubelet/kubelet-config.json"
_OLD, _NEW = "/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"
POD_GROUP = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice"


def _cdi(driver: str) -> str:
    return (
        f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath:"
        f" {LIBRARIES}/libcuda.so.{driver}\n"
        "devices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
    )


def _registered(*devices: str) -> Any:
    text = json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": list(devices)}}})
    return lambda machine: machine.write(CHECKPOINT, text)


def _kubelet_elsewhere(**settings: Any) -> Any:
    """As some distributions start it: its configuration is JSON, and not below /var/lib/kubelet."""

    def change(machine: Machine) -> None:
        machine.remove("/var/lib/kubelet/config.yaml")
        machine.write("/proc/900/cmdline", words("/usr/bin/kubelet", "--config", _CONFIG, "--v=2"))
        machine.write(_CONFIG, json.dumps({"kind": "KubeletConfiguration", **settings}))

    return change


def _legacy(machine: Machine) -> None:
    machine.write("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-runtime]\nmode = "legacy"\n')


def _waiting(machine: Machine, pid: int, function: str, *files: str) -> Machine:
    process(machine, pid, "python", state="D", wchan=function)
    for number, file in enumerate(files):
        machine.write(f"/proc/{pid}/fd/{number}", "")
        machine.index.links[f"/proc/{pid}/fd/{number}"] = file
    return machine


def _beside_discovery(machine: Machine) -> None:
    """The chart's Pods for feature discovery have names that begin as the plugin's; this one sorts before it."""
    (machine.directory / PLUGIN_LOG[1:]).unlink()
    place = "/var/log/pods/nvidia-device-plugin_nvdp-nvidia-device-plugin"
    machine.write(f"{place}-gpu-feature-discovery-abcde_01/gfd/0.log", "Starting OS watcher.\n")
    machine.write(f"{place}-xk2p7_02/ctr/0.log", "Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND\n")


def _shared_by_four(machine: Machine) -> None:
    _registered(*(f"{uuid}::{each}" for uuid in UUIDS for each in range(4)))(machine)
    for which in ("capacity", "allocatable"):
        _set("nodes", "status", which, value={"nvidia.com/gpu": "8", "cpu": "64"})(machine)


def _tasks(group: str, most: str, now: str) -> Any:
    return lambda machine: machine.write(f"{group}/pids.max", f"{most}\n").write(f"{group}/pids.current", f"{now}\n")


NODE_CASES = (
    Case(
        "article 2.2: a new node on which the plugin has never run",
        "registration.plugin",
        FAIL,
        lambda m: m.remove(CHECKPOINT),
        "no resource is registered",
    ),
    Case(
        "7.3: the kubelet's checkpoint, damaged",
        "registration.plugin",
        WARN,
        lambda m: m.write(CHECKPOINT, '{"Data": {"RegisteredDevices": ["nvidia.com/gpu"]}}'),
        "damaged",
    ),
    Case(
        "article 4.1: one of two cards registered, and shared by four",
        "registration.count",
        FAIL,
        _registered(*(f"{UUIDS[0]}::{each}" for each in range(4))),
        UUIDS[1],
    ),
    Case(
        "article 4.5 and 2.2: half of the devices are not offered",
        "allocatable.node-object",
        WARN,
        _set("nodes", "status", "allocatable", value={"nvidia.com/gpu": "1", "cpu": "64"}),
        "unhealthy",
    ),
    Case("handbook: the plugin by its chart", "registration.plugin-log", FAIL, _beside_discovery, "LIBRARY_NOT_FOUND"),
    Case(
        "article 2.3: the gate in the file that the kubelet was given",
        "allocatable.feature-gate",
        FAIL,
        _kubelet_elsewhere(featureGates={"DevicePlugins": False}),
        _CONFIG,
    ),
    Case(
        "article 5.2: the policy in the file that the kubelet was given",
        "scheduling.topology-manager",
        WARN,
        lambda m: (
            _kubelet_elsewhere(topologyManagerPolicy="single-numa-node")(m),
            m.write(f"/sys/bus/pci/devices/{BUS[0]}/numa_node", "-1\n"),
        ),
        BUS[0],
    ),
    Case(
        "7.2: cgroup driver systemd in the file that the kubelet was given",
        "runtime.devices-kept",
        WARN,
        lambda m: (_kubelet_elsewhere(cgroupDriver="systemd")(m), _legacy(m)),
        "create-dev-char-symlinks",
    ),
    Case(
        "7.1 and 7.3: the number of nvidia-uvm is chosen anew with each load",
        "driver.unified-memory",
        FAIL,
        lambda m: m.replace("/proc/devices", "509 nvidia-uvm", "510 nvidia-uvm"),
        "of an earlier one",
    ),
    Case(
        "7.3: a task in rwsem that has a card open",
        "driver.hang",
        WARN,
        lambda m: _waiting(m, 79, "rwsem_down_write_slowpath", "/dev/null", "/dev/nvidia0"),
        "79 (python)",
    ),
    Case("7.3: a task in the module for unified memory", "driver.hang", WARN, lambda m: _waiting(m, 80, "uvm_ioctl")),
    Case(
        "7.2: later CDI folders win, and this one is old",
        "runtime.cdi-current",
        FAIL,
        lambda m: m.write(_NEW, _cdi("535.54.03")),
        _NEW,
    ),
    Case(
        "9.2/23: an image brings the libraries of another version",
        "driver.version-match",
        WARN,
        lambda m: m.log(
            "NVRM: API mismatch: the client has the version 535.54.03, but",
            f"NVRM: this kernel module has the version {DRIVER}.  Please",
        ),
        "LD_LIBRARY_PATH",
    ),
    Case(
        "3.3: off the bus in the words of older drivers",
        "driver.fallen-off-bus",
        FAIL,
        lambda m: m.log("NVRM: GPU at 0000:18:00.0 has fallen off the bus."),
        "cold",
    ),
    Case(
        "3.3: rm_init_adapter failed",
        "driver.probe",
        FAIL,
        lambda m: m.log("NVRM: rm_init_adapter failed for device bearing minor number 0"),
    ),
    Case(
        "article 4.3: CUDA newer than any table of ours",
        "runtime.cuda-version",
        FAIL,
        _wants("99.1"),
        "to one that has",
    ),
    Case("article 4.3: a newer minor than any table", "runtime.cuda-version", WARN, _wants("12.98"), "minor-version"),
    Case(
        "9.2/22: the toolkit's configuration is none",
        "runtime.toolkit",
        FAIL,
        lambda m: m.write("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-runtime\nmode = "cdi"\n'),
        "every container",
    ),
)
POD_CASES = (
    Case(
        "article 4.4: as many tasks as the Pod may have",
        "pod.threads",
        WARN,
        _tasks(POD_GROUP, "100", "100"),
        "podPidsLimit",
    ),
    Case(
        "article 4.4: as many tasks as the container may have",
        "pod.threads",
        WARN,
        _tasks(f"{POD_GROUP}/cri-containerd-{'3f' * 32}.scope", "64", "63"),
        "63 tasks of at most 64",
    ),
)
CLUSTER_CASES = (
    Case(
        "handbook: the cluster is not Running",
        "cluster.phases",
        FAIL,
        lambda m: m.add("clusters", {"metadata": {"name": "c"}, "status": {"phase": "Pending"}}),
        "TensorFusionCluster c is Pending",
    ),
    Case(
        "handbook: a GPUNode stays Pending",
        "cluster.phases",
        FAIL,
        _set("gpunodes", "status", "phase", value="Pending"),
        "GPUNode gpu-node-01",
    ),
    Case(
        "handbook: PHASE of a GPU",
        "cluster.phases",
        FAIL,
        _set("gpus", "status", "phase", value="Unknown"),
        "is Unknown",
    ),
    Case(
        "handbook: a pool that is being changed",
        "cluster.phases",
        WARN,
        _set("gpupools", "status", "phase", value="Updating"),
    ),
    Case(
        "handbook: kubectl get gpu lacks cards",
        "cluster.gpu-objects",
        FAIL,
        lambda m: (_set("gpunodes", "status", "totalGPUs", value=2)(m), m.objects["gpus"].pop()),
        "has 2 GPUs, and 1 have an object",
    ),
    Case(
        "handbook: fewer cards than feature discovery has counted",
        "cluster.gpu-objects",
        FAIL,
        _set("nodes", "metadata", "labels", value={"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "4"}),
        "has 4 GPUs, and 2 have an object",
    ),
    Case(
        "handbook: the pool's total is zero",
        "cluster.gpu-objects",
        FAIL,
        _set("gpupools", "status", "totalGPUs", value=0),
        "GPUPool default has no GPU",
    ),
    Case(
        "handbook: CAPACITY without TFLOPS",
        "cluster.gpu-objects",
        WARN,
        _set("gpus", "status", "capacity", value={"vram": "80Gi"}, at=1),
        "fullModelName",
    ),
    Case(
        "handbook: USED_BY",
        "cluster.gpu-owners",
        WARN,
        _set("gpus", "status", "usedBy", value="nvidia-device-plugin"),
        "never granted",
    ),
    Case("handbook: USED_BY", "cluster.gpu-owners", WARN, _set("gpus", "status", "usedBy", value="unknown", at=1)),
)
# Machines that are well.
WELL: tuple[tuple[str, Any], ...] = (
    (
        "7.2: the later CDI folder is right, and the earlier is of nobody's use",
        lambda m: m.write(_OLD, _cdi("535.54.03")).write(_NEW, _cdi(DRIVER)),
    ),
    ("a disk is slow", lambda m: _waiting(m, 81, "nvme_wait_freeze")),
    ("a data loader waits for its storage", lambda m: _waiting(m, 82, "nfs_wait_bit_killable", "/dev/nvidia0")),
    ("a lock of somebody else", lambda m: _waiting(m, 83, "rwsem_down_read_slowpath", "/dev/null")),
    ("all cards are shared by four", _shared_by_four),
    ("the kubelet's configuration lies elsewhere", _kubelet_elsewhere(cgroupDriver="systemd")),
    (
        "the plugin failed once and has registered since",
        lambda m: m.write(PLUGIN_LOG, "Failed to initialize NVML: Unknown Error\nRegistered device plugin for 'x'\n"),
    ),
    (
        "what the kernel said before the module was loaded anew",
        lambda m: m.log(
            "nvidia: disagrees about version of symbol module_layout",
            "NVRM: API mismatch: the client has the version 570.86.15, but",
            "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
            "nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
        ),
    ),
    ("an unlimited number of tasks", _tasks(POD_GROUP, "max", "4000")),
)
