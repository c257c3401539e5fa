"""The faults, and what must follow from each: written from NVIDIA's catalogue and from reports of the field.

A step is a fault of the simulated machine, or one of: `log MESSAGE` (a line of the kernel's log, BUS standing for the
card's address), `settled`, `off bus`, `on bus`, `deny`, `permit`, `clear`, `wait`.

The scenarios of a wave happen at once, each to a card of its own; a few cards have none, and must stay well.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model import HealthState as S


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the matrix. source is where the expectation comes from; metric is name, labels and value; doctor is a
    check that must give that verdict of the card."""

    fault: str
    source: str
    steps: tuple[str, ...]
    state: S
    code: str
    event: str
    metric: tuple[str, dict[str, str], float]
    recovery: str
    doctor: tuple[str, str]
    repair: tuple[str, ...] = ("clear",)
    after: S = S.HEALTHY
    allocatable: bool | None = None  # where the state alone does not decide it
    wave: int = 1
    late: bool = False  # it happens when its turn comes: it ends by itself, or must not last


XID = "gpu_xid_errors_total"
STATE = "gpu_health_state"


def state(name: str) -> tuple[str, dict[str, str], float]:
    return STATE, {"state": name}, 1.0


SCENARIOS = (
    Scenario(
        fault="a program's Xid (13)",
        source="k8s-device-plugin#189",
        steps=("xid=13",),
        state=S.HEALTHY,
        code="",
        event="XidError",
        metric=(XID, {"xid": "13"}, 1),
        recovery="none needed: the program's owner is told",
        doctor=("driver.health", "pass"),
    ),
    Scenario(
        fault="a contained memory error (48 and 94)",
        source="k8s-device-plugin#1974",
        steps=("xid=94", "xid=48"),
        state=S.HEALTHY,
        code="",
        event="XidError",
        metric=(XID, {"xid": "48"}, 1),
        recovery="none needed: the program's owner is told",
        doctor=("driver.health", "pass"),
    ),
    Scenario(
        fault="an Xid that asks for a reset (109), and the reset",
        source="k8s-device-plugin#1974, #1014",
        steps=("set=ecc_corrected_volatile,value=4", "settled", "xid=109"),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        repair=("reset=true",),
        recovery="at once when the reset is seen",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="an Xid that only the kernel's log tells of (62)",
        source="DCGM#235",
        steps=("log NVRM: Xid (PCI:BUS): 62, pid='<unknown>', name=<unknown>, halt",),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=(XID, {"xid": "62"}, 1),
        repair=("wait",),
        late=True,
        recovery="after a long silence in which the driver asks for nothing",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="the driver asks for a reset (recovery action 1)",
        source="dra-driver-nvidia-gpu#1455",
        steps=("set=recovery_action,value=1",),
        state=S.UNHEALTHY,
        code="RecoveryNeeded",
        event="GpuUnhealthy",
        metric=("gpu_recovery_action", {"action": "gpu_reset"}, 1),
        recovery="when the driver asks no more, after a hold",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="a row of memory could not be remapped",
        source="nvidia-stack 1.7: failure means an exchange",
        steps=("set=remap_failed,value=1",),
        state=S.UNHEALTHY,
        code="RowRemapFailed",
        event="GpuUnhealthy",
        metric=("gpu_row_remap_failure", {}, 1),
        recovery="when the driver says so no more",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="memory that can't be repaired",
        source="nvidia-stack 1.7",
        steps=("set=unrepairable,value=1",),
        state=S.UNHEALTHY,
        code="MemoryUnrepairable",
        event="GpuUnhealthy",
        metric=("gpu_memory_unrepairable", {}, 1),
        recovery="when the driver says so no more",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="uncorrectable memory errors, and the driver asks for nothing",
        source="k8s-device-plugin#267",
        steps=("set=ecc_uncorrected_volatile,value=2",),
        state=S.DEGRADED,
        code="EccUncorrected",
        event="EccErrors",
        metric=("gpu_ecc_errors_total", {"type": "uncorrected", "scope": "volatile"}, 2),
        repair=("reset=true",),
        recovery="at once when the reset is seen",
        doctor=("driver.health", "warn"),
    ),
    Scenario(
        fault="hardware holds the clocks down (heat)",
        source="nvidia-stack 1.7: degraded, not unhealthy",
        steps=("set=throttle_reasons,value=64",),
        state=S.DEGRADED,
        code="ClocksReduced",
        event="GPUHealthChanged",
        metric=("gpu_clock_event_active", {"reason": "hardware_thermal"}, 1),
        recovery="when it ends",
        doctor=("driver.health", "warn"),
    ),
    Scenario(
        fault="an NVLink is down",
        source="nvidia-stack 1.5",
        steps=("set=link5.active,value=0",),
        state=S.DEGRADED,
        code="NvLinkDown",
        event="GPUHealthChanged",
        metric=("gpu_nvlink_up", {"link": "5"}, 0),
        recovery="when it is up again, after a hold",
        doctor=("driver.health", "warn"),
    ),
    Scenario(
        fault="errors on an NVLink",
        source="nvidia-stack 1.5: counters are told, and judged by nobody",
        steps=("set=link3.crc_errors,value=7",),
        state=S.HEALTHY,
        code="",
        event="",
        metric=("gpu_nvlink_errors_total", {"link": "3", "kind": "crc"}, 7),
        recovery="none needed",
        doctor=("driver.health", "pass"),
        wave=2,
    ),
    Scenario(
        fault="the fabric manager has not joined the card yet",
        source="nvidia-stack 1.5: not schedulable yet, and not broken",
        steps=("set=fabric_state,value=2",),
        state=S.HEALTHY,
        code="FabricNotReady",
        event="GPUGrantsHeld",
        metric=("gpu_fabric_state", {"state": "in_progress"}, 1),
        recovery="at once when it has",
        doctor=("driver.fabric", "fail"),
        allocatable=False,
    ),
    Scenario(
        fault="the card could not join the fabric",
        source="nvidia-stack 1.5: the status means something when the state is completed",
        steps=("set=fabric_status,value=999",),
        state=S.UNHEALTHY,
        code="FabricNotReady",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        recovery="when it has, after a hold",
        doctor=("driver.fabric", "fail"),
        wave=2,
    ),
    Scenario(
        fault="a fatal error of an NVLink (149)",
        source="nvidia-stack 3.1, 3.3",
        steps=("log NVRM: Xid (PCI:BUS): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x0)",),
        state=S.UNHEALTHY,
        code="XidError",
        event="GpuUnhealthy",
        metric=(XID, {"xid": "149"}, 1),
        repair=("wait",),
        late=True,
        recovery="after a long silence in which the driver asks for nothing",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="the driver can't start the card again (RmInitAdapter)",
        source="nvidia-stack 3.3: a line without an Xid",
        steps=("log NVRM: GPU BUS: RmInitAdapter failed! (0x26:0x56:1474)",),
        state=S.UNHEALTHY,
        code="GpuUnreadable",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        repair=("wait",),
        late=True,
        recovery="after a long silence of a card that works",
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="the power cables are not attached properly (NVML 8)",
        source="nvidia-stack 1.2",
        steps=("call=nvmlDeviceGetMemoryInfo*,return=8",),
        state=S.UNHEALTHY,
        code="GpuUnreadable",
        event="GpuUnhealthy",
        metric=state("unhealthy"),
        recovery="when it can be read",
        doctor=("driver.health", "fail"),
        wave=2,
    ),
    Scenario(
        fault="our access to the device nodes is gone (NVML 999)",
        source="k8s-device-plugin#426, #338",
        steps=("deny", "call=nvmlDeviceGet*,return=999"),
        state=S.BLIND,
        code="AccessDenied",
        event="GPUHealthChanged",
        metric=state("blind"),
        repair=("permit", "clear"),
        recovery="when it can be read",
        doctor=("driver.health", "fail"),
        wave=2,
    ),
    Scenario(
        fault="readings of zero",
        source="the article's 4.5",
        steps=("call=nvmlDeviceGetMemoryInfo*,return=zero",),
        state=S.HEALTHY,
        code="ReadingRejected",
        event="ReadingsHeld",
        metric=("circuit_breaker_state", {"circuit": "total_memory"}, 2),
        recovery="after three good readings; the capacity never moved",
        doctor=("driver.health", "pass"),
        wave=2,
        late=True,
    ),
    Scenario(
        fault="a call that never returns",
        source="pai#842: a hang must not pass for old values",
        steps=("call=nvmlDeviceGetPowerUsage,hang=forever",),
        state=S.BLIND,
        code="GpuUnreadable",
        event="GPUHealthChanged",
        metric=state("blind"),
        recovery="when the driver answers",
        wave=2,
        doctor=("driver.health", "fail"),
    ),
    Scenario(
        fault="the card vanishes, from the bus too",
        source="dcgm-exporter#348",
        steps=("off bus", "lost=true"),
        state=S.LOST,
        code="GpuLost",
        event="GpuUnhealthy",
        metric=state("lost"),
        repair=("on bus", "clear"),
        recovery="when it is back and can be read",
        doctor=("driver.health", "fail"),
        wave=2,
    ),
    Scenario(
        fault="the card has fallen off the bus (79)",
        source="nvidia-stack 3.1: sticky until the machine restarts",
        steps=("xid=79,lost",),
        state=S.LOST,
        code="GpuLost",
        event="GpuUnhealthy",
        metric=state("lost"),
        recovery="by a restart of the machine: a card that answers again stays unhealthy until then",
        doctor=("driver.health", "fail"),
        after=S.UNHEALTHY,
        wave=3,
    ),
)


COLUMNS = ("fault", "published", "condition", "event", "metric", "doctor", "recovery", "source")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


def matrix() -> str:
    """The rows as the documents show them."""
    return HEAD + "".join(map(_row, SCENARIOS))


def _row(scenario: Scenario) -> str:
    name, labels, value = scenario.metric
    shown = ", ".join(f'{key}="{text}"' for key, text in labels.items())
    series = f"{name}{{{shown}}}" if shown else name
    grants = ", no new grants" if scenario.allocatable is False else ""
    return (
        f"| {scenario.fault} | {scenario.state.value}{grants} | {scenario.code or '-'} | {scenario.event or '-'} |"
        f" `gpuhv_{series}` {value:g} | {scenario.doctor[0]}: {scenario.doctor[1]} | {scenario.recovery} |"
        f" {scenario.source} |\n"
    )
