"""Messages of the handbook, the article and bug reports, as they were met, and the check that must know each."""

from __future__ import annotations

from typing import Any

from tests.unit.doctor.case import FAIL, Case
from tests.unit.doctor.kubelet_cases import _set
from tests.unit.doctor.machines import event
from tests.unit.doctor.pod_cases import _log


def _event(reason: str, message: str) -> Any:
    return lambda machine: machine.add("events", event(reason, message))


def _rejected(message: str) -> Any:
    return lambda machine: machine.add("events", event("FailedCreate", message, kind="ReplicaSet"))


def _condition(message: str) -> Any:
    failure = {"type": "ReplicaFailure", "message": message}
    replicas = {"metadata": {"name": "train", "namespace": "ml"}, "status": {"conditions": [failure]}}
    return lambda machine: machine.add("replicasets", replicas)


def _state(
    name: str, reason: str, message: str = "", *, kind: str = "initContainerStatuses", which: str = "waiting"
) -> Any:
    value = [{"name": name, "state": {which: {"reason": reason, "message": message}}}]
    return _set("pods", "status", kind, value=value)


_SCHEDULING = "FailedScheduling"
_MET: tuple[tuple[str, str, Any], ...] = (
    ("handbook", "pool-unknown", _rejected("admission webhook denied the request: gpu pool(default) does not exist")),
    ("handbook", "pool-unknown", _condition("gpu pool(big) does not exist")),
    ("handbook", "request-missing", _rejected("tflops request is not set")),
    ("handbook", "request-missing", _condition("admission webhook denied: tflops request is not set")),
    ("handbook", "annotation-invalid", _rejected("parse tf resources: quantities must match the regular expression")),
    ("handbook", "annotation-invalid", _condition("failed to parse tf resources")),
    ("handbook", "webhook-down", _rejected('failed calling webhook "mpod.tensor-fusion.ai": connection refused')),
    ("handbook", "webhook-down", _condition('failed calling webhook "mpod.tensor-fusion.ai": x509: unknown authority')),
    ("article 2.4", "request-unequal-limit", _rejected("invalid request for extended resource")),
    ("7.4", "request-unequal-limit", _rejected("requests: must be equal to nvidia.com/gpu limit")),
    ("handbook", "capacity", _event("GPUQuotaOrCapacityNotEnough", "no GPU has enough free TFLOPS")),
    ("events", "capacity", _event("GPUQuotaOrCapacityNotEnough", "GPUResourceQuota of namespace ml is exhausted")),
    ("handbook", "gpu-not-fit", _event(_SCHEDULING, "0/3 nodes are available: 3 GPU not fit.")),
    ("handbook", "gpu-not-fit", _event(_SCHEDULING, "0/1 nodes are available: 1 GPU not fit: gpu-model.")),
    (
        "handbook",
        "hypervisor-unhealthy",
        _event(_SCHEDULING, "node tensor-fusion.ai/index_0 allocatable is <= 0, hypervisor likely unhealthy"),
    ),
    ("handbook", "hypervisor-unhealthy", _event(_SCHEDULING, "node tensor-fusion.ai/index_a allocatable is <= 0")),
    ("handbook", "gang", _event("GangSchedulingTimeout", "2/4 members were ready")),
    ("handbook", "gang", _event(_SCHEDULING, "gang scheduling timeout")),
    ("events", "partition-template", _event("PartitionTemplateMatchFailed", "no partition template matches")),
    ("events", "partition-template", _event("PartitionTemplateMatchFailed", "1g.10gb needed")),
    ("events", "topology", _event("GPUInterconnectTopologyUnsatisfied", "no node satisfies it")),
    (
        "article 2.4",
        "topology",
        _event("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
    ),
    (
        "article 3.1",
        "insufficient-native",
        _event(_SCHEDULING, "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."),
    ),
    (
        "article 2.2",
        "insufficient-native",
        _event(_SCHEDULING, "0/2 nodes are available: 2 Insufficient nvidia.com/rtx4090."),
    ),
    ("article 3.1", "selector", _event(_SCHEDULING, "0/5 nodes didn't match node selector")),
    ("article 3.1", "selector", _event(_SCHEDULING, "5 node(s) didn't match Pod's node affinity/selector")),
    ("article 2.3", "untolerated-taint", _event(_SCHEDULING, "1 node(s) had untolerated taint {nvidia.com/gpu: true}")),
    ("handbook", "untolerated-taint", _event(_SCHEDULING, "1 node(s) had taint {a: b}, that the pod didn't tolerate")),
    ("handbook", "node-resources", _event(_SCHEDULING, "0/2 nodes are available: 2 Insufficient memory.")),
    ("handbook", "node-resources", _event(_SCHEDULING, "0/2 nodes are available: 2 Insufficient cpu.")),
    ("events", "device-ids", _event("GPUDeviceAllocatedFailed", "conflict")),
    ("events", "device-ids", _event("CommitFailed", "the allocation could not be committed")),
    ("article 3.1", "sandbox", _event("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured')),
    ("article 3.1", "sandbox", _event("FailedCreatePodSandBox", "failed to get sandbox runtime")),
    ("9.1/20", "container-cli", _event("Failed", "nvidia-container-cli: detection error: nvml error: unknown error")),
    ("7.2", "container-cli", _event("Failed", "unresolvable CDI devices nvidia.com/gpu=0")),
    ("9.3/42", "admission", _set("pods", "status", "reason", value="UnexpectedAdmissionError")),
    (
        "9.3/42",
        "admission",
        lambda m: (
            _set("pods", "status", "reason", value="UnexpectedAdmissionError")(m),
            _set("pods", "status", "message", value="Allocate failed")(m),
        ),
    ),
    ("handbook", "webhook-secret", _event("FailedMount", 'secret "tensor-fusion-webhook-secret" not found')),
    ("handbook", "webhook-secret", _event("FailedMount", "MountVolume: tensor-fusion-webhook-secret")),
    ("handbook", "init-limiter-image", _state("init-soft-limiter", "ImagePullBackOff")),
    ("handbook", "init-limiter-image", _state("init-shm", "ErrImagePull", "not found")),
    ("handbook", "inject-lib-image", _state("inject-lib", "ImagePullBackOff")),
    ("handbook", "inject-lib-image", _state("inject-lib", "ErrImagePull")),
    ("handbook", "image-pull", _state("main", "ErrImagePull", kind="containerStatuses")),
    ("handbook", "image-pull", _state("main", "ImagePullBackOff", "unauthorized", kind="containerStatuses")),
    (
        "handbook",
        "no-shell",
        _state("tf-soft-preload-0", "StartError", 'exec: "/bin/sh": no such file', which="terminated"),
    ),
    ("handbook", "no-shell", _state("tf-soft-preload-0", "RunContainerError", "executable not found")),
    ("handbook", "toolkit-validation", _log("waiting for nvidia container stack to be setup")),
    ("handbook", "toolkit-validation", _log("a", "Waiting for NVIDIA container stack to be setup")),
    ("handbook", "accelerator-library", _log("failed to load accelerator library: libaccelerator_nvidia.so")),
    ("9.2/22", "accelerator-library", _log("ERROR failed to load accelerator library /opt/x.so: no such file")),
    ("handbook", "port-in-use", _log("listen tcp :8001: bind: address already in use")),
    ("handbook", "port-in-use", _log("http: port 8001 is in use")),
    ("handbook", "crash-loop", _state("hypervisor", "CrashLoopBackOff", kind="containerStatuses")),
    ("handbook", "crash-loop", _state("worker", "CrashLoopBackOff", "back-off 5m0s", kind="containerStatuses")),
    ("article 4.3", "driver-insufficient", _log("CUDA driver version is insufficient for CUDA runtime version")),
    (
        "article 4.3",
        "driver-insufficient",
        _log("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"),
    ),
    ("article 2.5", "no-kernel-image", _log("CUDA error: no kernel image is available for execution on the device")),
    ("article 2.5", "no-kernel-image", _log("RuntimeError: no kernel image is available for execution on the device")),
    ("9.2/23", "version-mismatch", _log("Failed to initialize NVML: Driver/library version mismatch")),
    ("9.2/23", "version-mismatch", _log("nvml error: driver/library version mismatch")),
    ("handbook", "nvml-function", _log("NVML Function Not Found")),
    ("9.2/26", "nvml-function", _log("undefined symbol: nvmlDeviceGetComputeRunningProcesses_v2")),
    ("handbook", "nvml-missing", _log("libnvidia-ml.so.1: cannot open shared object file: No such file or directory")),
    ("handbook", "nvml-missing", _log("Assertion `cuInit_fn != nullptr' failed")),
    ("handbook", "no-device", _log("device >= 0 && device < num_gpus INTERNAL ASSERT FAILED")),
    ("handbook", "no-device", _log("RuntimeError: No CUDA GPUs are available")),
    ("handbook", "out-of-memory", _log("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")),
    ("handbook", "out-of-memory", _log("CUDA_ERROR_OUT_OF_MEMORY: out of memory")),
    ("9.5/80", "devices-busy", _log("CUDA error: all CUDA-capable devices are busy or unavailable")),
    ("9.5/80", "devices-busy", _log("RuntimeError: all CUDA-capable devices are busy or unavailable")),
    ("4.3", "not-ready", _log("CUDA_ERROR_SYSTEM_NOT_READY")),
    ("4.3", "not-ready", _log("Error 802: system not yet initialized")),
    ("handbook", "remote-symbol", _log("CUDA driver error: named symbol not found")),
    ("handbook", "remote-symbol", _log("call api=cuMemAddressReserve failed")),
    ("handbook", "remote-address", _log("Invalid Memory Address")),
    ("handbook", "remote-address", _log("error: invalid memory address at 0x7f")),
)

CASES = tuple(Case(source, f"symptom.{name}", FAIL, breaks) for source, name, breaks in _MET)
