"""Faults that the kernel's log tells of, also those from before any daemon ran."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, passed, unreadable, warned
from hypervisor.doctor.kernel_log import contained, off_bus, switch_faults, xids
from hypervisor.doctor.subject import NodeSubject
from hypervisor.gpu.health.policy import XidClass

_SERIOUS = {
    XidClass.RESET: "reset the card: let go of it (DetachGpu), then 'nvidia-smi --gpu-reset -i INDEX'",
    XidClass.REBOOT: "drain the node and restart it from cold; if it comes again, exchange the card",
    XidClass.HARDWARE: "check power cables, slot and firmware; have the card inspected",
}


@check(
    "driver.xid",
    stage=Stage.DRIVER,
    looks_at="the kernel's log",
    source="nvidia-stack.md 3.1, 9.1 rows 1, 2, 3, 6 and 14: NVIDIA's catalogue decides, and NVML's events are not all",
)
def xid(subject: NodeSubject) -> Outcome:
    """Has no card reported a fault of its own since the machine started?"""
    if subject.kernel_log is None:
        return unreadable("there is no log of the kernel to read")
    found = contained(xids(subject.kernel_log, subject.xid_policy))
    serious = [each for each in found if each.severity in _SERIOUS]
    if serious:
        actions = dict.fromkeys(_SERIOUS[each.severity] for each in serious)
        return failed(
            [each.line for each in serious][-5:],
            "a card reported a fault that it does not recover from by itself",
            "; ".join(actions),
        )
    weak = [each for each in found if each.severity is XidClass.DEGRADED]
    if weak:
        return warned(
            [each.line for each in weak][-5:],
            "a link or the memory of a card works with less than it should",
            "watch whether it comes again; for NVLink check the cables and the fabric manager",
        )
    programs = [each for each in found if each.severity is XidClass.APPLICATION]
    return passed(*(f"a program's fault, not the card's: {each.line}" for each in programs[-3:]))


@check(
    "driver.fallen-off-bus",
    stage=Stage.DRIVER,
    looks_at="the kernel's log",
    source="nvidia-stack.md 3.3 and 9.1 row 15: the line comes without an Xid too",
)
def fallen_off_bus(subject: NodeSubject) -> Outcome:
    """Has no card fallen off the bus?"""
    if subject.kernel_log is None:
        return unreadable("there is no log of the kernel to read")
    lines = off_bus(subject.kernel_log)
    if not lines:
        return passed("no card has")
    return failed(
        lines,
        "the card stopped answering on PCIe: power, heat, slot, or the card itself",
        "drain the node and restart it from cold, a reset does not reach the card; check its power cables",
    )


@check(
    "driver.nvswitch",
    stage=Stage.DRIVER,
    looks_at="the kernel's log",
    source="nvidia-stack.md 3.3: SXid",
)
def nvswitch(subject: NodeSubject) -> Outcome:
    """Has no NVSwitch reported a fault?"""
    if subject.kernel_log is None:
        return unreadable("there is no log of the kernel to read")
    lines = switch_faults(subject.kernel_log)[-5:]
    if not lines:
        return passed("no NVSwitch has")
    return warned(
        lines,
        "a switch between the GPUs reported a fault; programs over several GPUs may fail",
        "look at the log of nvidia-fabricmanager; restart it, and the node when the fault is fatal",
    )


CARD_CHECKS = (xid, fallen_off_bus)
CHECKS = (*CARD_CHECKS, nvswitch)
