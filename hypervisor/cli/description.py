"""One object as a page of text; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hypervisor.cli import figures
from hypervisor.cli.output import aligned, fitted, natural_widths, one_line
from hypervisor.cli.tables import EVENT, function_name, owner, ready, used, word
from hypervisor.model.quantity import format_bytes
from hypervisor.v1 import cluster_pb2
from hypervisor.v1 import types_pb2 as pb

Lines = list[str]
_INDENT = "  "
_LABEL = 20
_EVENTS = 20


def described(item: Any, events: Sequence[pb.Event]) -> str:
    """The page of a message that PAGES knows, with the last events about it."""
    lines = PAGES[item.DESCRIPTOR.full_name](item)
    if events:
        lines += ["Events:", *_table(EVENT.rows(events[-_EVENTS:], wide=False))]
    else:
        lines += ["Events: none"]
    return "\n".join(lines)


def _pairs(pairs: Iterable[tuple[str, str]], indent: str = "") -> Lines:
    width = _LABEL - len(indent)
    return [f"{indent}{label + ':':<{width}}{one_line(text)}" for label, text in pairs]


def _table(rows: Sequence[Sequence[str]]) -> Lines:
    natural = natural_widths(rows)
    return [_INDENT + line for line in aligned(rows, fitted(natural, [False] * len(natural), None))]


def _figure(message: pb.Figure, form: Callable[[float], str] = figures.number) -> str:
    return f"{figures.figure(message, form)} ({figures.provenance(message)})"


def _bytes(message: pb.ByteFigure) -> str:
    return f"{figures.byte_figure(message)} ({figures.provenance(message)})"


def _conditions(conditions: Sequence[pb.Condition]) -> Lines:
    if not conditions:
        return ["Conditions: none"]
    rows = [["TYPE", "STATUS", "REASON", "MESSAGE"]]
    rows += [[one_line(part) for part in (each.type, each.status, each.reason, each.message)] for each in conditions]
    return ["Conditions:", *_table(rows)]


def _node(node: pb.Node) -> Lines:
    return [
        *_pairs(
            (
                ("Node", node.identity.name),
                ("UID", node.identity.uid),
                ("Boot ID", node.identity.boot_id),
                ("Simulated", "yes" if node.simulated else "no"),
                ("Status", ready(node.conditions)),
                ("Up for", figures.since(node.started_at)),
                ("Version", node.hypervisor_version),
                ("Driver", node.driver_version),
                ("NVML", node.nvml_version),
                ("CUDA", node.cuda_version),
                ("Kernel", node.kernel_version),
                ("Host memory", format_bytes(node.host_memory_bytes)),
                ("Revision", f"{node.revision.revision} of epoch {node.revision.epoch}"),
                ("GPUs", str(node.gpu_count)),
                ("TFLOPS", _figure(node.tflops)),
                ("VRAM", _bytes(node.vram)),
            )
        ),
        *_conditions(node.conditions),
    ]


def _gpu(gpu: pb.Gpu) -> Lines:
    return [
        *_pairs(_gpu_identity(gpu)),
        "Capacity:",
        *_pairs(_gpu_capacity(gpu.capacity), _INDENT),
        "Readings:",
        *_pairs(_gpu_readings(gpu.readings), _INDENT),
        *_conditions(gpu.conditions),
        *_links(gpu.topology),
    ]


def _cluster_gpu(found: cluster_pb2.ClusterGpu) -> Lines:
    where = [
        ("Node", found.node_name),
        ("Phase", found.phase),
        ("Node heard of", word(cluster_pb2.Liveness, found.node_liveness, "LIVENESS_")),
        ("Pools", ", ".join(found.pools)),
    ]
    if found.HasField("missing_since"):
        where.append(("Missing for", figures.since(found.missing_since)))
    return [*_pairs(where), *_gpu(found.gpu)]


def _cluster_node(found: cluster_pb2.ClusterNode) -> Lines:
    heard = f"{figures.since(found.last_seen_at)} ago ({word(cluster_pb2.Liveness, found.liveness, 'LIVENESS_')})"
    return [*_pairs([("Last heard of", heard)]), *_node(found.node)]


def _gpu_identity(gpu: pb.Gpu) -> Iterable[tuple[str, str]]:
    yield "GPU", f"{gpu.index}"
    yield "UUID", gpu.uuid
    yield "Model", gpu.model
    yield "Simulated", "yes" if gpu.simulated else "no"
    yield "Architecture", f"{gpu.architecture}, compute capability {gpu.compute_capability}"
    yield "SMs", str(gpu.sm_count) if gpu.HasField("sm_count") else figures.UNKNOWN
    yield "PCI", f"{gpu.pci_bus_id} (device {gpu.pci_device_id})"
    yield "Serial", gpu.serial
    yield "VBIOS", gpu.vbios_version
    if gpu.HasField("partition"):
        yield "Partition", f"{gpu.partition.profile} of {gpu.partition.parent_uuid}"
    yield "Health", word(pb.HealthState, gpu.health, "HEALTH_STATE_")
    yield "Takes grants", "yes" if gpu.allocatable else "no"
    yield "Used by", gpu.used_by
    yield "Isolation", figures.enum_word(pb.IsolationMode, gpu.active_isolation, "ISOLATION_MODE_")
    yield "Allocations", ", ".join(gpu.allocation_ids)


def _gpu_capacity(capacity: pb.GpuCapacity) -> Iterable[tuple[str, str]]:
    yield "TFLOPS", _figure(capacity.tflops)
    yield "VRAM", _bytes(capacity.vram)
    yield (
        "Requested",
        (
            f"{figures.number(capacity.requested_tflops)} TFLOPS ({figures.share(capacity.requested_share_ppm)}), "
            f"{format_bytes(capacity.requested_vram_bytes)}"
        ),
    )
    yield "Free TFLOPS", _figure(capacity.available_tflops)
    yield "Free VRAM", _bytes(capacity.available_vram)
    yield "Of nobody's", _bytes(capacity.unattributed)
    yield "Overcommit", f"TFLOPS x {capacity.tflops_ratio:g}, VRAM x {capacity.vram_ratio:g}"


def _gpu_readings(readings: pb.GpuReadings) -> Iterable[tuple[str, str]]:
    def megahertz(value: float) -> str:
        return f"{value / 1e6:.0f} MHz"

    yield "Memory used", _bytes(readings.memory_used)
    yield "Memory free", _bytes(readings.memory_free)
    yield "Memory reserved", _bytes(readings.memory_reserved)
    yield "Busy", _figure(readings.utilization_ratio, figures.percent)
    yield "Memory busy", _figure(readings.memory_utilization_ratio, figures.percent)
    yield "Temperature C", _figure(readings.temperature_celsius)
    yield "Power W", _figure(readings.power_watts)
    yield "Power limit W", _figure(readings.power_limit_watts)
    yield "Energy J", _figure(readings.energy_joules_total)
    yield "SM clock", _figure(readings.sm_clock_hertz, megahertz)
    yield "Memory clock", _figure(readings.memory_clock_hertz, megahertz)
    yield "Processes", _figure(readings.process_count)


def _links(topology: pb.GpuTopology) -> Lines:
    numa = str(topology.numa_node) if topology.HasField("numa_node") else figures.UNKNOWN
    lines = _pairs((("NUMA node", numa), ("CPUs", topology.cpu_affinity)))
    if not topology.links:
        return lines
    rows = [["PEER", "TIER", "PCIE", "NVLINK", "GB/S", "PEER ACCESS"]]
    for link in topology.links:
        nvlink = f"{link.nvlink_count} x {link.nvlink_version}" + (" switched" if link.nvlink_switched else "")
        rows.append(
            [
                link.peer_uuid,
                str(link.tier),
                figures.enum_word(pb.PcieLevel, link.pcie_level, "PCIE_LEVEL_").upper() or figures.UNKNOWN,
                nvlink if link.nvlink_count else "none",
                figures.number(link.bandwidth_bytes_per_second / 1e9)
                if link.HasField("bandwidth_bytes_per_second")
                else figures.UNKNOWN,
                ("yes" if link.peer_access else "no") if link.HasField("peer_access") else figures.UNKNOWN,
            ]
        )
    return [*lines, "Links:", *_table(rows)]


def _allocation(allocation: pb.Allocation) -> Lines:
    spec = allocation.spec
    lines = _pairs(
        (
            ("Name", spec.allocation_id),
            ("UID", allocation.uid),
            ("Owner", owner(allocation)),
            ("Phase", word(pb.AllocationPhase, allocation.phase, "ALLOCATION_PHASE_")),
            ("Isolation", figures.enum_word(pb.IsolationMode, spec.isolation, "ISOLATION_MODE_")),
            ("Enforcement", figures.enum_word(pb.Enforcement, allocation.enforcement, "ENFORCEMENT_")),
            ("Unlimited processes", ", ".join(map(str, allocation.bypassing_pids))),
            ("QoS", figures.enum_word(pb.QosClass, spec.qos, "QOS_CLASS_")),
            ("Policy", figures.enum_word(pb.ComputePolicy, spec.policy, "COMPUTE_POLICY_")),
            ("Age", figures.since(allocation.created_at)),
            ("Directory", allocation.directory),
            ("Simulated", "yes" if allocation.simulated else "no"),
            ("Labels", ", ".join(f"{key}={value}" for key, value in sorted(spec.labels.items()))),
        )
    )
    for device in allocation.devices:
        lines += [f"GPU {device.gpu_index} ({device.gpu_uuid}):", *_pairs(_device(device), _INDENT)]
    return [*lines, *_processes(allocation), *_conditions(allocation.conditions)]


def _device(device: pb.AllocatedDevice) -> Iterable[tuple[str, str]]:
    usage = device.usage
    yield "Compute limit", f"{figures.compute(device.limits)} ({figures.share(device.limit_share_ppm)} of GPU time)"
    yield (
        "Guaranteed",
        (f"{figures.share(device.request_share_ppm)} of GPU time, {format_bytes(device.request_vram_bytes)}"),
    )
    yield "VRAM limit", figures.vram(device.limits)
    if device.HasField("effective_hard_sm_percent"):
        yield "Effective SMs", f"{device.effective_hard_sm_percent:.4g}% for each process, as the hardware rounds it"
    if not device.HasField("usage"):
        yield "Usage", figures.UNKNOWN
        return
    yield "VRAM used", used(device) + (" - over the limit, so that nothing more is granted" if usage.over else "")
    yield "Reserved", _bytes(usage.reserved)
    yield "Overhead", _bytes(usage.overhead)
    yield "Busy", _figure(usage.busy_ratio, figures.percent)
    if usage.HasField("pacing"):
        yield from _pacing(device)
    yield "Throttled s", _figure(usage.throttled_seconds_total)
    yield "Launches", _figure(usage.launches_total)
    yield "Denials", _figure(usage.denials_total)


def _pacing(device: pb.AllocatedDevice) -> Iterable[tuple[str, str]]:
    pacing = device.usage.pacing
    limit = figures.share(device.limit_share_ppm)
    yield "Achieved", f"{_figure(pacing.achieved_ratio, figures.percent)} over 10 s, of {limit}"
    yield "Balance", _figure(pacing.balance_seconds, figures.span)
    frozen = f" (held: {pacing.correction_frozen})" if pacing.correction_frozen else ""
    yield "Correction", f"{pacing.correction:.3f}{frozen}"
    if pacing.lent_ratio > 0:
        yield "Lent", f"{figures.percent(pacing.lent_ratio)} on top of the limit"
    elif pacing.lent_ratio < 0:
        yield "Contracted", f"{figures.percent(-pacing.lent_ratio)} below the limit, which others ask for"
    for cost in pacing.costs:
        yield "Cost", f"{figures.span(cost.seconds)} a launch, {cost.launches} launches, {function_name(cost)}"


def _processes(allocation: pb.Allocation) -> Lines:
    if not allocation.processes:
        return ["Processes: none"]
    rows = [["PID", "PID INSIDE", "RESERVED"]]
    rows += [
        [
            str(process.host_pid) if process.HasField("host_pid") else figures.UNKNOWN,
            str(process.pid),
            ",".join(format_bytes(amount) for amount in process.reserved_bytes_by_device) or "-",
        ]
        for process in allocation.processes
    ]
    return ["Processes:", *_table(rows)]


def _worker(worker: pb.Worker) -> Lines:
    lines = _pairs(
        (
            ("Name", worker.worker_id),
            ("Allocation", worker.allocation_id or "none"),
            ("Command", " ".join(worker.command)),
            ("Phase", word(pb.WorkerPhase, worker.phase, "WORKER_PHASE_")),
            ("Ready", "yes" if worker.ready else f"no: {worker.unready_reason or 'it does not run'}"),
            ("Pid", str(worker.pid) if worker.HasField("pid") else figures.UNKNOWN),
            ("Age", figures.since(worker.started_at) if worker.HasField("started_at") else figures.UNKNOWN),
            ("Restart policy", figures.enum_word(pb.RestartPolicy, worker.restart_policy, "RESTART_POLICY_")),
            ("Restarts", str(worker.restarts)),
            ("Isolation", figures.enum_word(pb.IsolationMode, worker.isolation, "ISOLATION_MODE_")),
            ("GPUs", ", ".join(worker.gpu_uuids) or "none"),
            (
                "Effective SMs",
                f"{worker.effective_sm_percent}%" if worker.HasField("effective_sm_percent") else "not limited",
            ),
            (
                "Memory limit",
                format_bytes(worker.memory_limit_bytes) if worker.HasField("memory_limit_bytes") else "not limited",
            ),
            ("Log", worker.log_path),
            ("Last exit", worker.last_exit_reason or "none"),
        )
    )
    if worker.last_output_lines:
        lines += ["Last output:", *(_INDENT + one_line(line) for line in worker.last_output_lines)]
    return lines


# Full name of a message -> what makes its page.
PAGES: Mapping[str, Callable[[Any], Lines]] = {
    pb.Node.DESCRIPTOR.full_name: _node,
    pb.Gpu.DESCRIPTOR.full_name: _gpu,
    pb.Allocation.DESCRIPTOR.full_name: _allocation,
    pb.Worker.DESCRIPTOR.full_name: _worker,
    cluster_pb2.ClusterGpu.DESCRIPTOR.full_name: _cluster_gpu,
    cluster_pb2.ClusterNode.DESCRIPTOR.full_name: _cluster_node,
}
