"""What a card needs besides working: the fabric of its NVLinks joined, the licence of a vGPU."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.driver import NVML
from hypervisor.doctor.subject import NodeSubject

_MANAGERS = ("nv-fabricmanage", "nvidia-fabricma")  # the kernel cuts names at 15 letters
_SWITCHES = "/proc/driver/nvidia-nvswitch/devices"


@check(
    "driver.fabric",
    stage=Stage.DRIVER,
    looks_at="condition FabricNotReady of each GPU; /proc/driver/nvidia-nvswitch and the fabric manager's process",
    source="nvidia-stack.md 1.5: below state 3 with NVSwitches CUDA fails with error 802, which is no broken card",
    requires=(NVML,),
    gate=True,
)
def fabric(subject: NodeSubject) -> Outcome:
    """Are GPUs behind NVSwitches joined to each other?"""
    gpus = subject.facts.gpus if subject.facts is not None else ()
    told = [
        f"GPU {gpu.index}: {each.message}" for gpu in gpus for each in gpu.conditions if each.code == "FabricNotReady"
    ]
    switches = subject.root.names(_SWITCHES)
    managed = any(process.command in _MANAGERS for process in subject.processes)
    if told:
        return failed(
            told,
            "CUDA starts on no GPU of this machine (error 802, system not yet initialized) before the fabric manager"
            " has joined the GPUs",
            "start nvidia-fabricmanager, of the driver's very version, and read its log; the cards are not broken",
        )
    if switches and not managed:
        return failed(
            [f"{len(switches)} NVSwitches in {_SWITCHES}, and no process nv-fabricmanager"],
            "this machine has NVSwitches and nobody who sets them up",
            "install and start nvidia-fabricmanager, of the driver's very version",
        )
    if not gpus and not switches:
        return not_applicable("no NVSwitch, and no GPU was asked")
    return passed(f"{len(switches)} NVSwitches" if switches else "no GPU waits for a fabric")


@check(
    "driver.vgpu-licence",
    stage=Stage.DRIVER,
    looks_at="condition VgpuUnlicensed of each GPU; /etc/nvidia/gridd.conf and ClientConfigToken",
    source="nvidia-stack.md 1.11: a vGPU without a licence has its clocks throttled",
    requires=(NVML,),
)
def vgpu_licence(subject: NodeSubject) -> Outcome:
    """Has each vGPU its licence?"""
    if subject.facts is None:
        return not_applicable(subject.unanswered)
    told = [
        f"GPU {gpu.index}: {each.message}"
        for gpu in subject.facts.gpus
        for each in gpu.conditions
        if each.code == "VgpuUnlicensed"
    ]
    if not told:
        return passed("no vGPU is without a licence")
    tokens = [name for name in subject.root.names("/etc/nvidia/ClientConfigToken") if name.endswith(".tok")]
    if not tokens:
        told.append("/etc/nvidia/ClientConfigToken has no token")
    return warned(
        told,
        "the guest's driver slows the vGPU down, more the longer it runs",
        "put the licence server's client token into /etc/nvidia/ClientConfigToken, set FeatureType=1 in"
        " /etc/nvidia/gridd.conf, restart nvidia-gridd, and see 'nvidia-smi -q | grep License'",
    )


CHECKS = (fabric, vgpu_licence)
