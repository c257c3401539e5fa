"""The daemon on this node: running, ready, and in possession of what it needs."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.library_variables import daemons, variables_of
from hypervisor.doctor.subject import NodeSubject

RUNNING = "hypervisor.running"
READY = "hypervisor.ready"
VALIDATIONS = "/run/nvidia/validations"
_LISTEN = "0A"
# About the driver: told by driver.nvml and driver.health. About the aggregator: a node works without one.
_ELSEWHERE = {"NvmlNotFound", "DriverNotLoaded", "NvmlFailed", "NoGpus", "ReaderHung", "ReaderRestarting", "Starting"}
_MILD = {"AggregatorUnreachable", "CapacityHeld", "ReadingRejected", "TimeNamespace", "UsageTampered", "GpuUnreadable"}


@check(
    "hypervisor.toolkit-ready",
    stage=Stage.HYPERVISOR,
    looks_at="/run/nvidia/validations",
    source="handbook: stuck in toolkit-validation",
)
def toolkit_ready(subject: NodeSubject) -> Outcome:
    """Has the GPU Operator finished setting up the container stack?"""
    if subject.root.node(VALIDATIONS) is None:
        return not_applicable("no GPU Operator has left its mark here")
    files = subject.root.names(VALIDATIONS)
    if "toolkit-ready" in files:
        return passed(f"{VALIDATIONS} holds {', '.join(files)}")
    return failed(
        [f"{VALIDATIONS} holds {', '.join(files) or 'nothing'}, and no toolkit-ready"],
        "waiting for nvidia container stack to be setup: the GPU Operator has not finished on this node",
        "look at its toolkit and validator Pods ('kubectl get pods -n gpu-operator -o wide'); without a GPU Operator"
        " set controller.compatibleWithNvidiaContainerToolkit to false and remove this directory",
    )


@check(
    "hypervisor.library-path",
    stage=Stage.HYPERVISOR,
    looks_at="TF_ACCELERATOR_LIB_PATH, TF_NVML_LIB_PATH and TF_CUDA_LIB_PATH of the daemon",
    source="handbook: failed to load accelerator library; never a path with a driver version in it",
)
def library_path(subject: NodeSubject) -> Outcome:
    """Do the daemon's library variables lead to files that stay?"""
    for process in daemons(subject):
        root = subject.root.container(process.pid)
        for variable in variables_of(subject, process):
            name, path = variable.name, variable.path
            if root.node(path) is None:
                return failed(
                    [f"{name}={path}, and there is no such file in the daemon's container"],
                    "failed to load accelerator library: the variable leads nowhere",
                    "let it name a file that ends in .so.1, or remove it; in a container, install the NVIDIA Container"
                    " Toolkit so that the driver's libraries are there",
                )
            if not path.endswith((".so", ".so.1")) and ".so." in path:
                return warned(
                    [f"{name}={path}"],
                    "the path has a driver version in it and breaks with the next upgrade",
                    "name the file that ends in .so.1",
                )
        return passed(f"process {process.pid} has no variable that leads nowhere")
    return not_applicable("no daemon runs here")


@check(
    "hypervisor.http-port",
    stage=Stage.HYPERVISOR,
    looks_at="/proc/net/tcp, /proc/net/tcp6",
    source="handbook: HTTP port in use (8001, host network)",
)
def http_port(subject: NodeSubject) -> Outcome:
    """Is the daemon's HTTP port its own, or free?"""
    held = any(_listens(subject, table) for table in ("/proc/net/tcp", "/proc/net/tcp6"))
    if not held:
        return passed(f"port {subject.http_port} is free")
    if subject.has_daemon or any(daemons(subject)):
        return passed(f"port {subject.http_port} is in use, and a daemon runs")
    return failed(
        [f"something listens on port {subject.http_port}, and no daemon runs"],
        "another program has the daemon's HTTP port; with host networking a node has each port once",
        "free the port ('ss -ltnp'), or give the daemon another with --http-port (componentConfig.hypervisor.portNumber"
        " of the pool)",
    )


@check(
    RUNNING,
    stage=Stage.HYPERVISOR,
    looks_at="the daemon's socket",
    source="handbook: the hypervisor Pod is not ready; nvidia-stack.md 9.2 row 21",
)
def running(subject: NodeSubject) -> Outcome:
    """Does the daemon answer?"""
    if subject.has_daemon and subject.facts is not None:
        return passed(f"version {subject.facts.hypervisor_version} answers for node {subject.facts.name}")
    if not subject.root.live:
        return not_applicable(subject.unanswered)
    return warned(
        [subject.facts_absent or "no daemon was asked"],
        "no daemon runs on this node, or you may not speak to it; workloads that run stay limited",
        "start it ('systemctl start hypervisor', 'hypervisor run', or the DaemonSet), or run the doctor as root",
    )


@check(
    READY,
    stage=Stage.HYPERVISOR,
    looks_at="conditions of the node",
    source="handbook: hypervisor likely unhealthy",
    requires=(RUNNING,),
)
def ready(subject: NodeSubject) -> Outcome:
    """Has the daemon nothing to complain of itself?"""
    if not subject.has_daemon or subject.facts is None:
        return not_applicable(subject.unanswered)
    told = [each for each in subject.facts.conditions if each.status == "True" and each.code not in _ELSEWHERE | {"Ok"}]
    told = [each for each in told if not each.type.endswith("Ready")]
    evidence = [f"{each.code}: {each.message}" for each in told]
    if any(each.code not in _MILD for each in told):
        return failed(
            evidence,
            "the daemon can't do its work in full",
            "DiskFull: free room in its state directory; StoreFailed, JournalFailed, LimitFilesFailed: see its log and"
            " the file system below its directories",
        )
    if told:
        return warned(evidence, "something is wrong that does not stop the daemon", "what the message says")
    return passed("no condition holds")


@check(
    "hypervisor.limit-files",
    stage=Stage.HYPERVISOR,
    looks_at="the directories of the allocations, /proc/mounts",
    source="handbook: TF_SHM_PATH names no file; DESIGN 4.3",
    requires=(RUNNING,),
)
def limit_files(subject: NodeSubject) -> Outcome:
    """Are the limit files of every allocation there, and whole?"""
    if subject.facts is None or not subject.facts.allocations:
        return not_applicable("there are no allocations")
    problems = []
    for allocation in subject.facts.allocations:
        for name, size in (("shm", 262_144), ("usage", 1_048_576)):
            path = f"{allocation.directory}/{name}"
            found = subject.root.node(path)
            if found is None:
                problems.append(f"{allocation.allocation_id}: {path} is missing")
            elif found.kind != "file" or found.size != size:
                problems.append(f"{allocation.allocation_id}: {path} is a {found.kind} of {found.size} bytes")
    if problems:
        return failed(
            problems[:5],
            "limit files were removed or replaced: processes that start now are not limited, or do not start",
            "restart the daemon, which makes them anew, then the Pods; keep cleaners out of that directory",
        )
    return passed(f"{len(subject.facts.allocations)} allocations have both files")


@check(
    "hypervisor.model-known",
    stage=Stage.HYPERVISOR,
    looks_at="TFLOPS of each GPU and where they come from",
    source="handbook: TFLOPS of CAPACITY missing or wrong; nvidia-stack.md 10.1",
)
def model_known(subject: NodeSubject) -> Outcome:
    """Is each model in the catalogue?"""
    if subject.facts is None or not subject.facts.gpus:
        return not_applicable(subject.unanswered)
    guessed = [
        f"{gpu.model}: {gpu.tflops:g} TFLOPS worked out"
        for gpu in subject.facts.gpus
        if gpu.tflops is not None and gpu.tflops_source == "formula"
    ]
    unknown = [f"{gpu.model}: TFLOPS unknown" for gpu in subject.facts.gpus if gpu.tflops is None]
    if not guessed and not unknown:
        return passed(*sorted({f"{gpu.model}: {gpu.tflops:g} TFLOPS" for gpu in subject.facts.gpus}))
    return warned(
        sorted({*guessed, *unknown}),
        "the model is not in the catalogue: its TFLOPS are worked out from clock and cores, or not known, and then it"
        " is"
        " granted by percent only",
        "add a row to a site catalogue (setting catalogue), with names exactly as MODEL shows it; with the TensorFusion"
        " chart, providerConfigs.nvidia.hardwareMetadata with the same fullModelName",
    )


@check(
    "hypervisor.foreign-use",
    stage=Stage.HYPERVISOR,
    looks_at="used_by of each GPU",
    source="handbook: USED_BY is not tensor-fusion",
)
def foreign_use(subject: NodeSubject) -> Outcome:
    """Does no other system's Pod hold a GPU?"""
    if subject.facts is None or not subject.facts.gpus:
        return not_applicable(subject.unanswered)
    held = [
        f"GPU {gpu.index} {gpu.uuid} is used by {gpu.used_by}"
        for gpu in subject.facts.gpus
        if gpu.used_by not in ("", "hypervisor", "tensor-fusion")
    ]
    if not held:
        return passed("no GPU is another system's")
    return warned(
        held,
        "a Pod asked for the card in another way (nvidia.com/gpu for instance); such a card is never granted",
        "move that workload here, or leave the card to it",
    )


def _listens(subject: NodeSubject, table: str) -> bool:
    for line in (subject.root.text(table) or "").splitlines()[1:]:
        columns = line.split()
        if len(columns) > 3 and columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == subject.http_port:
            return True
    return False


CHECKS = (
    toolkit_ready,
    library_path,
    http_port,
    running,
    ready,
    limit_files,
    model_known,
    foreign_use,
)
