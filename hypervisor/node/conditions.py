"""Conditions of the node, and whether it is ready; pure.

Ready is there always. All others are there while something is wrong, and their type is its code.

Ready means: new workloads can be granted a share. What runs is limited in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.model import Condition, ConditionStatus, HealthCode, Inventory

# What keeps a node from being ready, with the remedy that people are told.
_REMEDY = {
    HealthCode.STARTING: "wait for the first answer of the driver",
    HealthCode.STOPPING: "the daemon ends; start it again",
    HealthCode.DRIVER_NOT_LOADED: (
        "load the NVIDIA driver (modprobe nvidia; nvidia-smi must list the cards), or try the product out with"
        " --simulate h100-sxm-80gb; GPUs appear without a restart"
    ),
    HealthCode.NVML_NOT_FOUND: (
        "install the driver's libnvidia-ml.so.1 or put its directory on LD_LIBRARY_PATH, or try the product out with"
        " --simulate h100-sxm-80gb"
    ),
    HealthCode.TOOLKIT_NOT_READY: (
        "repair the operator on this node (its pods say why), or remove its folder where it is no longer used"
    ),
    HealthCode.NVML_FAILED: "see the driver's messages (dmesg | grep -i nvrm)",
    HealthCode.NO_GPUS: "check that the cards are visible to the driver (nvidia-smi -L)",
    HealthCode.READER_HUNG: "the driver doesn't answer; see dmesg, a reset of the card or the machine may be needed",
    HealthCode.DISK_FULL: "free some space on the file system of the state directory",
    HealthCode.STORE_FAILED: "see that the state directory can be written",
    HealthCode.LIMIT_FILES_FAILED: "see that the base directory can be written",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason why the node is not ready, for /readyz and for people."""

    code: HealthCode
    message: str


def blocking(conditions: Iterable[Condition]) -> tuple[Reason, ...]:
    """What keeps the node from being ready, with remedies; empty when nothing does."""
    return tuple(
        Reason(code=condition.code, message=_with_remedy(condition))
        for condition in conditions
        if condition.code in _REMEDY and condition.type != "Ready"
    )


def node_conditions(inventory: Inventory, own: Iterable[Condition]) -> tuple[Condition, ...]:
    """Ready first, then what the gpu room and the daemon itself say. Times are left for settle() to fill in."""
    others = (*inventory.conditions, *own)
    reasons = blocking(others)
    if reasons:
        ready = Condition(
            type="Ready",
            status=ConditionStatus.FALSE,
            code=reasons[0].code,
            message="; ".join(reason.message for reason in reasons),
            last_transition_at=0.0,
        )
    else:
        ready = Condition(
            type="Ready",
            status=ConditionStatus.TRUE,
            code=HealthCode.OK,
            message="shares can be granted",
            last_transition_at=0.0,
        )
    return (ready, *others)


def _with_remedy(condition: Condition) -> str:
    remedy = _REMEDY[condition.code]
    return condition.message if remedy in condition.message else f"{condition.message}; {remedy}"
