"""Health of the GPUs: errors, memory that was repaired, links, what the driver asks for, and how states changed."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.gpu import GpuReaderStatistics
from hypervisor.gpu.health.circuit import CircuitState
from hypervisor.gpu.health.facts import FABRIC_STATES, RECOVERY_ACTIONS, HealthFacts
from hypervisor.gpu.health.monitor import HealthStatistics
from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView

# NVML's reasons for low clocks.
CLOCK_REASONS = {
    0x1: "idle",
    0x2: "application_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display",
}


def collect(view: MetricsView) -> Iterable[Metric]:
    """By uuid of the card; a figure that it does not have has no series."""
    statistics = view.statistics.get("gpu_reader")
    if not isinstance(statistics, GpuReaderStatistics):
        return
    families = Families()
    health = statistics.health
    _errors(families, health)
    for uuid, facts in health.facts.items():
        _memory(families, uuid, facts)
        _state(families, uuid, facts)
        _links(families, uuid, facts)
    _circuits(families, health)
    _watching(families, health)
    yield from families.families()


def _errors(families: Families, health: HealthStatistics) -> None:
    for (uuid, number), count in health.xids.items():
        text = "Xid errors, each counted once whether NVML or the kernel's log told of it"
        families.counter("gpu_xid_errors_total", text, count, uuid=uuid, xid=str(number))
    for (uuid, number), at in health.xid_last_at.items():
        text = "When an Xid error came last, seconds since 1970"
        families.gauge("gpu_xid_last_timestamp_seconds", text, at, uuid=uuid, xid=str(number))
    for (uuid, before, after, reason), count in health.transitions.items():
        families.counter(
            "gpu_health_transitions_total",
            "Changes of a GPU's health, with the code that caused it",
            count,
            **{"uuid": uuid, "from": before, "to": after, "reason": reason},
        )


def _memory(families: Families, uuid: str, facts: HealthFacts) -> None:
    text = "Memory errors, since the last reset (volatile) and over the life of the card (aggregate)"
    for kind, scope, count in (
        ("corrected", "volatile", facts.ecc_corrected_volatile),
        ("uncorrected", "volatile", facts.ecc_uncorrected_volatile),
        ("corrected", "aggregate", facts.ecc_corrected_aggregate),
        ("uncorrected", "aggregate", facts.ecc_uncorrected_aggregate),
    ):
        families.counter("gpu_ecc_errors_total", text, count, uuid=uuid, type=kind, scope=scope)
    for kind, rows in (("corrected", facts.rows_corrected), ("uncorrected", facts.rows_uncorrected)):
        families.counter("gpu_rows_remapped_total", "Rows of memory that were remapped", rows, uuid=uuid, type=kind)
    for cause, pages in (("single_bit", facts.retired_single), ("double_bit", facts.retired_double)):
        families.gauge("gpu_retired_pages", "Pages of memory that are retired", pages, uuid=uuid, cause=cause)
    for name, told, flag in (
        ("gpu_row_remap_pending", "1 when the next reset remaps a row", facts.remap_pending),
        ("gpu_row_remap_failure", "1 when a row could not be remapped", facts.remap_failed),
        ("gpu_page_retirement_pending", "1 when the next reset retires a page", facts.retire_pending),
        ("gpu_memory_unrepairable", "1 when the driver reports memory that can't be repaired", facts.unrepairable),
    ):
        families.gauge(name, told, None if flag is None else float(flag), uuid=uuid)


def _state(families: Families, uuid: str, facts: HealthFacts) -> None:
    if facts.recovery_action is not None:
        for number, action in enumerate(RECOVERY_ACTIONS):
            families.gauge(
                "gpu_recovery_action",
                "What the driver asks for: 1 for the one that holds",
                float(facts.recovery_action == number),
                uuid=uuid,
                action=action,
            )
    if facts.clock_reasons is not None:
        for bit, reason in CLOCK_REASONS.items():
            families.gauge(
                "gpu_clock_event_active",
                "1 while this keeps the clocks below their maximum",
                float(bool(facts.clock_reasons & bit)),
                uuid=uuid,
                reason=reason,
            )
    for reason, seconds in facts.throttled_seconds:
        text = "Time for which this has kept the clocks below their maximum"
        families.counter("gpu_clock_event_seconds_total", text, seconds, uuid=uuid, reason=reason)
    families.gauge(
        "gpu_vgpu_licensed",
        "1 when a vGPU has its licence",
        None if facts.licensed is None else float(facts.licensed),
        uuid=uuid,
    )
    families.counter("gpu_pcie_replays_total", "Packets sent again over PCIe", facts.pcie_replays, uuid=uuid)


def _links(families: Families, uuid: str, facts: HealthFacts) -> None:
    if facts.fabric_state:
        for number, state in enumerate(FABRIC_STATES[1:], start=1):
            families.gauge(
                "gpu_fabric_state",
                "How far a GPU is in joining the fabric of its NVLinks: 1 for the state that holds",
                float(facts.fabric_state == number),
                uuid=uuid,
                state=state,
            )
    for number, up in enumerate(facts.links_up):
        families.gauge(
            "gpu_nvlink_up", "1 while the link is up", None if up is None else float(up), uuid=uuid, link=str(number)
        )
    for kind, counts in facts.link_errors:
        for number, count in enumerate(counts):
            text = "Errors of an NVLink since the driver was loaded"
            families.counter("gpu_nvlink_errors_total", text, count, uuid=uuid, link=str(number), kind=kind)


def _circuits(families: Families, health: HealthStatistics) -> None:
    state_text = (
        "Circuit of a figure: 0 closed, 1 half open, 2 open; while it is not closed the last good figure stands"
    )
    trips_text = "How often a circuit opened"
    for (uuid, field), circuit in health.circuits.items():
        families.gauge("circuit_breaker_state", state_text, float(circuit.state.value), uuid=uuid, circuit=field)
        families.counter("circuit_breaker_trips_total", trips_text, circuit.trips, uuid=uuid, circuit=field)
    held = float(CircuitState.OPEN.value if health.capacity_held else CircuitState.CLOSED.value)
    families.gauge("circuit_breaker_state", state_text, held, uuid="", circuit="node_capacity")
    families.counter(
        "circuit_breaker_trips_total", trips_text, health.capacity_guard_trips, uuid="", circuit="node_capacity"
    )


def _watching(families: Families, health: HealthStatistics) -> None:
    for source, failure in (
        ("kernel_log", health.log_failure),
        ("nvml_events", health.events_failure),
        ("health_memory", health.memory_failure),
    ):
        families.gauge(
            "health_source_success",
            "1 while a source of health can be used",
            None if failure is None else float(not failure),
            source=source,
        )
    families.counter("kernel_log_records_total", "Records of the kernel's log that were read", health.log_records)
    families.gauge("gpus_on_bus", "NVIDIA GPUs that the kernel sees on the PCI bus", health.gpus_on_bus)
    families.counter(
        "health_occurrences_dropped_total", "Occurrences that nobody took in time", health.dropped_occurrences
    )
