"""Faults of a Pod: injection, pending, limits, memory and libraries by the handbook; the article's 2.4 to 4.4."""

from __future__ import annotations

import struct
from typing import Any

from tests.unit.doctor.case import FAIL, WARN, Case
from tests.unit.doctor.kubelet_cases import _set
from tests.unit.doctor.machines import (
    CONTAINER,
    DRIVER,
    GIB,
    MAPS,
    POD_PID,
    POD_UID,
    UUIDS,
    Machine,
    condition,
    event,
    process,
    words,
)

PROC = f"/proc/{POD_PID}"
ENABLED = "tensor-fusion.ai/enabled"
ANNOTATIONS = ("metadata", "annotations")


def _environment(old: str, new: str) -> Any:
    return lambda machine: machine.replace(f"{PROC}/environ", old, new)


def _no_process(machine: Machine) -> None:
    (machine.directory / PROC[1:] / "stat").unlink()


def elf(interpreter: bytes) -> bytes:
    """The head of a 64-bit program with this interpreter; without one where it is empty."""
    kind = 3 if interpreter else 1
    header = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(interpreter), len(interpreter), 1) + interpreter


def _program(interpreter: bytes) -> Any:
    def change(machine: Machine) -> None:
        machine.write(f"{PROC}/maps", MAPS.replace("libcuda_limiter.so", "else.so"))
        machine.index.heads[f"{PROC}/exe"] = elf(interpreter)

    return change


def _pending(machine: Machine) -> Machine:
    (machine.directory / PROC[1:] / "stat").unlink()
    _set("pods", "status", value={"phase": "Pending"})(machine)
    machine.objects["pods"][0]["spec"].pop("nodeName")
    return machine.told(allocations=())


def _not_injected(machine: Machine) -> Machine:
    pod = machine.objects["pods"][0]
    pod["spec"]["initContainers"] = []
    del pod["metadata"]["labels"]["tensor-fusion.ai/gpupool"]
    return machine


def _annotated(**annotations: str) -> Any:
    def change(machine: Machine) -> None:
        for name, value in annotations.items():
            machine.objects["pods"][0]["metadata"]["annotations"][f"tensor-fusion.ai/{name.replace('_', '-')}"] = value

    return change


def _not_annotated(machine: Machine, *names: str) -> None:
    for name in names:
        machine.objects["pods"][0]["metadata"]["annotations"].pop(f"tensor-fusion.ai/{name}")


def _unlabelled(machine: Machine) -> Machine:
    del machine.objects["pods"][0]["metadata"]["labels"][ENABLED]
    return machine


def _label_on_deployment(machine: Machine) -> None:
    _unlabelled(machine)
    machine.objects["pods"][0]["metadata"]["annotations"] = {}
    machine.add(
        "deployments", {"metadata": {"name": "tra", "namespace": "ml", "labels": {ENABLED: "true"}}, "spec": {}}
    )
    pod = machine.objects["pods"][0]["metadata"]
    pod["name"] = "tra-1"


def _resources(limits: dict[str, str], requests: dict[str, str]) -> Any:
    return _set(
        "pods", "spec", "containers", value=[{"name": "main", "resources": {"limits": limits, "requests": requests}}]
    )


def _affinity(machine: Machine) -> None:
    machine.objects["nodes"][0]["metadata"]["labels"]["hardware-type"] = "ai-training"
    term = {"matchExpressions": [{"key": "hardware-type", "operator": "In", "values": ["gpu-server"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    _set("pods", "spec", "affinity", value={"nodeAffinity": required})(machine)


def _shared_pending(machine: Machine) -> None:
    grants = machine.facts.allocations[0].grants  # type: ignore[union-attr]
    other = tuple(_on(grant, UUIDS[1]) for grant in grants)
    _pending(machine)
    from hypervisor.doctor.facts import AllocationFacts

    machine.told(allocations=(AllocationFacts(allocation_id="x", grants=(*grants, *other)),))
    _annotated(isolation="shared")(machine)


def _on(grant: Any, uuid: str) -> Any:
    import msgspec

    return msgspec.structs.replace(grant, gpu_uuid=uuid)


def _worker(*variables: str) -> Any:
    def change(machine: Machine) -> None:
        pod = machine.objects["pods"][0]
        pod["metadata"]["labels"]["tensor-fusion.ai/component"] = "worker"
        pod["metadata"]["annotations"]["tensor-fusion.ai/isolation"] = "hard"
        pod["spec"]["containers"] = [{"name": "worker", "env": [{"name": name} for name in variables]}]

    return change


def _connection(**status: str) -> Any:
    return lambda machine: machine.add("connections", {"metadata": {"name": "c", "namespace": "ml"}, "status": status})


def _oom_killed(machine: Machine) -> None:
    ended = {"terminated": {"reason": "OOMKilled"}}
    _set("pods", "status", "containerStatuses", value=[{"name": "main", "lastState": ended}])(machine)


CASES = (
    Case("2.5: no process of the Pod", "pod.found", FAIL, _no_process, "kubectl get pod -o wide"),
    Case(
        "2.5: the cgroup names another Pod",
        "pod.found",
        FAIL,
        lambda m: (
            m.replace(f"{PROC}/cgroup", POD_UID.replace("-", "_"), "0" * 32),
            _environment("POD_NAME=train", "POD_NAME=other")(m),
            m.allocation(pids=()),
        ),
    ),
    Case(
        "handbook: TF_ISOLATION_MODE is not set",
        "pod.isolation-mode",
        FAIL,
        _environment("TF_ISOLATION_MODE=soft\0", ""),
        "rollout restart",
    ),
    Case("handbook: another mode", "pod.isolation-mode", FAIL, _environment("MODE=soft", "MODE=none")),
    Case(
        "handbook: no limiter in /etc/ld.so.preload",
        "pod.preload",
        FAIL,
        lambda m: m.remove(f"{CONTAINER}/etc/ld.so.preload"),
        ENABLED,
    ),
    Case(
        "handbook: another library is preloaded",
        "pod.preload",
        FAIL,
        lambda m: m.write(f"{CONTAINER}/etc/ld.so.preload", "/usr/lib/libjemalloc.so\n"),
    ),
    Case(
        "handbook: the limiter's folder is not mounted",
        "pod.preload",
        FAIL,
        lambda m: (
            m.remove(f"{CONTAINER}/tensor-fusion-limiter/lib64/libcuda_limiter.so"),
            m.write(f"{PROC}/maps", ""),
        ),
        "not mounted",
    ),
    Case(
        "handbook: TF_SHM_PATH names no file",
        "pod.limit-file",
        FAIL,
        lambda m: m.remove(f"{CONTAINER}/run/tensor-fusion/shm/shm"),
        "doctor node",
    ),
    Case(
        "4.3: a file that is cut",
        "pod.limit-file",
        FAIL,
        lambda m: m.size(f"{CONTAINER}/run/tensor-fusion/shm/shm", 100),
        "100 bytes",
    ),
    Case(
        "handbook: neither variable nor file",
        "pod.limit-file",
        FAIL,
        lambda m: (
            m.remove(f"{CONTAINER}/run/tensor-fusion/shm/shm"),
            _environment("TF_SHM_PATH=/run/tensor-fusion/shm/shm\0", "")(m),
        ),
        "does nothing",
    ),
    Case("handbook: musl (Alpine)", "pod.library-mapped", FAIL, _program(b"/lib/ld-musl-x86_64.so.1\0"), "glibc"),
    Case("handbook: a static binary", "pod.library-mapped", FAIL, _program(b""), "statically"),
    Case(
        "handbook: /proc/PID/maps without the limiter",
        "pod.library-mapped",
        FAIL,
        _program(b"/lib64/ld-linux-x86-64.so.2\0"),
        "restart the process",
    ),
    Case("9.2/36: not attached", "pod.attached", WARN, lambda m: m.allocation(pids=()), "uses CUDA"),
    Case("handbook: nothing was granted", "pod.attached", FAIL, lambda m: m.told(allocations=()), "schedulerName"),
    Case(
        "1: a hostile program", "pod.enforcement", FAIL, lambda m: m.allocation(enforcement="violated"), "partitioned"
    ),
    Case(
        "4.3: tampering",
        "pod.enforcement",
        FAIL,
        lambda m: m.allocation(conditions=(condition("UsageTampered"),)),
        "evict",
    ),
    Case("5.1: a limit below use", "pod.enforcement", WARN, lambda m: m.grant(over=True), "lowered"),
    Case(
        "handbook: the Pod sees no card",
        "pod.visible-devices",
        FAIL,
        lambda m: m.append(f"{PROC}/environ", words("NVIDIA_VISIBLE_DEVICES=void")),
    ),
    Case(
        "4.3: another card is named",
        "pod.visible-devices",
        WARN,
        _environment(UUIDS[0], UUIDS[1]),
        "not granted",
    ),
    Case(
        "article 2.5: ls /dev/nvidia* is empty",
        "pod.device-files",
        FAIL,
        lambda m: [m.remove(f"{CONTAINER}/dev/{name}") for name in ("nvidiactl", "nvidia0", "nvidia-uvm")],
        "spec.runtimeClassName",
    ),
    Case(
        "article 3.4: no nvidia-uvm",
        "pod.device-files",
        FAIL,
        lambda m: m.remove(f"{CONTAINER}/dev/nvidia-uvm"),
        "/dev/nvidia-uvm",
    ),
    Case(
        "9.6/94: Unknown Error",
        "pod.device-access",
        FAIL,
        lambda m: _log("Failed to initialize NVML: Unknown Error")(m),
        "CDI",
    ),
    Case(
        "7.2: after a daemon-reload",
        "pod.device-access",
        FAIL,
        lambda m: _log("epoch 2", "RuntimeError: Failed to initialize NVML: Unknown Error")(m),
        "daemon-reload",
    ),
    Case(
        "handbook: no libcuda in the container",
        "pod.driver-libraries",
        FAIL,
        lambda m: (m.remove(f"{CONTAINER}/usr/lib/x86_64-linux-gnu/libcuda.so.1"), m.write(f"{PROC}/maps", "")),
        "Container Toolkit",
    ),
    Case(
        "handbook: Debian's folder on RHEL",
        "pod.driver-libraries",
        FAIL,
        lambda m: m.append(f"{PROC}/environ", words("TF_CUDA_LIB_PATH=/usr/lib64/libcuda.so.1")),
        "/usr/lib/x86_64-linux-gnu",
    ),
    Case(
        "handbook: a path with the driver's version",
        "pod.driver-libraries",
        WARN,
        lambda m: (
            m.append(f"{PROC}/environ", words(f"TF_NVML_LIB_PATH=/usr/lib/libnvidia-ml.so.{DRIVER}")),
            m.write(f"{CONTAINER}/usr/lib/libnvidia-ml.so.{DRIVER}", ""),
        ),
        "next upgrade",
    ),
    Case(
        "article 4.3: driver insufficient",
        "pod.cuda-version",
        FAIL,
        _environment("CUDA_VERSION=12.4.1", "CUDA_VERSION=13.0.2"),
        "insufficient",
    ),
    Case("article 4.3: 12.9 on 570", "pod.cuda-version", WARN, _environment("12.4.1", "12.9.0"), "minor-version"),
    Case(
        "handbook: at its own limit",
        "pod.memory",
        WARN,
        lambda m: m.grant(denials=3, reserved_bytes=20 * GIB),
        "own VRAM limit",
    ),
    Case(
        "handbook: the card is full",
        "pod.memory",
        WARN,
        lambda m: m.grant(denials=3).gpu(0, memory_used_bytes=80 * GIB),
        "the card is full",
    ),
    Case(
        "handbook: a framework's reservation",
        "pod.memory",
        WARN,
        lambda m: m.grant(denials=1),
        "TF_FORCE_GPU_ALLOW_GROWTH",
    ),
    Case("handbook: OOMKilled is host memory", "pod.memory", FAIL, _oom_killed, "host memory"),
    Case(
        "handbook: evicted for memory",
        "pod.memory",
        FAIL,
        lambda m: m.add("events", event("Evicted", "The node was low on resource: memory.")),
    ),
    Case(
        "table of 3.4: OOM of the cgroup",
        "pod.memory",
        FAIL,
        lambda m: m.write(
            f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/"
            f"cri-containerd-{'3f' * 32}.scope/memory.events",
            "low 0\noom 1\noom_kill 2\n",
        ),
    ),
    Case(
        "article 4.4: ulimit -u",
        "pod.threads",
        WARN,
        lambda m: m.write(f"{PROC}/limits", "Max processes             4                    4        processes\n"),
        "LimitNPROC",
    ),
    Case(
        "article 4.4: hangs in the driver",
        "pod.threads",
        FAIL,
        lambda m: process(m, POD_PID, "python", state="D", wchan="nvidia_unlocked_ioctl"),
        "nvidia_unlocked_ioctl",
    ),
    Case("handbook: no label", "pod.label", FAIL, _unlabelled, "spec.template.metadata.labels"),
    Case(
        "handbook: label set to another word",
        "pod.label",
        FAIL,
        _set("pods", "metadata", "labels", value={ENABLED: "yes"}),
    ),
    Case("handbook: made before the label", "pod.injected", FAIL, lambda m: _not_injected(m), "rollout restart"),
    Case(
        "handbook: inject-container names none",
        "pod.injected",
        FAIL,
        lambda m: _annotated(inject_container="mian")(_not_injected(m)),
        "without a word",
    ),
    Case(
        "handbook: webhook not registered",
        "pod.injected",
        FAIL,
        lambda m: _not_injected(m).objects.update(webhooks=[]),
        "helm upgrade",
    ),
    Case(
        "handbook: enabled-replicas",
        "pod.injected",
        WARN,
        lambda m: _annotated(enabled_replicas="1")(_not_injected(m)),
        "raise",
    ),
    Case(
        "handbook: tflops request is not set",
        "pod.request",
        FAIL,
        lambda m: _not_annotated(m, "tflops-request"),
        "vram-request",
    ),
    Case("handbook: parse tf resources", "pod.request", FAIL, _annotated(vram_request="20 GiB"), "20 GiB"),
    Case(
        "article 2.4: requests 1, limits 2",
        "pod.extended-resources",
        FAIL,
        _resources({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}),
        "API server",
    ),
    Case("article 2.4: a request alone", "pod.extended-resources", FAIL, _resources({}, {"nvidia.com/gpu": "1"})),
    Case("article 2.4: affinity with another value", "pod.node-selector", FAIL, _affinity, "ai-training"),
    Case(
        "article 3.1 B: nodeSelector",
        "pod.node-selector",
        FAIL,
        _set("pods", "spec", "nodeSelector", value={"gpu": "h100"}),
        "gpu=h100",
    ),
    Case("handbook: shared takes a whole card", "pod.whole-card", FAIL, _shared_pending, "use isolation soft"),
    Case(
        "handbook: shared, and no card may be granted",
        "pod.whole-card",
        FAIL,
        lambda m: (_shared_pending(m), m.told(allocations=()), [m.gpu(i, allocatable=False) for i in (0, 1)]),
    ),
    Case("handbook: no event at all", "pod.scheduler-answers", FAIL, _pending, "cluster.controller"),
    Case(
        "handbook: no scheduler of that name",
        "pod.scheduler-answers",
        FAIL,
        lambda m: _set("pods", "spec", "schedulerName", value="tensor-fusion-schedular")(_pending(m)),
        "correct spec.schedulerName",
    ),
    Case(
        "article 2.2: another resource name",
        "pod.native-resource",
        FAIL,
        _resources({"nvidia.com/rtx4090": "1"}, {}),
        "nvidia.com/gpu",
    ),
    Case(
        "handbook: no device plugin",
        "pod.native-resource",
        FAIL,
        lambda m: (
            _resources({"nvidia.com/gpu": "1"}, {})(m),
            _set("nodes", "status", "allocatable", value={"cpu": "4"})(m),
        ),
        "install NVIDIA's device plugin",
    ),
    Case("handbook: hard without limits", "pod.worker-limits", FAIL, _worker(), "TF_GPU_MEMORY_LIMIT"),
    Case("handbook: one of two", "pod.worker-limits", FAIL, _worker("TF_GPU_MEMORY_LIMIT"), "TF_CUDA_SM_PERCENT_LIMIT"),
    Case("handbook: connection without worker", "pod.connection", FAIL, _connection(), "component=worker"),
    Case("handbook: connection without address", "pod.connection", FAIL, _connection(workerName="w")),
)


def _log(*lines: str) -> Any:
    text = "".join(f"2026-11-30T10:00:00Z stderr F {line}\n" for line in lines)
    return lambda machine: machine.write(f"/var/log/pods/ml_train_{POD_UID}/main/1.log", text)
