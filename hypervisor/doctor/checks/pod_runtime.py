"""What a Pod's containers were handed: devices, libraries, a driver that fits, memory, and room for threads."""

from __future__ import annotations

import re

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.cuda_version import judge
from hypervisor.doctor.checks.pod_limits import FOUND
from hypervisor.doctor.cuda import CudaRequirement
from hypervisor.doctor.pod_subject import PodSubject
from hypervisor.doctor.process_files import limit, waits_in
from hypervisor.doctor.root import Root

DEVICES = "pod.device-files"
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
)
_VERSIONED = re.compile(r"\.so\.\d+\.\d+")
_NEARLY = 0.95


def _nothing(subject: PodSubject) -> Outcome | None:
    return None if subject.processes else not_applicable("no process to look at")


@check(
    DEVICES,
    stage=Stage.WORKLOAD,
    looks_at="/dev/nvidia* in the container",
    source="article 2.5 and 3.4: ls /dev/nvidia* is empty",
    requires=(FOUND,),
)
def device_files(subject: PodSubject) -> Outcome:
    """Were the device files handed to the container?"""
    none = _nothing(subject)
    if none is not None:
        return none
    if subject.node.facts is not None and subject.node.facts.simulated:
        return not_applicable("the GPUs are simulated: they have no device files")
    for process in subject.processes:
        names = subject.files(process).names("/dev")
        if "dxg" in names:
            return passed("/dev/dxg")
        found = [name for name in names if re.fullmatch(r"nvidia(ctl|\d+|-uvm)", name)]
        cards = [name for name in found if name[-1].isdecimal()]
        if "nvidiactl" in found and "nvidia-uvm" in found and cards:
            return passed(*(f"/dev/{name}" for name in sorted(found)))
        missing = [name for name in ("nvidiactl", "nvidia-uvm") if name not in found] + ([] if cards else ["nvidia0"])
        return failed(
            [f"the container of {process.pid} lacks {', '.join('/dev/' + name for name in missing)}"],
            "the container runtime did not hand the devices over",
            "give the Pod spec.runtimeClassName: nvidia or make that runtime the default, and see the runtime checks of"
            " 'hypervisor doctor node'; never mount /dev by hand",
        )
    return passed()


@check(
    "pod.device-access",
    stage=Stage.WORKLOAD,
    looks_at="logs: Failed to initialize NVML: Unknown Error",
    source="nvidia-stack.md 7.2 and 9.6 row 94: a daemon-reload took the right to the devices",
    requires=(DEVICES,),
)
def device_access(subject: PodSubject) -> Outcome:
    """Has the container kept its right to the devices?"""
    lines = [line for log in subject.logs for line in log.lines if "Failed to initialize NVML: Unknown Error" in line]
    if not lines:
        return passed("no log says 'Failed to initialize NVML: Unknown Error'")
    return failed(
        lines[-2:],
        "the container had its devices and lost the right to them, at a 'systemctl daemon-reload' of the node",
        "make the Pod anew; use CDI or /dev/char links on the node (runtime.devices-kept)",
    )


@check(
    "pod.driver-libraries",
    stage=Stage.WORKLOAD,
    looks_at="libcuda.so.1 in the container, TF_CUDA_LIB_PATH, TF_NVML_LIB_PATH",
    source="article 2.5; handbook: CUDA or NVML library errors, RHEL and Debian folders",
    requires=(DEVICES,),
)
def driver_libraries(subject: PodSubject) -> Outcome:
    """Are the driver's libraries in the container, where they are looked for?"""
    none = _nothing(subject)
    if none is not None:
        return none
    if subject.node.facts is not None and subject.node.facts.simulated:
        return not_applicable("the GPUs are simulated: their libraries lie in no search path")
    for process in subject.processes:
        files, variables = subject.files(process), subject.environment(process)
        for name in ("TF_CUDA_LIB_PATH", "TF_NVML_LIB_PATH"):
            path = variables.get(name, "")
            if path and files.node(path) is None:
                places = _places(files, path.rpartition("/")[2].partition(".so")[0] + ".so.1")
                return failed(
                    [f"{name}={path}, which is not there", *(f"it lies in {place}" for place in places)],
                    "the path is that of another distribution: Debian has /usr/lib/x86_64-linux-gnu, RHEL /usr/lib64",
                    f"set {name} to a file that is there and ends in .so.1",
                )
            if path and _VERSIONED.search(path):
                return warned(
                    [f"{name}={path}"],
                    "the path has a driver version in it and breaks with the next upgrade",
                    "name the file that ends in .so.1",
                )
        mapped = any("libcuda.so" in name for name in subject.maps(process))
        if not mapped and not _places(files, "libcuda.so.1"):
            return failed(
                [f"no libcuda.so.1 in {', '.join(_FOLDERS)} of the container of {process.pid}"],
                "the container runtime mounted no driver libraries: the image has none of its own and should not",
                "install and configure the NVIDIA Container Toolkit on the node; with it, NVIDIA_DRIVER_CAPABILITIES"
                " must"
                " name compute,utility",
            )
    return passed("libcuda.so.1 is there")


@check(
    "pod.cuda-version",
    stage=Stage.WORKLOAD,
    looks_at="CUDA_VERSION and NVIDIA_REQUIRE_CUDA of the processes, the driver's version",
    source="article 2.5 and 4.3",
    requires=(FOUND,),
)
def cuda_version(subject: PodSubject) -> Outcome:
    """Is the driver new enough for the Pod's CUDA?"""
    for process in subject.processes:
        origin = f"process {process.pid}"
        requirement = CudaRequirement.from_environment(subject.environment(process), origin=origin)
        if requirement is not None:
            facts = subject.node.facts
            return judge(
                requirement, driver=subject.node.driver_version, cuda=facts.cuda_version if facts is not None else ""
            )
    return not_applicable("no process says which CUDA it has")


@check(
    "pod.memory",
    stage=Stage.WORKLOAD,
    looks_at="reserved bytes and denials of the allocation, use of its card, memory.events of its cgroup",
    source="handbook: CUDA out of memory: at the own limit, card full, or host memory; tensorfusion.md 9.5",
    requires=(FOUND,),
)
def memory(subject: PodSubject) -> Outcome:
    """Has the Pod not run out of memory, and of which?"""
    killed = _host_kills(subject)
    if killed:
        return failed(
            killed,
            "the Pod ran out of host memory, not of VRAM",
            "raise the container's memory request and limit to what loading the model takes",
        )
    facts = subject.node.facts
    cards = {gpu.uuid: gpu for gpu in facts.gpus} if facts is not None else {}
    for grant in (grant for each in subject.allocations for grant in each.grants):
        if not grant.denials:
            continue
        held = (grant.reserved_bytes or 0) + (grant.overhead_bytes or 0)
        told = f"{grant.gpu_uuid}: {held >> 20} MiB held, {grant.denials} allocations refused"
        card = cards.get(grant.gpu_uuid)
        if grant.limit_vram_bytes and held >= _NEARLY * grant.limit_vram_bytes:
            return warned(
                [f"{told} at the limit of {grant.limit_vram_bytes >> 20} MiB"],
                "the Pod is at its own VRAM limit; the card may have room",
                "raise vram-request and vram-limit, use a smaller batch or context, or let the autoscaler",
            )
        if card is not None and card.vram_bytes and (card.memory_used_bytes or 0) >= _NEARLY * card.vram_bytes:
            return warned(
                [f"{told}; the card has {(card.memory_used_bytes or 0) >> 20} of {card.vram_bytes >> 20} MiB in use"],
                "the card is full below the Pod's limit: limits above requests sum up to more than it has",
                "set vram-request to vram-limit for what must reach its limit",
            )
        return warned(
            [told],
            "an allocation larger than what was left was refused: a framework reserves a part of the card at its start",
            "bound what the framework reserves: TF_FORCE_GPU_ALLOW_GROWTH=true, or a lower --gpu-memory-utilization",
        )
    return passed("no allocation was refused")


@check(
    "pod.threads",
    stage=Stage.WORKLOAD,
    looks_at="/proc/PID/limits, threads, /proc/PID/wchan, pids.max of its cgroups",
    source="article 4.4: 0 % GPU, waiting in futex, too few processes allowed",
    requires=(FOUND,),
)
def threads(subject: PodSubject) -> Outcome:
    """Has the Pod room for its threads, and is none stuck in the driver?"""
    none = _nothing(subject)
    if none is not None:
        return none
    count = sum(each.threads for each in subject.processes)
    full = _full_groups(subject)
    if full:
        return warned(
            [f"{count} threads", *full],
            "the control group of the Pod may have no more tasks: threads of CUDA or of data loaders can't start, and"
            " others wait for them for ever",
            "raise podPidsLimit of the kubelet (or pids_limit of the runtime) and make the Pod anew, or use fewer"
            " workers",
        )
    for process in subject.processes:
        most = limit(subject.root, process.pid, "Max processes")
        if most is not None and count >= 0.9 * most:
            return warned(
                [f"{count} threads of at most {most}", f"{process.pid} waits in {waits_in(subject.root, process.pid)}"],
                "the limit on processes is reached: threads of CUDA or of data loaders can't start, and others wait for"
                " them for ever",
                "raise LimitNPROC of the container runtime (or podPidsLimit), or use fewer workers; a securityContext"
                " has"
                " no ulimit",
            )
        if process.hangs:
            return failed(
                [f"{process.pid} ({process.command}) waits in {waits_in(subject.root, process.pid) or 'the kernel'}"],
                "the process hangs in a call of the driver and can't be killed",
                "see driver.hang and driver.xid of this node; it takes a restart of the node",
            )
    return passed(f"{count} threads")


def _places(files: Root, name: str) -> list[str]:
    return [folder for folder in _FOLDERS if files.node(f"{folder}/{name}") is not None]


def _groups(subject: PodSubject) -> list[str]:
    """Control groups of the Pod's processes."""
    texts = (subject.root.text(f"/proc/{process.pid}/cgroup") or "" for process in subject.processes)
    lines = (line for text in texts for line in text.splitlines())
    return list(dict.fromkeys(line[3:] for line in lines if line.startswith("0::")))


def _full_groups(subject: PodSubject) -> list[str]:
    """Control groups of its containers, and that of the Pod above them, that have as many tasks as they may."""
    told = []
    for group in dict.fromkeys(each for own in _groups(subject) for each in (own, own.rpartition("/")[0]) if each):
        most, now = (subject.root.word(f"/sys/fs/cgroup{group}/{name}") for name in ("pids.max", "pids.current"))
        if most.isdecimal() and now.isdecimal() and int(now) >= _NEARLY * int(most):
            told.append(f"{group}: {now} tasks of at most {most}")
    return told


def _host_kills(subject: PodSubject) -> list[str]:
    """Where the kernel or the kubelet says that host memory ran out."""
    told = []
    for group in _groups(subject):
        events = subject.root.text(f"/sys/fs/cgroup{group}/memory.events") or ""
        told += [f"{group}: {each}" for each in events.splitlines() if re.match(r"oom_kill [1-9]", each)]
    for container in ((subject.object or {}).get("status") or {}).get("containerStatuses") or ():
        for state in ("state", "lastState"):
            ended = (container.get(state) or {}).get("terminated") or {}
            if ended.get("reason") == "OOMKilled":
                told.append(f"container {container.get('name')} was OOMKilled")
    told += [each.message for each in subject.events if "low on resource: memory" in each.message]
    return list(dict.fromkeys(told))


CHECKS = (device_files, device_access, driver_libraries, cuda_version, memory, threads)
