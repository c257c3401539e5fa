"""The table of each message type. A new column is one row here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypervisor.cli import figures
from hypervisor.cli.output import Column, Table
from hypervisor.model.quantity import format_bytes
from hypervisor.v1 import types_pb2 as pb


def word(enum: Any, number: int, prefix: str) -> str:
    return figures.enum_word(enum, number, prefix).capitalize()


def ready(conditions: Iterable[pb.Condition]) -> str:
    """Ready, or why not."""
    for condition in conditions:
        if condition.type == "Ready":
            return "Ready" if condition.status == "True" else f"NotReady ({condition.reason})"
    return "Unknown"


def model(gpu: pb.Gpu) -> str:
    # The mark stands in front, where a narrow column doesn't cut it off.
    return ("sim " if gpu.simulated else "") + gpu.model.removeprefix("NVIDIA ")


def free_tflops(gpu: pb.Gpu) -> str:
    capacity = gpu.capacity
    return f"{figures.figure(capacity.available_tflops)}/{figures.figure(capacity.tflops)}"


def free_vram(gpu: pb.Gpu) -> str:
    capacity = gpu.capacity
    return f"{figures.byte_figure(capacity.available_vram)}/{figures.byte_figure(capacity.vram)}"


def owner(allocation: pb.Allocation) -> str:
    """Who an allocation belongs to."""
    found = allocation.spec.owner
    match found.WhichOneof("kind"):
        case "process":
            return f"{found.process.command or 'process'}[{found.process.pid}]"
        case "pod":
            return f"{found.pod.namespace}/{found.pod.name}"
        case "declared_in":
            return found.declared_in
        case "name":
            return "(named)"
    return ""


def by_device(cells: Iterable[str]) -> str:
    """One cell for all devices: once where they are alike."""
    found = list(cells)
    return found[0] if len(set(found)) == 1 else ",".join(found)


def achieved(device: pb.AllocatedDevice) -> str:
    """Share of GPU time over the last ten seconds, of the limit."""
    share = figures.figure(device.usage.pacing.achieved_ratio, figures.percent)
    return f"{share}/{figures.share(device.limit_share_ppm)}"


def balance(device: pb.AllocatedDevice) -> str:
    """GPU time that may be used at once; below 0 what is owed. Nothing where nobody is paced."""
    if not device.usage.HasField("pacing"):
        return "-"
    return figures.figure(device.usage.pacing.balance_seconds, figures.span)


def top_cost(device: pb.AllocatedDevice) -> str:
    """The function that was charged most for, and what a launch of it is charged."""
    for cost in device.usage.pacing.costs:
        return f"{function_name(cost)} {figures.span(cost.seconds)}"
    return "-"


def function_name(cost: pb.LearnedCost) -> str:
    """As people know it."""
    return "graph" if cost.graph else cost.name or "?"


def used(device: pb.AllocatedDevice) -> str:
    """VRAM that counts against the limit: reserved, and the overhead where it is known."""
    usage = device.usage
    if not usage.HasField("reserved") or not usage.reserved.HasField("bytes"):
        return figures.UNKNOWN
    total = usage.reserved.bytes + usage.overhead.bytes
    return format_bytes(total) + ("!" if usage.over else "")


def vram_limit(device: pb.AllocatedDevice) -> str:
    return figures.vram(device.limits)


def link(gpu: pb.Gpu) -> str:
    """NVLink peers by number of links."""
    peers = [link for link in gpu.topology.links if link.nvlink_count]
    return f"{len(peers)}x{peers[0].nvlink_count}" if peers else "none"


GPU = Table(
    name=lambda gpu: gpu.uuid,
    columns=(
        Column(header="GPU", cell=lambda gpu: str(gpu.index)),
        Column(header="UUID", cell=lambda gpu: gpu.uuid, shrinks=True),
        Column(header="MODEL", cell=model, shrinks=True),
        Column(header="FREE TFLOPS", cell=free_tflops),
        Column(header="FREE VRAM", cell=free_vram),
        Column(header="BUSY", cell=lambda gpu: figures.figure(gpu.readings.utilization_ratio, figures.percent)),
        Column(header="PODS", cell=lambda gpu: str(len(gpu.allocation_ids))),
        Column(header="HEALTH", cell=lambda gpu: word(pb.HealthState, gpu.health, "HEALTH_STATE_")),
        Column(
            header="NUMA",
            cell=lambda gpu: str(gpu.topology.numa_node) if gpu.topology.HasField("numa_node") else "",
            wide=True,
        ),
        Column(header="NVLINK", cell=link, wide=True),
        Column(header="PCI", cell=lambda gpu: gpu.pci_bus_id, wide=True),
        Column(header="TEMP C", cell=lambda gpu: figures.figure(gpu.readings.temperature_celsius), wide=True),
        Column(header="POWER W", cell=lambda gpu: figures.figure(gpu.readings.power_watts), wide=True),
        Column(
            header="MODE",
            cell=lambda gpu: figures.enum_word(pb.IsolationMode, gpu.active_isolation, "ISOLATION_MODE_"),
            wide=True,
        ),
        Column(header="ALLOCATIONS", cell=lambda gpu: ",".join(gpu.allocation_ids), wide=True),
    ),
)
ALLOCATION = Table(
    name=lambda allocation: allocation.spec.allocation_id,
    columns=(
        Column(header="NAME", cell=lambda allocation: allocation.spec.allocation_id, shrinks=True),
        Column(header="OWNER", cell=owner, shrinks=True),
        Column(header="GPU", cell=lambda found: ",".join(str(device.gpu_index) for device in found.devices)),
        Column(
            header="COMPUTE", cell=lambda found: by_device(figures.compute(device.limits) for device in found.devices)
        ),
        Column(header="VRAM", cell=lambda found: by_device(vram_limit(device) for device in found.devices)),
        Column(header="USED", cell=lambda found: by_device(used(device) for device in found.devices)),
        Column(header="PHASE", cell=lambda found: word(pb.AllocationPhase, found.phase, "ALLOCATION_PHASE_")),
        Column(
            header="ENFORCEMENT",
            cell=lambda found: figures.enum_word(pb.Enforcement, found.enforcement, "ENFORCEMENT_"),
        ),
        Column(
            header="UNLIMITED PIDS",
            cell=lambda found: ",".join(map(str, found.bypassing_pids)),
            wide=True,
            shrinks=True,
        ),
        Column(
            header="BUSY",
            cell=lambda found: by_device(
                figures.figure(device.usage.busy_ratio, figures.percent) for device in found.devices
            ),
            wide=True,
        ),
        Column(
            header="ACHIEVED", cell=lambda found: by_device(achieved(device) for device in found.devices), wide=True
        ),
        Column(header="BALANCE", cell=lambda found: by_device(balance(device) for device in found.devices), wide=True),
        Column(
            header="TOP FUNCTION", cell=lambda found: by_device(top_cost(device) for device in found.devices), wide=True
        ),
        Column(
            header="THROTTLED S",
            cell=lambda found: by_device(
                figures.figure(device.usage.throttled_seconds_total) for device in found.devices
            ),
            wide=True,
        ),
        Column(
            header="DENIALS",
            cell=lambda found: by_device(figures.figure(device.usage.denials_total) for device in found.devices),
            wide=True,
        ),
        Column(header="PROCESSES", cell=lambda found: str(len(found.processes)), wide=True),
        Column(header="AGE", cell=lambda found: figures.since(found.created_at), wide=True),
        Column(header="UID", cell=lambda found: found.uid, wide=True),
    ),
)
NODE = Table(
    name=lambda node: node.identity.name,
    columns=(
        Column(header="NAME", cell=lambda node: node.identity.name, shrinks=True),
        Column(header="STATUS", cell=lambda node: ready(node.conditions), shrinks=True),
        Column(header="GPUS", cell=lambda node: f"{node.gpu_count}" + (" (sim)" if node.simulated else "")),
        Column(header="TFLOPS", cell=lambda node: figures.figure(node.tflops)),
        Column(header="VRAM", cell=lambda node: figures.byte_figure(node.vram)),
        Column(header="DRIVER", cell=lambda node: node.driver_version),
        Column(header="CUDA", cell=lambda node: node.cuda_version),
        Column(header="UP", cell=lambda node: figures.since(node.started_at)),
        Column(header="VERSION", cell=lambda node: node.hypervisor_version, wide=True),
        Column(header="KERNEL", cell=lambda node: node.kernel_version, wide=True),
        Column(header="UID", cell=lambda node: node.identity.uid, wide=True),
        Column(header="BOOT ID", cell=lambda node: node.identity.boot_id, wide=True),
    ),
)
WORKER = Table(
    name=lambda worker: worker.worker_id,
    columns=(
        Column(header="NAME", cell=lambda worker: worker.worker_id, shrinks=True),
        Column(header="ALLOCATION", cell=lambda worker: worker.allocation_id, shrinks=True),
        Column(header="PHASE", cell=lambda worker: word(pb.WorkerPhase, worker.phase, "WORKER_PHASE_")),
        Column(header="READY", cell=lambda worker: "yes" if worker.ready else "no"),
        Column(header="PID", cell=lambda worker: str(worker.pid) if worker.HasField("pid") else ""),
        Column(header="RESTARTS", cell=lambda worker: str(worker.restarts)),
        Column(header="AGE", cell=lambda worker: figures.since(worker.started_at)),
        Column(header="COMMAND", cell=lambda worker: " ".join(worker.command), wide=True),
        Column(header="LAST EXIT", cell=lambda worker: worker.last_exit_reason, wide=True),
    ),
)
EVENT = Table(
    name=lambda event: f"{event.node_uid}/{event.epoch}/{event.sequence}",
    columns=(
        Column(header="AGE", cell=lambda event: figures.since(event.last_at)),
        Column(header="TYPE", cell=lambda event: word(pb.EventType, event.type, "EVENT_TYPE_")),
        Column(header="REASON", cell=lambda event: event.reason),
        Column(header="OBJECT", cell=lambda event: f"{event.regarding.kind}/{event.regarding.name}", shrinks=True),
        Column(header="MESSAGE", cell=lambda event: event.message, shrinks=True),
        Column(header="COUNT", cell=lambda event: str(event.count), wide=True),
        Column(header="NODE", cell=lambda event: event.node_name, wide=True),
        Column(header="SEQUENCE", cell=lambda event: f"{event.epoch}.{event.sequence}", wide=True),
    ),
)
# Full name of a message -> its table.
TABLES: Mapping[str, Table] = {
    pb.Gpu.DESCRIPTOR.full_name: GPU,
    pb.Allocation.DESCRIPTOR.full_name: ALLOCATION,
    pb.Node.DESCRIPTOR.full_name: NODE,
    pb.Worker.DESCRIPTOR.full_name: WORKER,
    pb.Event.DESCRIPTOR.full_name: EVENT,
}
# Kind -> the table whose headers an empty list shows.
EMPTY: Mapping[str, Table] = {
    "gpus": GPU,
    "pods": ALLOCATION,
    "nodes": NODE,
    "workers": WORKER,
    "events": EVENT,
    "pools": NODE,
}


def table_of(item: Any) -> Table:
    """The table for a message."""
    table = TABLES.get(item.DESCRIPTOR.full_name)
    if table is None:
        # What an aggregator keeps is shown by columns of ours, and so imports them.
        from hypervisor.cli.cluster_tables import cluster_table

        table = cluster_table(item)
    return table
