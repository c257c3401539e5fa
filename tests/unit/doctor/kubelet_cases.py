"""Faults between driver and scheduler: the article's stages two to four, the handbook's daemon and discovery."""

from __future__ import annotations

import json
from typing import Any

from hypervisor.doctor.root import Node
from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.machines import BUS, GIB, LIMITS, UUIDS, Machine, condition, event, process, words

SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
PLUGIN_LOG = "/var/log/pods/kube-system_nvidia-device-plugin-x_0a/nvidia-device-plugin/0.log"
_PORT = "  sl  local_address rem_address   st\n   0: 0100007F:1F41 00000000:0000 0A 0:0 0:0 0 0 0 1234\n"


def _registered(**resources: Any) -> Any:
    named = {name.replace("__", "/").replace("_dot_", "."): devices for name, devices in resources.items()}
    text = json.dumps({"Data": {"RegisteredDevices": named}, "Checksum": 1})
    return lambda machine: machine.write(CHECKPOINT, text)


def _daemon(**variables: str) -> Any:
    environ = words(*(f"{name}={value}" for name, value in variables.items()))
    command = words("/usr/bin/python3", "/usr/bin/hypervisor", "run")
    return lambda machine: process(machine, 600, "hypervisor", environ=environ, cmdline=command)


def _no_daemon_and_port_taken(machine: Machine) -> None:
    machine.facts = None
    machine.write("/proc/net/tcp", _PORT)


def _no_daemon_and_port6_taken(machine: Machine) -> None:
    machine.facts = None
    machine.write("/proc/net/tcp6", _PORT)


def _allocatable(**changes: Any) -> Any:
    def change(node: Any) -> None:
        node["status"]["allocatable"] |= {"nvidia.com/gpu": "0"}
        node["status"] |= changes

    return lambda machine: machine.object("nodes", change)


def _set(kind: str, *path: str, value: Any, at: int = 0) -> Any:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return lambda machine: machine.object(kind, change, at)


def _pending(machine: Machine, tolerations: list[Any]) -> None:
    machine.add(
        "pods",
        {
            "metadata": {"name": "waiting", "namespace": "ml"},
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                "tolerations": tolerations,
            },
            "status": {"phase": "Pending"},
        },
    )


def _tainted(tolerations: list[Any], **taint: str) -> Any:
    def change(machine: Machine) -> None:
        _set("nodes", "spec", "taints", value=[taint])(machine)
        _pending(machine, tolerations)

    return change


def _numa(policy: str) -> Any:
    def change(machine: Machine) -> None:
        machine.replace(
            "/var/lib/kubelet/config.yaml", "topologyManagerPolicy: none", f"topologyManagerPolicy: {policy}"
        )
        machine.write(f"/sys/bus/pci/devices/{BUS[1]}/numa_node", "-1\n")

    return change


def _pieces(count: int, free: int) -> Any:
    """So many cards, with so many bytes free on each."""

    def change(machine: Machine) -> None:
        machine.told(gpus=(machine.facts.gpus * count)[:count])  # type: ignore[union-attr]
        for index in range(count):
            machine.gpu(index, available_vram_bytes=free)

    return change


def _five_times(machine: Machine) -> None:
    """Limits of 100 GiB in all on a card of 80 that is full."""
    machine.gpu(0, memory_used_bytes=80 * GIB)
    machine.told(allocations=machine.facts.allocations * 5)  # type: ignore[union-attr]


CASES = (
    Case(
        "handbook: waiting for nvidia container stack to be setup",
        "hypervisor.toolkit-ready",
        FAIL,
        lambda m: m.write("/run/nvidia/validations/driver-ready", ""),
        "compatibleWithNvidiaContainerToolkit",
    ),
    Case(
        "handbook: toolkit-ready is written by the GPU Operator",
        "hypervisor.toolkit-ready",
        FAIL,
        lambda m: m.write("/run/nvidia/validations/.lock", ""),
        "waiting for nvidia container stack to be setup",
    ),
    Case(
        "handbook: failed to load accelerator library",
        "hypervisor.library-path",
        FAIL,
        _daemon(TF_ACCELERATOR_LIB_PATH="/nowhere/libaccelerator.so"),
        "failed to load accelerator library",
    ),
    Case(
        "handbook: no path with the driver's version",
        "hypervisor.library-path",
        WARN,
        lambda m: (
            _daemon(TF_NVML_LIB_PATH="/usr/lib64/libnvidia-ml.so.570.86.15")(m),
            m.write("/proc/600/root/usr/lib64/libnvidia-ml.so.570.86.15", ""),
        ),
        ".so.1",
    ),
    Case("handbook: port 8001 in use", "hypervisor.http-port", FAIL, _no_daemon_and_port_taken, "--http-port"),
    Case("handbook: port 8001 in use, IPv6", "hypervisor.http-port", FAIL, _no_daemon_and_port6_taken, "portNumber"),
    Case(
        "handbook: hypervisor likely unhealthy",
        "hypervisor.ready",
        FAIL,
        lambda m: m.told(conditions=(condition("DiskFull"),)),
        "free room",
    ),
    Case(
        "article 4.5: a figure that the circuit breaker holds",
        "hypervisor.ready",
        WARN,
        lambda m: m.told(conditions=(condition("CapacityHeld"),)),
    ),
    Case(
        "4.4: an aggregator that is away stops no node",
        "hypervisor.ready",
        WARN,
        lambda m: m.told(conditions=(condition("AggregatorUnreachable"),)),
    ),
    Case(
        "handbook: TF_SHM_PATH names no file",
        "hypervisor.limit-files",
        FAIL,
        lambda m: m.remove(f"{LIMITS}/shm"),
        "missing",
    ),
    Case(
        "4.3: 1 MiB of usage", "hypervisor.limit-files", FAIL, lambda m: m.size(f"{LIMITS}/usage", 4096), "4096 bytes"
    ),
    Case(
        "handbook: TFLOPS worked out at run time",
        "hypervisor.model-known",
        WARN,
        lambda m: m.gpu(0, tflops_source="formula", model="NVIDIA H999"),
        "fullModelName",
    ),
    Case("handbook: TFLOPS missing", "hypervisor.model-known", WARN, lambda m: m.gpu(1, tflops=None), "unknown"),
    Case(
        "handbook: USED_BY is not tensor-fusion",
        "hypervisor.foreign-use",
        WARN,
        lambda m: m.gpu(1, used_by="nvidia-device-plugin"),
        "never granted",
    ),
    Case("handbook: USED_BY", "hypervisor.foreign-use", WARN, lambda m: m.gpu(0, used_by="unknown")),
    Case(
        "article 5.3: more than 15 % between nameplate and NVML",
        "memory.sources-agree",
        WARN,
        lambda m: m.gpu(1, vram_bytes=64 * GIB),
        "nameplate",
    ),
    Case(
        "article 5.3: more than 15 % between used and its parts",
        "memory.sources-agree",
        WARN,
        lambda m: m.gpu(1, memory_used_bytes=30 * GIB),
        "by its parts",
    ),
    Case(
        "handbook: the card is full below the limit",
        "memory.promises",
        WARN,
        lambda m: m.gpu(0, memory_used_bytes=79 * GIB).grant(limit_vram_bytes=90 * GIB),
        "set the VRAM request to the limit",
    ),
    Case(
        "handbook: limits above requests",
        "memory.promises",
        WARN,
        _five_times,
    ),
    Case("article 2.3: no kubelet.sock", "registration.kubelet-socket", FAIL, lambda m: m.remove(SOCKET), "systemctl"),
    Case(
        "article 3.2: owner and mode of the socket",
        "registration.kubelet-socket",
        FAIL,
        lambda m: m.index.nodes.update({SOCKET: Node(kind="socket", mode=0o755, uid=1000)}),
        "owner 1000",
    ),
    Case(
        "2.3: a directory made by a mount",
        "registration.kubelet-socket",
        FAIL,
        lambda m: m.index.nodes.update({SOCKET: Node(kind="directory")}),
    ),
    Case(
        "article 2.2: the plugin does not run", "registration.plugin", FAIL, _registered(), "Registered device plugin"
    ),
    Case("9.3/38: registered before the kubelet", "registration.plugin", FAIL, _registered(rdma__hca=["1"]), "restart"),
    Case(
        "article 2.2: another resource name",
        "registration.plugin",
        WARN,
        _registered(nvidia_dot_com__rtx4090=["GPU-1"]),
        "nvidia.com/rtx4090",
    ),
    Case(
        "article 2.2: failed to initialize NVML",
        "registration.plugin-log",
        FAIL,
        lambda m: m.append(
            PLUGIN_LOG, "2026-11-30T10:01:00Z stderr F failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND\n"
        ),
        "runtime class",
    ),
    Case(
        "article 2.2: not privileged",
        "registration.plugin-log",
        FAIL,
        lambda m: m.write(
            PLUGIN_LOG, "Failed to initialize NVML: Unknown Error\nopen /dev/nvidiactl: Operation not permitted\n"
        ),
        "privileged",
    ),
    Case(
        "article 4.1: four cards and two registered",
        "registration.count",
        FAIL,
        _registered(nvidia_dot_com__gpu=[UUIDS[0]]),
        UUIDS[1],
    ),
    Case("9.1/8: none is left", "registration.count", FAIL, _registered(nvidia_dot_com__gpu=[]), "0 registered"),
    Case(
        "article 2.3: the gate on the command line",
        "allocatable.feature-gate",
        FAIL,
        lambda m: m.write("/proc/900/cmdline", words("/usr/bin/kubelet", "--feature-gates=DevicePlugins=false")),
        "remove the gate",
    ),
    Case(
        "article 2.3: the gate in the file",
        "allocatable.feature-gate",
        FAIL,
        lambda m: m.append("/var/lib/kubelet/config.yaml", "featureGates:\n  DevicePlugins: false\n"),
    ),
    Case(
        "article 4.5: a zero that a monitor wrote",
        "allocatable.node-object",
        FAIL,
        _allocatable(),
        "let nothing but the device plugin write",
    ),
    Case(
        "article 2.3: no GPU in Allocatable",
        "allocatable.node-object",
        FAIL,
        lambda m: (
            _set("nodes", "status", "allocatable", value={"cpu": "64"})(m),
            _set("nodes", "status", "capacity", value={"cpu": "64"})(m),
        ),
        "allocatable 0",
    ),
    Case(
        "article 2.3: Ready is not True",
        "allocatable.node-ready",
        FAIL,
        _set("nodes", "status", "conditions", value=[{"type": "Ready", "status": "Unknown"}]),
        "systemctl status kubelet",
    ),
    Case("article 2.3: no conditions", "allocatable.node-ready", FAIL, _set("nodes", "status", "conditions", value=[])),
    Case(
        "handbook: the node is not labelled",
        "allocatable.node-label",
        WARN,
        _set("nodes", "metadata", "labels", value={}),
        "kubectl label node",
    ),
    Case(
        "handbook: labelled otherwise",
        "allocatable.node-label",
        WARN,
        _set("nodes", "metadata", "labels", value={"nvidia.com/gpu.present": "false"}),
        "initialGpuNodeLabelSelector",
    ),
    Case("article 2.3: cordoned", "scheduling.cordoned", WARN, _set("nodes", "spec", "unschedulable", value=True)),
    Case(
        "article 2.3: cordoned, by its taint",
        "scheduling.cordoned",
        WARN,
        _set("nodes", "spec", "taints", value=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
        "uncordon",
    ),
    Case(
        "article 2.3: a taint without toleration",
        "scheduling.taints",
        FAIL,
        _tainted([], key="nvidia.com/gpu", value="true", effect="NoSchedule"),
        "ml/waiting",
    ),
    Case(
        "table of 3.4: a toleration of another value",
        "scheduling.taints",
        FAIL,
        _tainted([{"key": "team", "operator": "Equal", "value": "b"}], key="team", value="a", effect="NoExecute"),
    ),
    Case("article 2.4: single-numa-node", "scheduling.topology-manager", WARN, _numa("single-numa-node"), "SLIT"),
    Case("article 5.2: restricted", "scheduling.topology-manager", WARN, _numa("restricted"), "best-effort"),
    Case(
        "article 3.1 A: Insufficient nvidia.com/gpu",
        "scheduling.failures",
        WARN,
        lambda m: m.add("events", event("FailedScheduling", "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.")),
        "Insufficient nvidia.com/gpu",
    ),
    Case(
        "handbook: GPUQuotaOrCapacityNotEnough",
        "scheduling.failures",
        WARN,
        lambda m: m.add("events", event("GPUQuotaOrCapacityNotEnough", "no GPU has enough TFLOPS")),
        "no GPU has enough TFLOPS",
    ),
    Case("article 4.2: free in pieces", "memory.fragmentation", WARN, _pieces(3, 39 * GIB), "in pieces"),
    Case("7.3: largest slice against the sum", "memory.fragmentation", WARN, _pieces(4, 25 * GIB), "100.0 GiB"),
)
