"""Handing the devices to containers: runtime, toolkit, CDI, and the limits that containers inherit."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.bus import elsewhere
from hypervisor.doctor.checks.kubelet import kubelet_configuration
from hypervisor.doctor.cuda import version
from hypervisor.doctor.kernel_log import xids
from hypervisor.doctor.process_files import limit
from hypervisor.doctor.runtimes import (
    BINARIES,
    UNREADABLE,
    cdi_specs,
    runtimes,
    toolkit_binary,
    toolkit_mode,
    toolkit_version,
)
from hypervisor.doctor.runtimes import TOOLKIT as TOOLKIT_FILE
from hypervisor.doctor.subject import NodeSubject

HANDLER = "runtime.handler"
TOOLKIT = "runtime.toolkit"
_LEAST_TOOLKIT = (1, 13)  # parses the libraries of driver 535 and newer
_LEAST_PROCESSES = 4096
_LEAST_FILES = 65536
_RUNTIME_COMMANDS = ("containerd", "crio", "dockerd")


@check(
    HANDLER,
    stage=Stage.RUNTIME,
    looks_at="/etc/containerd, /etc/crio, /etc/docker/daemon.json",
    source="article 2.5 and 3.4; no runtime has an option privileged, and runtimeClassName is not in securityContext",
    gate=True,
)
def handler(subject: NodeSubject) -> Outcome:
    """Does a container runtime know how to hand out GPUs?"""
    found = runtimes(subject.root)
    if not found:
        return not_applicable("no container runtime is configured on this machine")
    broken = [each.problem for each in found if each.problem]
    if broken:
        return failed(
            broken,
            "the runtime's configuration can't be read, and it runs with an older one or not at all",
            "correct the file, then restart the runtime",
        )
    able = [each for each in found if each.handlers or (each.cdi and cdi_specs(subject.root))]
    if able:
        return passed(*(f"{each.name}: {', '.join(each.handlers) or 'CDI'}" for each in able))
    return failed(
        [
            f"{each.name} ({each.file}): no nvidia runtime, and CDI {'without a file' if each.cdi else 'off'}"
            for each in found
        ],
        "containers start without the cards: nothing tells the runtime about them",
        "nvidia-ctk runtime configure --runtime=containerd (or crio, docker), then restart the runtime; give the Pods"
        " spec.runtimeClassName nvidia, or make that runtime the default; or use CDI: nvidia-ctk cdi generate",
    )


@check(
    TOOLKIT,
    stage=Stage.RUNTIME,
    looks_at="nvidia-container-runtime, its configuration, nvidia-ctk, libnvidia-container.so.*",
    source="article 2.5: a toolkit that is too old for the driver",
    requires=(HANDLER,),
    gate=True,
)
def toolkit(subject: NodeSubject) -> Outcome:
    """Is the NVIDIA Container Toolkit installed, and new enough for the driver?"""
    handlers = {name: binary for each in runtimes(subject.root) for name, binary in each.handlers.items()}
    if not handlers:
        return not_applicable("no runtime uses the toolkit's programs")
    if toolkit_mode(subject.root) == UNREADABLE:
        return failed(
            [f"{TOOLKIT_FILE} is no TOML"],
            "the toolkit can't read its own configuration, and every container of its runtime fails to start",
            f"correct {TOOLKIT_FILE}, or write it anew: nvidia-ctk config --in-place, nvidia-ctk runtime configure",
        )
    for name, binary in handlers.items():
        there = (
            subject.root.node(binary) is not None
            if binary.startswith("/")
            else toolkit_binary(subject.root, binary or "nvidia-container-runtime")
        )
        if not there:
            return failed(
                [f"runtime {name} runs {binary or 'nvidia-container-runtime'}, which is not in {', '.join(BINARIES)}"],
                "the runtime is configured and its program is missing",
                "install nvidia-container-toolkit, or correct the path",
            )
    found = _toolkit_version(subject)
    if found and found < _LEAST_TOOLKIT and version(subject.driver_version) >= (535,):
        return failed(
            [f"toolkit {'.'.join(map(str, found))}, driver {subject.driver_version}"],
            "the toolkit is older than the driver and leaves out libraries that it does not know",
            "install nvidia-container-toolkit 1.13 or newer; 1.17 and newer use CDI by themselves",
        )
    return passed(*(f"{name}: {binary}" for name, binary in handlers.items()))


@check(
    "runtime.dead-card",
    stage=Stage.RUNTIME,
    looks_at="/etc/nvidia-container-runtime/config.toml beside lost cards",
    source="nvidia-stack.md 7.2 and 9.1 row 20: the legacy hook asks every card at each start of a container",
)
def dead_card(subject: NodeSubject) -> Outcome:
    """Does no dead card stop every container from starting?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    mode = toolkit_mode(subject.root)
    legacy = mode == "legacy" or (mode == "auto" and not cdi_specs(subject.root) and _before_cdi(subject))
    if not legacy:
        return passed(f"mode {mode}" if mode else "the toolkit is not installed")
    dead = [
        f"GPU {gpu.index} {gpu.uuid}: {gpu.health}"
        for gpu in (subject.facts.gpus if subject.facts else ())
        if gpu.health in ("lost", "unhealthy")
    ]
    dead += [each.line for each in xids(subject.kernel_log or (), subject.xid_policy) if each.told.number == 79]
    driver = {name.lower() for name in subject.root.names("/proc/driver/nvidia/gpus")}
    if driver:
        dead += [
            f"{gpu.address} is not with the driver"
            for gpu in subject.gpus_on_bus
            if gpu.driver in ("", "nvidia") and gpu.address not in driver
        ]
    if not dead:
        return passed("mode legacy, and every card answers")
    return failed(
        [f"mode {mode}", *dead],
        "the legacy hook asks every card of the node, so that one dead card makes every GPU container fail to start"
        " ('nvidia-container-cli: detection error')",
        'set mode = "cdi" in /etc/nvidia-container-runtime/config.toml (nvidia-ctk config --set'
        " nvidia-container-runtime.mode=cdi), or unbind the dead card: echo ADDRESS >"
        " /sys/bus/pci/drivers/nvidia/unbind",
    )


@check(
    "runtime.cdi-current",
    stage=Stage.RUNTIME,
    looks_at="/etc/cdi, /var/run/cdi",
    source="nvidia-stack.md 7.2: files of an old driver",
    gate=True,
)
def cdi_current(subject: NodeSubject) -> Outcome:
    """Do the CDI files describe the driver that is installed?"""
    specs = cdi_specs(subject.root)
    if not specs:
        return not_applicable("there are no CDI files")
    problems = []
    for spec in specs:
        if spec.problem:
            problems.append(f"{spec.file}: {spec.problem}")
        missing = [path for path in (*spec.host_paths, *spec.device_nodes) if path and subject.root.node(path) is None]
        if missing:
            problems.append(f"{spec.file} names {missing[0]}, which is not there ({len(missing)} in all)")
    if problems:
        return failed(
            problems,
            "the driver or the MIG layout changed since the CDI file was written: containers fail to start, or start"
            " without a library",
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, and let nvidia-cdi-refresh do it after each"
            " upgrade",
        )
    return passed(*(f"{spec.file}: {spec.kind}" for spec in specs))


@check(
    "runtime.devices-kept",
    stage=Stage.RUNTIME,
    looks_at="toolkit mode, the kubelet's cgroup driver, /dev/char/195:*",
    source="nvidia-stack.md 7.2 and 9.6 row 94: 'Failed to initialize NVML: Unknown Error' after a daemon-reload",
)
def devices_kept(subject: NodeSubject) -> Outcome:
    """Do containers keep their cards over a 'systemctl daemon-reload'?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    if toolkit_mode(subject.root) != "legacy":
        return passed("devices are not injected behind the runtime's back")
    if kubelet_configuration(subject).get("cgroupDriver") != "systemd":
        return passed("the kubelet does not use systemd's cgroup driver")
    if any(name.startswith("195:") for name in subject.root.names("/dev/char")):
        return passed("/dev/char has links for the cards")
    return warned(
        ["mode legacy", "cgroupDriver: systemd", "no /dev/char/195:*"],
        "systemd does not know of devices that the legacy hook added: at the next daemon-reload running containers lose"
        " their cards",
        "use CDI, or 'nvidia-ctk system create-dev-char-symlinks --create-all'",
    )


@check(
    "runtime.process-limits",
    stage=Stage.RUNTIME,
    looks_at="/proc/PID/limits of the container runtime, /proc/sys/fs/file-nr",
    source="article 4.4: too few processes for data loaders; nvidia-stack.md 7.3",
)
def process_limits(subject: NodeSubject) -> Outcome:
    """Are the limits that containers inherit wide enough?"""
    evidence = []
    for process in subject.processes:
        if process.command not in _RUNTIME_COMMANDS:
            continue
        for name, least in (("Max processes", _LEAST_PROCESSES), ("Max open files", _LEAST_FILES)):
            found = limit(subject.root, process.pid, name)
            if found is not None and found < least:
                evidence.append(f"{process.command} ({process.pid}): {name} {found}, at least {least} wanted")
    fields = subject.root.word("/proc/sys/fs/file-nr").split()
    if len(fields) == 3 and all(each.isdecimal() for each in fields) and int(fields[0]) > 0.9 * int(fields[2]) > 0:
        evidence.append(f"{fields[0]} of {fields[2]} open files in the whole system")
    if not evidence:
        return passed("no limit is narrow")
    return warned(
        evidence,
        "programs with many workers run into the limit: threads of CUDA or of a data loader can't start, and the"
        " program"
        " waits for ever at 0 % GPU",
        "set LimitNPROC=infinity and LimitNOFILE=1048576 in the runtime's unit and restart it; in Kubernetes see also"
        " podPidsLimit of the kubelet. A Pod's securityContext has no ulimit",
    )


def _toolkit_version(subject: NodeSubject) -> tuple[int, ...]:
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    return toolkit_version(name for folder in folders for name in subject.root.names(folder))


def _before_cdi(subject: NodeSubject) -> bool:
    """Before 1.17 the mode auto meant legacy on a server."""
    found = _toolkit_version(subject)
    return bool(found) and found < (1, 17)


CHECKS = (handler, toolkit, dead_card, cdi_current, devices_kept, process_limits)
