"""Machines made of files: a healthy one, to be broken in one place by each test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypervisor.doctor.cuda import CudaRequirement
from hypervisor.doctor.facts import AllocationFacts, ConditionFacts, GpuFacts, GrantFacts, NodeFacts
from hypervisor.doctor.kubernetes import Objects
from hypervisor.doctor.root import INDEX, KERNEL_LOG, Index, Node, Root
from hypervisor.doctor.subject import NodeSubject

GIB = 2**30
DRIVER = "570.86.15"
BUS = ("0000:18:00.0", "0000:2a:00.0")
UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-11111111-0000-4000-8000-000000000000")
POD_UID = "6f0c2a2e-1b1f-4d6c-9a55-3d1d6a3a2f10"
POD_PID = 4242
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LIMITS = "/run/tensor-fusion/shm/by-uid/uid-a"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CONTAINER = f"/proc/{POD_PID}/root"
MAPS = (
    "7f0000000000-7f0000100000 r-xp 00000000 08:01 11 /tensor-fusion-limiter/libcuda_limiter.so\n"
    "7f0000200000-7f0000300000 r-xp 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15\n"
)


@dataclass
class Machine:
    """Files, index, facts and objects; each may be changed before subject() is asked for."""

    directory: Path
    index: Index = field(default_factory=Index)
    facts: NodeFacts | None = None
    objects: dict[str, list[Any]] = field(default_factory=dict)
    requirement: CudaRequirement | None = None

    def write(self, name: str, text: str) -> Machine:
        path = self.directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def append(self, name: str, text: str) -> Machine:
        path = self.directory / name.lstrip("/")
        return self.write(name, (path.read_text() if path.exists() else "") + text)

    def replace(self, name: str, old: str, new: str) -> Machine:
        text = (self.directory / name.lstrip("/")).read_text()
        assert old in text, f"{name} has no {old!r}"
        return self.write(name, text.replace(old, new))

    def size(self, name: str, count: int) -> Machine:
        path = self.directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(count)
        return self

    def remove(self, name: str) -> Machine:
        path = self.directory / name.lstrip("/")
        if name in self.index.nodes:
            del self.index.nodes[name]
        else:
            path.unlink()
        return self

    def char(self, name: str, major: int, minor: int, **more: Any) -> Machine:
        self.index.nodes[name] = Node(kind="char", mode=0o666, major=major, minor=minor, **more)
        return self

    def log(self, *lines: str) -> Machine:
        return self.append(KERNEL_LOG, "".join(f"[    5.000000] {line}\n" for line in lines))

    def gpu(self, index: int, **changes: Any) -> Machine:
        assert self.facts is not None
        gpus = list(self.facts.gpus)
        gpus[index] = msgspec.structs.replace(gpus[index], **changes)
        return self.told(gpus=tuple(gpus))

    def told(self, **changes: Any) -> Machine:
        assert self.facts is not None
        self.facts = msgspec.structs.replace(self.facts, **changes)
        return self

    def allocation(self, **changes: Any) -> Machine:
        assert self.facts is not None
        first = msgspec.structs.replace(self.facts.allocations[0], **changes)
        return self.told(allocations=(first, *self.facts.allocations[1:]))

    def grant(self, **changes: Any) -> Machine:
        assert self.facts is not None
        first = msgspec.structs.replace(self.facts.allocations[0].grants[0], **changes)
        return self.allocation(grants=(first,))

    def object(self, kind: str, change: Callable[[Any], Any], at: int = 0) -> Machine:
        change(self.objects[kind][at])
        return self

    def add(self, kind: str, *objects: Any) -> Machine:
        self.objects.setdefault(kind, []).extend(objects)
        return self

    def unreadable(self, name: str) -> Machine:
        self.index.unreadable[name] = "Permission denied"
        return self

    def root(self) -> Root:
        self.write(INDEX, msgspec.json.encode(self.index).decode())
        return Root(self.directory)

    def subject(self) -> NodeSubject:
        return NodeSubject(
            root=self.root(),
            facts=self.facts,
            facts_absent="" if self.facts else "nobody was asked",
            objects=Objects(self.objects),
            requirement=self.requirement,
            now=1_800_000_000.0,
        )


def condition(code: str, message: str = "it is so") -> ConditionFacts:
    return ConditionFacts(type=code, code=code, message=message)


def process(machine: Machine, pid: int, command: str, *, state: str = "S", threads: int = 4, **files: str) -> Machine:
    """A process; files by their name below /proc/PID."""
    fields = [state, "1", *["0"] * 15, str(threads), "0", "1000", *["0"] * 10]
    machine.write(f"/proc/{pid}/stat", f"{pid} ({command}) {' '.join(fields)}\n")
    for name, text in files.items():
        machine.write(f"/proc/{pid}/{name}", text)
    return machine


def words(*parts: str) -> str:
    return "".join(f"{part}\0" for part in parts)


def event(reason: str, message: str, *, kind: str = "Pod", name: str = "train", count: int = 1) -> dict[str, Any]:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": count,
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
    }


def healthy(directory: Path) -> Machine:
    """A node with two H100, driver, kubelet, device plugin, containerd with CDI, the daemon and one Pod."""
    machine = Machine(directory)
    _cards(machine)
    _driver(machine)
    _kubelet(machine)
    _runtime(machine)
    _pod(machine)
    _objects(machine)
    machine.facts = _facts()
    return machine


def _cards(machine: Machine) -> None:
    for number, address in enumerate(BUS):
        place = f"/sys/bus/pci/devices/{address}"
        machine.write(f"{place}/vendor", "0x10de\n").write(f"{place}/class", "0x030200\n")
        machine.write(f"{place}/device", "0x2330\n").write(f"{place}/numa_node", f"{number}\n")
        machine.write(f"{place}/current_link_width", "16\n").write(f"{place}/max_link_width", "16\n")
        machine.write(f"{place}/sriov_numvfs", "0\n")
        machine.write(
            f"{place}/resource",
            "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
        )
        machine.index.links[f"{place}/driver"] = "../../../../bus/pci/drivers/nvidia"
        machine.write(
            f"/proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {UUIDS[number]}\nDevice Minor: \t {number}\n",
        )
        machine.char(f"/dev/nvidia{number}", 195, number)
    # A network card, which is nobody's GPU.
    machine.write("/sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
    machine.write("/sys/bus/pci/devices/0000:00:01.0/class", "0x020000\n")


def _driver(machine: Machine) -> None:
    machine.write("/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 2 - Live 0x0\n")
    machine.write("/sys/module/nvidia/version", f"{DRIVER}\n")
    machine.write(
        "/proc/devices", "Character devices:\n  1 mem\n195 nvidia\n509 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
    )
    machine.write("/proc/driver/nvidia/params", 'InitializeSystemMemoryAllocations: 1\nExcludedGpus: ""\n')
    machine.write("/etc/modprobe.d/nvidia.conf", "options nvidia NVreg_PreserveVideoMemoryAllocations=1\n")
    machine.write(SECURE_BOOT, "\x06\x00\x00\x00\x00")
    machine.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    machine.char("/dev/nvidiactl", 195, 255).char("/dev/nvidia-uvm", 509, 0)
    for name in ("libnvidia-ml.so", "libcuda.so"):
        machine.write(f"{LIBRARIES}/{name}.1", "").write(f"{LIBRARIES}/{name}.{DRIVER}", "")
    machine.log("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15", "eth0: link up")
    machine.write("/etc/hostname", "gpu-node-01\n")
    machine.write("/proc/net/tcp", "  sl  local_address rem_address   st\n")
    machine.write("/proc/sys/fs/file-nr", "4000\t0\t9223372036854775807\n")


def _kubelet(machine: Machine) -> None:
    plugins = "/var/lib/kubelet/device-plugins"
    machine.index.nodes[f"{plugins}/kubelet.sock"] = Node(kind="socket", mode=0o755)
    checkpoint = {"Data": {"RegisteredDevices": {"nvidia.com/gpu": list(UUIDS)}}, "Checksum": 1}
    machine.write(f"{plugins}/kubelet_internal_checkpoint", json.dumps(checkpoint))
    machine.write("/var/lib/kubelet/config.yaml", "cgroupDriver: systemd\ntopologyManagerPolicy: none\n")
    process(machine, 900, "kubelet", cmdline=words("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"))
    machine.write(
        "/var/log/pods/kube-system_nvidia-device-plugin-x_0a/nvidia-device-plugin/0.log",
        "2026-11-30T10:00:00Z stderr F Starting FS watcher.\n"
        "2026-11-30T10:00:01Z stderr F Registered device plugin for 'nvidia.com/gpu' with Kubelet\n",
    )


def _runtime(machine: Machine) -> None:
    machine.write(
        "/etc/containerd/config.toml",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n"
        "runtime_type = 'io.containerd.runc.v2'\n"
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n"
        "BinaryName = '/usr/bin/nvidia-container-runtime'\n",
    )
    machine.write("/usr/bin/nvidia-container-runtime", "")
    machine.write("/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.17.4", "")
    machine.write("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-runtime]\nmode = "auto"\n')
    machine.write(
        "/etc/cdi/nvidia.yaml",
        f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath:"
        f" {LIBRARIES}/libcuda.so.{DRIVER}\n"
        "devices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n",
    )
    limits = "Limit                     Soft Limit           Hard Limit           Units\n"
    limits += "Max processes             unlimited            unlimited            processes\n"
    limits += "Max open files            1048576              1048576              files\n"
    process(machine, 800, "containerd", cmdline=words("/usr/bin/containerd"), limits=limits)


def _pod(machine: Machine) -> None:
    """ml/train, softly limited, as a process of this node sees it."""
    cgroup = f"0::/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{'3f' * 32}.scope\n"
    environ = words(
        "POD_NAMESPACE=ml",
        "POD_NAME=train",
        "TF_ISOLATION_MODE=soft",
        "TF_SHM_PATH=/run/tensor-fusion/shm/shm",
        f"CUDA_VISIBLE_DEVICES={UUIDS[0]}",
        "CUDA_VERSION=12.4.1",
        "API_TOKEN=hunter2",
    )
    limits = "Max processes             65536                65536                processes\n"
    process(
        machine,
        POD_PID,
        "python",
        cgroup=cgroup,
        environ=environ,
        maps=MAPS,
        limits=limits,
        wchan="0",
        cmdline=words("python", "train.py"),
    )
    machine.write(f"{CONTAINER}/etc/ld.so.preload", "/tensor-fusion-limiter/$LIB/libcuda_limiter.so\n")
    machine.write(f"{CONTAINER}/tensor-fusion-limiter/lib64/libcuda_limiter.so", "")
    machine.write(f"{CONTAINER}/usr/lib/x86_64-linux-gnu/libcuda.so.1", "")
    machine.write(f"{CONTAINER}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "")
    machine.size(f"{CONTAINER}/run/tensor-fusion/shm/shm", 262_144)
    machine.size(f"{CONTAINER}/run/tensor-fusion/shm/usage", 1_048_576)
    machine.char(f"{CONTAINER}/dev/nvidiactl", 195, 255).char(f"{CONTAINER}/dev/nvidia0", 195, 0)
    machine.char(f"{CONTAINER}/dev/nvidia-uvm", 509, 0)
    machine.write(f"/var/log/pods/ml_train_{POD_UID}/main/0.log", "2026-11-30T10:00:00Z stdout F epoch 1\n")
    machine.size(f"{LIMITS}/shm", 262_144).size(f"{LIMITS}/usage", 1_048_576)


def _objects(machine: Machine) -> None:
    resources = {"nvidia.com/gpu": "2", "cpu": "64"}
    machine.add(
        "nodes",
        {
            "metadata": {"name": "gpu-node-01", "labels": {"nvidia.com/gpu.present": "true"}},
            "spec": {},
            "status": {
                "capacity": dict(resources),
                "allocatable": dict(resources),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    )
    machine.add(
        "pods",
        {
            "metadata": {
                "name": "train",
                "namespace": "ml",
                "uid": POD_UID,
                "labels": {"tensor-fusion.ai/enabled": "true", "tensor-fusion.ai/gpupool": "default"},
                "annotations": {
                    "tensor-fusion.ai/tflops-request": "100",
                    "tensor-fusion.ai/vram-request": "20Gi",
                    "tensor-fusion.ai/isolation": "soft",
                },
            },
            "spec": {
                "nodeName": "gpu-node-01",
                "schedulerName": "tensor-fusion-scheduler",
                "initContainers": [{"name": "init-soft-limiter"}, {"name": "tf-soft-preload-0"}],
                "containers": [{"name": "main", "resources": {}}],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
            },
        },
        {
            "metadata": {
                "name": "hypervisor-gpu-node-01",
                "namespace": "tensor-fusion-sys",
                "labels": {"tensor-fusion.ai/component": "hypervisor"},
            },
            "spec": {"nodeName": "gpu-node-01", "containers": [{"name": "hypervisor"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "hypervisor", "ready": True}]},
        },
        {
            "metadata": {
                "name": "tensor-fusion-sys-controller-0",
                "namespace": "tensor-fusion-sys",
                "labels": {"tensor-fusion.ai/component": "operator"},
            },
            "spec": {"nodeName": "gpu-node-01", "containers": [{"name": "controller"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "controller", "ready": True}]},
        },
    )
    machine.add("events")
    machine.add("webhooks", {"metadata": {"name": "tensor-fusion-sys-mutating-webhook"}})
    machine.add("gpupools", {"metadata": {"name": "default"}, "spec": {}, "status": {"phase": "Running"}})
    machine.add("gpunodes", {"metadata": {"name": "gpu-node-01"}, "status": {"phase": "Running"}})
    machine.add(
        "gpus",
        *(
            {
                "metadata": {"name": uuid.lower(), "labels": {}},
                "status": {
                    "gpuModel": "NVIDIA H100 80GB HBM3",
                    "phase": "Running",
                    "usedBy": "tensor-fusion",
                    "capacity": {"tflops": "989", "vram": "80Gi"},
                    "nodeSelector": {"kubernetes.io/hostname": "gpu-node-01"},
                },
            }
            for uuid in UUIDS
        ),
    )
    machine.add(
        "daemonsets",
        {
            "metadata": {"name": "nvidia-device-plugin", "namespace": "kube-system"},
            "status": {"desiredNumberScheduled": 1, "numberReady": 1},
        },
    )
    machine.add("connections").add("workloads").add("replicasets")


def _facts() -> NodeFacts:
    return NodeFacts(
        name="gpu-node-01",
        driver_version=DRIVER,
        cuda_version="12.8",
        hypervisor_version="0.1.0",
        gpus=tuple(
            GpuFacts(
                uuid=UUIDS[index],
                index=index,
                minor=index,
                pci_bus_id=f"0000{BUS[index].upper()}",
                pci_device_id="10de:2330",
                model="NVIDIA H100 80GB HBM3",
                health="healthy",
                tflops=989.0,
                tflops_source="catalogue",
                vram_bytes=80 * GIB,
                memory_used_bytes=10 * GIB if index == 0 else 0,
                unattributed_bytes=0,
                available_vram_bytes=60 * GIB if index == 0 else 80 * GIB,
                used_by="hypervisor" if index == 0 else "",
            )
            for index in range(2)
        ),
        allocations=(
            AllocationFacts(
                allocation_id="ml-train",
                uid="uid-a",
                directory=LIMITS,
                isolation="soft",
                phase="active",
                namespace="ml",
                pod="train",
                pod_uid=POD_UID,
                enforcement="verified",
                pids=(POD_PID,),
                grants=(
                    GrantFacts(
                        gpu_uuid=UUIDS[0],
                        limit_share_ppm=100_000,
                        request_vram_bytes=20 * GIB,
                        limit_vram_bytes=20 * GIB,
                        reserved_bytes=10 * GIB,
                        overhead_bytes=0,
                        denials=0,
                    ),
                ),
            ),
        ),
    )
