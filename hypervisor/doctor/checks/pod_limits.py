"""Is the limit of a Pod in force: preload, environment, file, library mapped, attached, and what the Pod sees."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.pod_subject import FIXED_LIMIT_FILE, LIMITER, PodSubject
from hypervisor.doctor.process_files import Process
from hypervisor.doctor.program import Linkage, linkage
from hypervisor.kube.names import LIBRARY_FOLDERS

FOUND = "pod.found"
PRELOAD = "pod.preload"
MODE = "pod.isolation-mode"
FILE = "pod.limit-file"
_SHM_BYTES = 262_144
_GIBIBYTE = 2**30


def _unlimited_by_design(subject: PodSubject) -> Outcome | None:
    if subject.isolation == "shared":
        return not_applicable("isolation shared: whole cards, and nothing is limited by design")
    if subject.isolation == "partitioned":
        return not_applicable("isolation partitioned: a MIG device limits by itself")
    return None


@check(
    FOUND,
    stage=Stage.WORKLOAD,
    looks_at="/proc/*/cgroup, /proc/*/environ, /var/log/pods, the daemon's allocations",
    source="nvidia-stack.md 2.5: from a process to its Pod",
)
def found(subject: PodSubject) -> Outcome:
    """Does the Pod run on this node?"""
    if subject.processes:
        pids = ", ".join(f"{each.pid} ({each.command})" for each in subject.processes[:5])
        return passed(f"processes {pids}")
    if subject.object is not None:
        phase = (subject.object.get("status") or {}).get("phase", "Unknown")
        where = (subject.object.get("spec") or {}).get("nodeName", "")
        if phase in ("Pending", "Succeeded", "Failed") or (where and where not in _own_names(subject)):
            return not_applicable(f"the Pod is {phase}" + (f" on {where}" if where else " and on no node yet"))
    return failed(
        [f"no process belongs to {subject.namespace}/{subject.name}"],
        "the Pod does not run here, or its processes can't be seen from here",
        "ask on its own node ('kubectl get pod -o wide'), as root and with the host's PID namespace",
    )


@check(
    MODE,
    stage=Stage.WORKLOAD,
    looks_at="TF_ISOLATION_MODE, the allocation",
    source="handbook: limits not in force; isolation shared has none by design",
    requires=(FOUND,),
)
def isolation_mode(subject: PodSubject) -> Outcome:
    """Is the Pod in a mode that limits, and do its processes know?"""
    if not subject.processes:
        return not_applicable("no process to look at")
    other = _unlimited_by_design(subject)
    if other is not None:
        return other
    wrong = []
    for process in subject.processes:
        told = subject.environment(process).get("TF_ISOLATION_MODE", "")
        if told != (subject.isolation or "soft"):
            wrong.append(f"{process.pid} ({process.command}): TF_ISOLATION_MODE is {told or 'not set'}")
    if len(wrong) < len(subject.processes) or not wrong:
        return passed(f"TF_ISOLATION_MODE={subject.isolation or 'soft'}")
    return failed(
        wrong,
        "the Pod was not injected: the webhook did not see it, or it was made before the label was set",
        'put tensor-fusion.ai/enabled: "true" on the Pod template (spec.template.metadata.labels) and make the Pod'
        " anew: kubectl rollout restart",
    )


@check(
    PRELOAD,
    stage=Stage.WORKLOAD,
    looks_at="/etc/ld.so.preload in the container, LD_PRELOAD",
    source="handbook: no /etc/ld.so.preload, or without the limiter; clearing LD_PRELOAD does not turn it off",
    requires=(FOUND, MODE),
)
def preload(subject: PodSubject) -> Outcome:
    """Is the limiter preloaded, and is the file that is named there?"""
    if not subject.processes:
        return not_applicable("no process to look at")
    other = _unlimited_by_design(subject)
    if other is not None:
        return other
    for process in subject.processes:
        named = _preloaded(subject, process)
        if not named:
            continue
        if not _is_there(subject, process, named) and not any(LIMITER in name for name in subject.maps(process)):
            return failed(
                [f"{named} is named, and there is no such file in the container of {process.pid}"],
                "the limiter's folder is not mounted into the container",
                "make the Pod anew; look whether its init containers and its volume ran to the end",
            )
        return passed(f"{named} for process {process.pid}")
    return failed(
        ["neither /etc/ld.so.preload nor LD_PRELOAD names libcuda_limiter.so"],
        "the Pod was not injected, or its isolation mode is not soft",
        'put the label tensor-fusion.ai/enabled: "true" on the Pod template and make the Pod anew',
    )


@check(
    FILE,
    stage=Stage.WORKLOAD,
    looks_at="/run/tensor-fusion/shm/shm in the container, TF_SHM_PATH",
    source="handbook: TF_SHM_PATH names no file; DESIGN 4.3",
    requires=(FOUND, MODE),
)
def limit_file(subject: PodSubject) -> Outcome:
    """Is the limit file there, for each process?"""
    if not subject.processes:
        return not_applicable("no process to look at")
    other = _unlimited_by_design(subject)
    if other is not None:
        return other
    missing, seen = [], ""
    for process in subject.processes:
        files, told = subject.files(process), subject.environment(process).get("TF_SHM_PATH", "")
        path = FIXED_LIMIT_FILE if files.node(FIXED_LIMIT_FILE) is not None else told
        if not path:
            continue
        node = files.node(path)
        if node is None or node.kind != "file" or node.size < _SHM_BYTES:
            what = "missing" if node is None else f"a {node.kind} of {node.size} bytes"
            missing.append(f"{process.pid} ({process.command}): {path} is {what}")
        seen = seen or path
    if missing:
        return failed(
            missing,
            "the daemon of this node has not written the Pod's limits, or they were removed: CUDA calls wait and then"
            " fail"
            " with CUDA_ERROR_SYSTEM_NOT_READY",
            "bring the daemon back ('hypervisor doctor node'), then make the Pod anew",
        )
    if not seen:
        return failed(
            ["no process names a limit file, and /run/tensor-fusion/shm/shm is not mounted"],
            "the limiter finds no limit and does nothing",
            "make the Pod anew, so that it is injected; see pod.preload",
        )
    return passed(f"{seen} is there")


@check(
    "pod.library-mapped",
    stage=Stage.WORKLOAD,
    looks_at="/proc/PID/maps, the interpreter of /proc/PID/exe",
    source="handbook: all in order and not limited: static and musl programs; nvidia-stack.md 7.3",
    requires=(PRELOAD,),
)
def library_mapped(subject: PodSubject) -> Outcome:
    """Has every process that uses CUDA loaded the limiter?"""
    other = _unlimited_by_design(subject)
    if other is not None:
        return other
    bare = [each for each in subject.processes if not any(LIMITER in name for name in subject.maps(each))]
    uncovered = [each for each in bare if each in subject.cuda_processes]
    kinds = {each.pid: linkage(subject.root, each.pid) for each in bare}
    unable = [each for each in bare if kinds[each.pid] in (Linkage.STATIC, Linkage.MUSL)]
    if uncovered or unable:
        told = [f"{each.pid} ({each.command}): {kinds[each.pid].value}" for each in {*uncovered, *unable}]
        musl = any(kinds[each.pid] is not Linkage.GLIBC for each in {*uncovered, *unable})
        return failed(
            sorted(told),
            "a program that does not read /etc/ld.so.preload: it is linked statically or against musl (Alpine)"
            if musl
            else "the process was started without the limiter, before it was mounted or with a cleared LD_PRELOAD",
            "use an image with glibc (Debian, Ubuntu, RHEL)" if musl else "restart the process",
        )
    if not subject.processes:
        return not_applicable("no process to look at")
    return passed(f"{len(subject.processes)} processes have it mapped")


@check(
    "pod.attached",
    stage=Stage.WORKLOAD,
    looks_at="processes of the allocation, by the daemon; processes with libcuda mapped",
    source="nvidia-stack.md 7.3: heartbeat of the limiter; 9.2 row 36",
    requires=(FOUND, PRELOAD, FILE),
)
def attached(subject: PodSubject) -> Outcome:
    """Has every process that uses CUDA attached to its limit?"""
    if not subject.node.has_daemon:
        return not_applicable("no daemon was asked")
    other = _unlimited_by_design(subject)
    if other is not None:
        return other
    if not subject.allocations:
        if not subject.processes:
            return not_applicable("no process to look at")
        return failed(
            [f"the daemon has no allocation of {subject.namespace}/{subject.name}"],
            "nothing was granted to the Pod on this node: another scheduler placed it, or its grant was released",
            "look at 'hypervisor get pods' and at the Pod's schedulerName; make the Pod anew",
        )
    known = {pid for each in subject.allocations for pid in each.pids}
    strangers = [each for each in subject.cuda_processes if each.pid not in known]
    if strangers:
        return warned(
            [f"{each.pid} ({each.command}) uses CUDA and has not attached" for each in strangers],
            "the process has not made its first CUDA call yet, or it goes around the limiter",
            "look again once it computes; if it stays so, see pod.library-mapped",
        )
    return passed(f"{len(known)} processes are attached")


@check(
    "pod.enforcement",
    stage=Stage.WORKLOAD,
    looks_at="enforcement and conditions of the allocation",
    source="DESIGN 1 and 4.4; handbook: a worker's TF_CUDA_SM_PERCENT_LIMIT and TF_GPU_MEMORY_LIMIT",
    requires=(FOUND,),
)
def enforcement(subject: PodSubject) -> Outcome:
    """Does the daemon see the limit hold?"""
    if not subject.node.has_daemon or not subject.allocations:
        return not_applicable("the daemon has no allocation of this Pod, or was not asked")
    told = [f"{each.allocation_id}: enforcement {each.enforcement or 'not told'}" for each in subject.allocations]
    told += [f"{one.code}: {one.message}" for each in subject.allocations for one in each.conditions]
    if any(each.enforcement == "violated" for each in subject.allocations):
        return failed(
            told,
            "the driver sees more use than the limiter accounts for: the program goes around it",
            "soft limits bind cooperative programs; give this one isolation hard or partitioned, or evict it",
        )
    if any(one.code == "UsageTampered" for each in subject.allocations for one in each.conditions):
        return failed(
            told, "the Pod's accounting file was changed from outside", "evict the Pod; use isolation hard for it"
        )
    over = [grant for each in subject.allocations for grant in each.grants if grant.over]
    if over:
        return warned(
            [*told, *(f"{grant.gpu_uuid}: holds more than its lowered limit" for grant in over)],
            "the limit was lowered below what the Pod holds: it keeps that and gets nothing more",
            "restart the program, or raise the limit",
        )
    return passed(*told)


@check(
    "pod.visible-devices",
    stage=Stage.WORKLOAD,
    looks_at="CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES beside the granted devices",
    source="handbook: the Pod sees the whole card, or none; DESIGN 4.3",
    requires=(FOUND,),
)
def visible_devices(subject: PodSubject) -> Outcome:
    """Does the Pod see the devices that it was granted, and no other?"""
    granted = {grant.gpu_uuid for each in subject.allocations for grant in each.grants}
    if not granted or not subject.processes:
        return not_applicable("the daemon has no allocation of this Pod, or was not asked")
    for process in subject.processes:
        variables = subject.environment(process)
        if variables.get("NVIDIA_VISIBLE_DEVICES", "") in ("none", "void"):
            return failed(
                [f"{process.pid}: NVIDIA_VISIBLE_DEVICES={variables['NVIDIA_VISIBLE_DEVICES']}"],
                "the image or the Pod asks the runtime for no device",
                "remove the variable from the Pod, or set it to the granted UUIDs",
            )
        named = [part for part in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.startswith("GPU-")]
        wrong = [uuid for uuid in named if uuid not in granted]
        if wrong:
            return warned(
                [f"{process.pid} names {', '.join(wrong)}", f"granted are {', '.join(sorted(granted))}"],
                "CUDA_VISIBLE_DEVICES names a device that is not granted; CUDA ends its list there",
                "remove the variable from the Pod's own environment; the daemon sets it",
            )
    return passed(f"granted: {', '.join(sorted(granted))}")


def _preloaded(subject: PodSubject, process: Process) -> str:
    """Path of the limiter as it is named for a process; "" when it is not."""
    names = (subject.files(process).text("/etc/ld.so.preload") or "").split()
    names += subject.environment(process).get("LD_PRELOAD", "").replace(":", " ").split()
    return next((name for name in names if name.endswith(LIMITER)), "")


def _is_there(subject: PodSubject, process: Process, named: str) -> bool:
    """The loader puts a folder of its class in place of $LIB."""
    folders = LIBRARY_FOLDERS if "$LIB" in named else ("",)
    return any(subject.files(process).node(named.replace("$LIB", folder)) is not None for folder in folders)


def _own_names(subject: PodSubject) -> set[str]:
    names = {subject.root.word("/etc/hostname")}
    if subject.node.facts is not None:
        names.add(subject.node.facts.name)
    return names


CHECKS = (
    found,
    isolation_mode,
    preload,
    limit_file,
    library_mapped,
    attached,
    enforcement,
    visible_devices,
)
