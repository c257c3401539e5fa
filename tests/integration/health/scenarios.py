"""The faults, and what must follow from each: written from NVIDIA's catalogue and from reports of the field.

A step is a fault of the simulated machine, or one of: `log MESSAGE` (a line of the kernel's log, BUS standing for the
card's address), `off bus`, `on bus`, `deny`, `permit`, `clear`, `wait`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model import HealthState as S


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the matrix. Repeats of an event about a card are one event, so each row has a card or a reason of its
    own. source is where the expectation comes from; metric is name, labels and value."""

    fault: str
    source: str
    gpu: int
    steps: tuple[str, ...]
    state: S
    code: str
    event: str
    metric: tuple[str, dict[str, str], float]
    recovery: str
    repair: tuple[str, ...] = ("clear",)
    after: S = S.HEALTHY


XID = "gpu_xid_errors_total"
STATE = "gpu_health_state"


def state(name: str) -> tuple[str, dict[str, str], float]:
    return STATE, {"state": name}, 1.0


SCENARIOS = (
    Scenario(
        fault="a program's Xid (13)",
        source="k8s-device-plugin#189",
        gpu=0,
        steps=("xid=13",),
        state=S.HEALTHY,
        code="",
        event="XidError",
        metric=(XID, {"xid": "13"}, 1),
        recovery="none needed: the program's owner is told",
    ),
    Scenario(
        fault="a contained memory error (48 and 94)",
        source="k8s-device-plugin#1974",
        gpu=14,
        steps=("xid=94", "xid=48"),
        state=S.HEALTHY,
        code="",
        event="XidError",
        metric=(XID, {"xid": "48"}, 1),
        recovery="none needed: the program's owner is told",
    ),
    Scenario(
        fault="an Xid that asks for a reset (109), and the reset",
        source="k8s-device-plugin#1974, #1014",
        gpu=1,
        steps=("set=ecc_corrected_volatile,value=4", "settled", "xid=109"),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        repair=("reset=true",),
        recovery="at once when the reset is seen",
    ),
    Scenario(
        fault="an Xid that only the kernel's log tells of (62)",
        source="DCGM#235",
        gpu=2,
        steps=("log NVRM: Xid (PCI:BUS): 62, pid='<unknown>', name=<unknown>, halt",),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=(XID, {"xid": "62"}, 1),
        repair=("wait",),
        recovery="after a long silence in which the driver asks for nothing",
    ),
    Scenario(
        fault="the driver asks for a reset (recovery action 1)",
        source="dra-driver-nvidia-gpu#1455",
        gpu=3,
        steps=("set=recovery_action,value=1",),
        state=S.UNHEALTHY,
        code="RecoveryNeeded",
        event="GpuUnhealthy",
        metric=("gpu_recovery_action", {"action": "gpu_reset"}, 1),
        recovery="when the driver asks no more, after a hold",
    ),
    Scenario(
        fault="a row of memory could not be remapped",
        source="nvidia-stack 1.7: failure means an exchange",
        gpu=4,
        steps=("set=remap_failed,value=1",),
        state=S.UNHEALTHY,
        code="RowRemapFailed",
        event="GpuUnhealthy",
        metric=("gpu_row_remap_failure", {}, 1),
        recovery="when the driver says so no more",
    ),
    Scenario(
        fault="memory that can't be repaired",
        source="nvidia-stack 1.7",
        gpu=5,
        steps=("set=unrepairable,value=1",),
        state=S.UNHEALTHY,
        code="MemoryUnrepairable",
        event="GpuUnhealthy",
        metric=("gpu_memory_unrepairable", {}, 1),
        recovery="when the driver says so no more",
    ),
    Scenario(
        fault="uncorrectable memory errors, and the driver asks for nothing",
        source="k8s-device-plugin#267",
        gpu=6,
        steps=("set=ecc_uncorrected_volatile,value=2",),
        state=S.DEGRADED,
        code="EccUncorrected",
        event="EccErrors",
        metric=("gpu_ecc_errors_total", {"type": "uncorrected", "scope": "volatile"}, 2),
        repair=("reset=true",),
        recovery="at once when the reset is seen",
    ),
    Scenario(
        fault="hardware holds the clocks down (heat)",
        source="nvidia-stack 1.7: degraded, not unhealthy",
        gpu=7,
        steps=("set=throttle_reasons,value=64",),
        state=S.DEGRADED,
        code="ClocksReduced",
        event="GPUHealthChanged",
        metric=("gpu_clock_event_active", {"reason": "hardware_thermal"}, 1),
        recovery="when it ends",
    ),
    Scenario(
        fault="an NVLink is down",
        source="nvidia-stack 1.5",
        gpu=8,
        steps=("set=link5.active,value=0",),
        state=S.DEGRADED,
        code="NvLinkDown",
        event="GPUHealthChanged",
        metric=("gpu_nvlink_up", {"link": "5"}, 0),
        recovery="when it is up again, after a hold",
    ),
    Scenario(
        fault="a fatal error of an NVLink (149)",
        source="nvidia-stack 3.1, 3.3",
        gpu=8,
        steps=("log NVRM: Xid (PCI:BUS): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x0)",),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=(XID, {"xid": "149"}, 1),
        repair=("wait",),
        recovery="after a long silence in which the driver asks for nothing",
    ),
    Scenario(
        fault="the driver can't start the card again (RmInitAdapter)",
        source="nvidia-stack 3.3: a line without an Xid",
        gpu=9,
        steps=("log NVRM: GPU BUS: RmInitAdapter failed! (0x26:0x56:1474)",),
        state=S.UNHEALTHY,
        code="GpuUnreadable",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        repair=("wait",),
        recovery="after a long silence of a card that works",
    ),
    Scenario(
        fault="the power cables are not attached properly (NVML 8)",
        source="nvidia-stack 1.2",
        gpu=10,
        steps=("call=nvmlDeviceGetMemoryInfo*,return=8",),
        state=S.UNHEALTHY,
        code="GpuUnreadable",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        recovery="when it can be read",
    ),
    Scenario(
        fault="our access to the device nodes is gone (NVML 999)",
        source="k8s-device-plugin#426, #338",
        gpu=11,
        steps=("deny", "call=nvmlDeviceGet*,return=999"),
        state=S.BLIND,
        code="AccessDenied",
        event="GPUHealthChanged",
        metric=state("blind"),
        repair=("permit", "clear"),
        recovery="when it can be read",
    ),
    Scenario(
        fault="readings of zero",
        source="the article's 4.5",
        gpu=12,
        steps=("call=nvmlDeviceGetMemoryInfo*,return=zero",),
        state=S.HEALTHY,
        code="ReadingRejected",
        event="ReadingsHeld",
        metric=("circuit_breaker_state", {"circuit": "total_memory"}, 2),
        recovery="after three good readings; the capacity never moved",
    ),
    Scenario(
        fault="a call that never returns",
        source="pai#842: a hang must not pass for old values",
        gpu=13,
        steps=("call=nvmlDeviceGetPowerUsage,hang=forever",),
        state=S.BLIND,
        code="GpuUnreadable",
        event="GPUHealthChanged",
        metric=state("blind"),
        recovery="when the driver answers",
    ),
    Scenario(
        fault="the card vanishes, from the bus too",
        source="dcgm-exporter#348",
        gpu=15,
        steps=("off bus", "lost=true"),
        state=S.LOST,
        code="GpuLost",
        event="GpuUnhealthy",
        metric=state("lost"),
        repair=("on bus", "clear"),
        recovery="when it is back and can be read",
    ),
    Scenario(
        fault="the card has fallen off the bus (79)",
        source="nvidia-stack 3.1: sticky until the machine restarts",
        gpu=0,
        steps=("xid=79,lost",),
        state=S.LOST,
        code="GpuLost",
        event="GpuUnhealthy",
        metric=state("lost"),
        recovery="by a restart of the machine: a card that answers again stays unhealthy until then",
        after=S.UNHEALTHY,
    ),
)
