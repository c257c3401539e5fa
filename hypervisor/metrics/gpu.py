"""What the driver says of each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families, info
from hypervisor.metrics.view import MetricsView
from hypervisor.model import Gpu, HealthState


def collect(view: MetricsView) -> Iterable[Metric]:
    """Identity, health and readings, by uuid."""
    gpus = view.snapshot.gpus
    attached = {
        process.host_pid
        for usage in view.snapshot.usages
        for process in usage.processes
        if process.host_pid is not None
    }
    yield info("gpu", "Identity of a GPU, for joins", (_identity(gpu) for gpu in gpus))
    families = Families()
    for gpu in gpus:
        _health(families, gpu)
        _memory(families, gpu)
        _load(families, gpu, view.monotonic_time)
        _processes(families, gpu, attached)
    yield from families.families()


def _identity(gpu: Gpu) -> dict[str, str]:
    identity = gpu.identity
    numa = gpu.topology.numa_node if gpu.topology else None
    return {
        "uuid": identity.uuid,
        "index": str(identity.index),
        "minor": "" if identity.minor is None else str(identity.minor),
        "pci_bus_id": identity.pci_bus_id,
        "model": identity.model,
        "architecture": identity.architecture,
        "vbios": identity.vbios_version,
        "numa_node": "" if numa is None else str(numa),
        "isolation_mode": gpu.active_isolation.value if gpu.active_isolation else "",
        "simulated": "true" if identity.simulated else "false",
    }


def _health(families: Families, gpu: Gpu) -> None:
    uuid = gpu.identity.uuid
    for state in HealthState:
        families.gauge(
            "gpu_health_state",
            "State of health of a GPU: 1 for the one that holds",
            float(gpu.health is state),
            uuid=uuid,
            state=state.value,
        )
    # Of a card that can't be seen nothing is said, rather than that it is ill.
    unseen = gpu.health in {HealthState.BLIND, HealthState.UNKNOWN}
    healthy = None if unseen else float(gpu.health in {HealthState.HEALTHY, HealthState.DEGRADED})
    families.gauge("gpu_healthy", "1 when the GPU works, degraded included", healthy, uuid=uuid)
    families.gauge("gpu_allocatable", "1 when new grants are made on the GPU", float(gpu.allocatable), uuid=uuid)


def _memory(families: Families, gpu: Gpu) -> None:
    uuid, readings = gpu.identity.uuid, gpu.readings
    families.gauge("gpu_memory_total_bytes", "VRAM of the GPU", gpu.vram_bytes.value, uuid=uuid)
    families.gauge("gpu_memory_used_bytes", "VRAM in use", readings.memory_used_bytes.value, uuid=uuid)
    families.gauge(
        "gpu_memory_reserved_bytes",
        "VRAM that the driver keeps for itself",
        readings.memory_reserved_bytes.value,
        uuid=uuid,
    )
    families.gauge("gpu_memory_free_bytes", "VRAM not in use", readings.memory_free_bytes.value, uuid=uuid)


def _load(families: Families, gpu: Gpu, now: float) -> None:
    uuid, readings = gpu.identity.uuid, gpu.readings
    families.gauge(
        "gpu_utilization_ratio", "Share of time with a kernel resident", readings.utilization_ratio.value, uuid=uuid
    )
    families.gauge(
        "gpu_memory_utilization_ratio",
        "Share of time in which memory was read or written",
        readings.memory_utilization_ratio.value,
        uuid=uuid,
    )
    families.gauge(
        "gpu_temperature_celsius", "Temperature", readings.temperature_celsius.value, uuid=uuid, sensor="gpu"
    )
    families.gauge("gpu_power_watts", "Power drawn", readings.power_watts.value, uuid=uuid)
    families.gauge("gpu_power_limit_watts", "Power limit in force", readings.power_limit_watts.value, uuid=uuid)
    families.counter(
        "gpu_energy_joules_total", "Energy since the driver was loaded", readings.energy_joules_total.value, uuid=uuid
    )
    families.gauge("gpu_clock_hertz", "Clock", readings.sm_clock_hertz.value, uuid=uuid, domain="sm")
    families.gauge("gpu_clock_hertz", "Clock", readings.memory_clock_hertz.value, uuid=uuid, domain="memory")
    used = readings.memory_used_bytes
    if used.value is not None:
        families.gauge(
            "gpu_reading_age_seconds", "Age of the memory reading", max(0.0, now - used.observed_at), uuid=uuid
        )


def _processes(families: Families, gpu: Gpu, attached: set[int]) -> None:
    processes = gpu.readings.processes
    if processes is None:
        return
    ours = sum(process.pid in attached for process in processes)
    text = "Processes with memory on the GPU, by whether they belong to an allocation"
    families.gauge("process_count", text, ours, uuid=gpu.identity.uuid, attributed="true")
    families.gauge("process_count", text, len(processes) - ours, uuid=gpu.identity.uuid, attributed="false")
