"""What is published, as messages of the API. Ages are those at `now`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from hypervisor.model import (
    Allocation,
    AllocationUsage,
    AttachedProcess,
    Condition,
    ConditionStatus,
    DeviceGrant,
    DeviceRequest,
    DeviceUsage,
    Event,
    Figure,
    FigureSource,
    Gpu,
    GpuReadings,
    GpuTopology,
    HealthCode,
    IsolationMode,
    NodeSnapshot,
    ObjectReference,
    Pacing,
    Revision,
    TopologyLink,
    Worker,
)
from hypervisor.model.figure import Number
from hypervisor.rpc.convert import enums
from hypervisor.rpc.convert.moment import Moment, wall_timestamp
from hypervisor.rpc.convert.requests import resources_to_proto, spec_to_proto
from hypervisor.v1 import types_pb2 as pb


def revision_to_proto(revision: Revision) -> pb.Revision:
    return pb.Revision(epoch=revision.epoch, revision=revision.revision)


def figure_to_proto(figure: Figure[int] | Figure[float], now: Moment) -> pb.Figure:
    if figure.value is None:
        return pb.Figure(absent_reason=figure.absent_reason)
    observed_at = figure.observed_at
    # 0 is a figure that nobody has observed: it stands in a table and has no age.
    return pb.Figure(
        value=figure.value,
        stale=figure.stale,
        source=enums.FIGURE_SOURCES[figure.source] if figure.source is not None else None,
        age_seconds=round(now.age(observed_at), 3) if observed_at else 0.0,
        observed_at=now.wall_of(observed_at) if observed_at else None,
    )


def bytes_to_proto(figure: Figure[int], now: Moment) -> pb.ByteFigure:
    if figure.value is None:
        return pb.ByteFigure(absent_reason=figure.absent_reason)
    observed_at = figure.observed_at
    return pb.ByteFigure(
        bytes=max(0, figure.value),
        stale=figure.stale,
        source=enums.FIGURE_SOURCES[figure.source] if figure.source is not None else None,
        age_seconds=round(now.age(observed_at), 3) if observed_at else 0.0,
        observed_at=now.wall_of(observed_at) if observed_at else None,
    )


def condition_to_proto(condition: Condition) -> pb.Condition:
    return pb.Condition(
        type=condition.type,
        status=condition.status.value,
        reason=condition.code.value,
        message=condition.message,
        last_transition_at=wall_timestamp(condition.last_transition_at),
    )


def link_to_proto(link: TopologyLink) -> pb.TopologyLink:
    return pb.TopologyLink(
        peer_uuid=link.peer_uuid,
        tier=link.tier,
        pcie_level=enums.PCIE_LEVELS[link.pcie_level] if link.pcie_level is not None else None,
        nvlink_count=link.nvlink_count,
        nvlink_switched=link.nvlink_switched,
        nvlink_version=link.nvlink_version,
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second,
        peer_access=link.peer_access,
        unknown_reason=link.unknown_reason,
    )


def topology_to_proto(topology: GpuTopology) -> pb.GpuTopology:
    return pb.GpuTopology(
        gpu_uuid=topology.gpu_uuid,
        numa_node=topology.numa_node,
        cpu_affinity=topology.cpu_affinity,
        links=[link_to_proto(link) for link in topology.links],
    )


def readings_to_proto(readings: GpuReadings, now: Moment) -> pb.GpuReadings:
    processes: Figure[int]
    if readings.processes is None:
        processes = Figure.absent(readings.processes_absent_reason or "the driver gave no list of processes")
    else:
        # The list has no time of its own; it is read in the same round as the memory.
        observed_at = readings.memory_used_bytes.observed_at
        processes = Figure(len(readings.processes), FigureSource.DRIVER, observed_at)
    return pb.GpuReadings(
        memory_used=bytes_to_proto(readings.memory_used_bytes, now),
        memory_free=bytes_to_proto(readings.memory_free_bytes, now),
        memory_reserved=bytes_to_proto(readings.memory_reserved_bytes, now),
        utilization_ratio=figure_to_proto(readings.utilization_ratio, now),
        memory_utilization_ratio=figure_to_proto(readings.memory_utilization_ratio, now),
        temperature_celsius=figure_to_proto(readings.temperature_celsius, now),
        power_watts=figure_to_proto(readings.power_watts, now),
        power_limit_watts=figure_to_proto(readings.power_limit_watts, now),
        energy_joules_total=figure_to_proto(readings.energy_joules_total, now),
        sm_clock_hertz=figure_to_proto(readings.sm_clock_hertz, now),
        memory_clock_hertz=figure_to_proto(readings.memory_clock_hertz, now),
        process_count=figure_to_proto(processes, now),
    )


def gpu_to_proto(gpu: Gpu, now: Moment) -> pb.Gpu:
    """One device with readings, topology and what can be granted of it."""
    identity = gpu.identity
    partition = identity.partition
    return pb.Gpu(
        uuid=identity.uuid,
        index=identity.index,
        minor=identity.minor,
        pci_bus_id=identity.pci_bus_id,
        pci_device_id=identity.pci_device_id,
        model=identity.model,
        vendor=identity.vendor,
        architecture=identity.architecture,
        compute_capability=identity.compute_capability,
        sm_count=identity.sm_count,
        serial=identity.serial,
        vbios_version=identity.vbios_version,
        partition=pb.Partition(
            parent_uuid=partition.parent_uuid,
            gpu_instance_id=partition.gpu_instance_id,
            compute_instance_id=partition.compute_instance_id,
            profile=partition.profile,
        )
        if partition is not None
        else None,
        capacity=pb.GpuCapacity(
            tflops=figure_to_proto(gpu.tflops, now),
            vram=bytes_to_proto(gpu.vram_bytes, now),
            requested_tflops=gpu.requested_tflops,
            requested_vram_bytes=gpu.requested_vram_bytes,
            requested_share_ppm=gpu.requested_share_ppm,
            available_tflops=figure_to_proto(gpu.available_tflops, now),
            available_vram=bytes_to_proto(gpu.available_vram_bytes, now),
            unattributed=bytes_to_proto(gpu.unattributed_bytes, now),
            tflops_ratio=gpu.tflops_ratio,
            vram_ratio=gpu.vram_ratio,
        ),
        readings=readings_to_proto(gpu.readings, now),
        health=enums.HEALTH_STATES[gpu.health],
        conditions=[condition_to_proto(condition) for condition in gpu.conditions],
        active_isolation=enums.ISOLATION_MODES[gpu.active_isolation] if gpu.active_isolation is not None else None,
        used_by=gpu.used_by,
        topology=topology_to_proto(gpu.topology) if gpu.topology is not None else None,
        allocation_ids=gpu.allocation_ids,
        allocatable=gpu.allocatable,
        simulated=identity.simulated,
        revision=revision_to_proto(gpu.revision),
    )


def process_to_proto(process: AttachedProcess) -> pb.AttachedProcess:
    return pb.AttachedProcess(
        host_pid=process.host_pid,
        pid=process.pid,
        start_time_ticks=process.start_time_ticks,
        reserved_bytes_by_device=process.reserved_bytes,
    )


def usage_to_proto(usage: DeviceUsage, now: Moment) -> pb.DeviceUsage:
    return pb.DeviceUsage(
        reserved=bytes_to_proto(usage.reserved_bytes, now),
        overhead=bytes_to_proto(usage.overhead_bytes, now),
        busy_ratio=figure_to_proto(usage.busy_ratio, now),
        throttled_seconds_total=figure_to_proto(usage.throttled_seconds_total, now),
        launches_total=figure_to_proto(usage.launches_total, now),
        denials_total=figure_to_proto(usage.denials_total, now),
        over=usage.over,
        pacing=pacing_to_proto(usage.pacing, now) if usage.pacing is not None else None,
    )


def pacing_to_proto(pacing: Pacing, now: Moment) -> pb.Pacing:
    return pb.Pacing(
        achieved_ratio=figure_to_proto(pacing.achieved_ratio, now),
        balance_seconds=figure_to_proto(pacing.balance_seconds, now),
        correction=pacing.correction,
        correction_frozen=pacing.correction_frozen,
        lent_ratio=pacing.lent_ratio,
        costs=[
            pb.LearnedCost(
                name=cost.name, seconds=cost.seconds, launches=cost.launches, samples=cost.samples, graph=cost.graph
            )
            for cost in pacing.costs
        ],
    )


def allocation_to_proto(allocation: Allocation, usage: AllocationUsage | None, now: Moment) -> pb.Allocation:
    """An allocation, with what it uses where that is known yet."""
    devices = usage.devices if usage is not None else ()
    used = {device.gpu_uuid: device for device in devices}
    message = pb.Allocation(
        spec=spec_to_proto(allocation.spec),
        uid=allocation.uid,
        phase=enums.ALLOCATION_PHASES[allocation.phase],
        revision=revision_to_proto(allocation.revision),
        created_at=wall_timestamp(allocation.created_at),
        devices=[
            _granted_to_proto(request, grant, used.get(grant.gpu_uuid), now)
            for request, grant in zip_longest(_requests(allocation), allocation.grants)
            if grant is not None
        ],
        directory=allocation.directory,
        simulated=allocation.simulated,
    )
    if usage is None:
        return message
    message.enforcement = enums.ENFORCEMENTS[usage.enforcement]
    message.processes.extend(process_to_proto(process) for process in usage.processes)
    message.bypassing_pids.extend(usage.bypassing_pids)
    if usage.tampering:
        message.conditions.append(
            pb.Condition(
                type="UsageTrusted",
                status=ConditionStatus.FALSE.value,
                reason=HealthCode.USAGE_TAMPERED.value,
                message=usage.tampering,
            )
        )
    return message


def _requests(allocation: Allocation) -> tuple[DeviceRequest, ...]:
    """The requests that the grants answer: an instance that was found for one is granted as a whole."""
    if allocation.spec.isolation is not IsolationMode.PARTITIONED:
        return allocation.spec.devices
    return tuple(
        request if request.gpu.strip().lower().startswith("mig-") else DeviceRequest()
        for request in allocation.spec.devices
    )


def _granted_to_proto(
    request: DeviceRequest | None, grant: DeviceGrant, usage: DeviceUsage | None, now: Moment
) -> pb.AllocatedDevice:
    message = pb.AllocatedDevice(
        gpu_uuid=grant.gpu_uuid,
        gpu_index=grant.gpu_index,
        request_share_ppm=grant.request_share_ppm,
        limit_share_ppm=grant.limit_share_ppm,
        request_vram_bytes=grant.request_vram_bytes,
        limit_vram_bytes=grant.limit_vram_bytes,  # None stays 0, and limits below says nothing of VRAM: the card
        usage=usage_to_proto(usage, now) if usage is not None else None,
    )
    if request is not None:
        limits, requests = resources_to_proto(request.limits), resources_to_proto(request.requests)
        if not requests.HasField("compute") and limits.HasField("compute"):
            requests.compute.CopyFrom(limits.compute)
        message.limits.CopyFrom(limits)
        message.requests.CopyFrom(requests)
    message.requests.vram_bytes = grant.request_vram_bytes
    if grant.limit_vram_bytes is not None:
        message.limits.vram_bytes = grant.limit_vram_bytes
    if usage is not None and usage.effective_sm_percent is not None:
        message.effective_hard_sm_percent = usage.effective_sm_percent
    return message


def worker_to_proto(worker: Worker) -> pb.Worker:
    return pb.Worker(
        worker_id=worker.worker_id,
        allocation_id=worker.allocation_id,
        command=worker.command,
        gpu_uuids=worker.gpu_uuids,
        phase=enums.WORKER_PHASES[worker.phase],
        pid=worker.pid,
        restarts=worker.restarts,
        last_exit_reason=worker.last_exit_reason,
        last_output_lines=worker.last_output_lines,
        started_at=wall_timestamp(worker.started_at) if worker.started_at else None,
        isolation=enums.ISOLATION_MODES[worker.isolation],
        effective_sm_percent=worker.effective_sm_percent,
        memory_limit_bytes=worker.memory_limit_bytes,
        restart_policy=enums.RESTART_POLICIES[worker.restart_policy],
        revision=revision_to_proto(worker.revision),
        ready=worker.ready,
        unready_reason=worker.unready_reason,
        log_path=worker.log_path,
    )


def node_to_proto(snapshot: NodeSnapshot, now: Moment) -> pb.Node:
    """The node with the sums over its cards; a MIG instance is a part of its card and counts only without it."""
    cards = [gpu for gpu in snapshot.gpus if gpu.identity.partition is None] or list(snapshot.gpus)
    return pb.Node(
        identity=pb.NodeIdentity(
            name=snapshot.identity.name, uid=snapshot.identity.uid, boot_id=snapshot.identity.boot_id
        ),
        revision=revision_to_proto(snapshot.revision),
        hypervisor_version=snapshot.version,
        driver_version=snapshot.system.driver_version,
        nvml_version=snapshot.system.nvml_version,
        cuda_version=snapshot.system.cuda_version,
        kernel_version=snapshot.system.kernel_version,
        conditions=[condition_to_proto(condition) for condition in snapshot.conditions],
        gpu_count=len(snapshot.gpus),
        tflops=figure_to_proto(_sum([gpu.tflops for gpu in cards]), now),
        vram=bytes_to_proto(_sum([gpu.vram_bytes for gpu in cards]), now),
        started_at=wall_timestamp(snapshot.started_at),
        simulated=snapshot.simulated,
        host_memory_bytes=snapshot.system.host_memory_bytes,
        labels=dict(snapshot.labels),
    )


def _sum(figures: Sequence[Figure[Number]]) -> Figure[Number]:
    """The sum of figures, as old as the oldest; with a part that is unknown, the sum is."""
    reasons = [figure.absent_reason for figure in figures if figure.value is None]
    if reasons:
        return Figure.absent(reasons[0] if len(reasons) == 1 else f"{len(reasons)} GPUs don't say: {reasons[0]}")
    observed = [figure.observed_at for figure in figures if figure.observed_at]
    return Figure(
        sum(figure.value for figure in figures if figure.value is not None),
        figures[0].source if figures else None,
        min(observed, default=0.0),
        any(figure.stale for figure in figures),
    )


def reference_to_proto(reference: ObjectReference) -> pb.ObjectReference:
    return pb.ObjectReference(
        kind=reference.kind.value, namespace=reference.namespace, name=reference.name, uid=reference.uid
    )


def event_to_proto(event: Event) -> pb.Event:
    return pb.Event(
        node_uid=event.node_uid,
        node_name=event.node_name,
        epoch=event.epoch,
        sequence=event.sequence,
        type=enums.EVENT_TYPES[event.type],
        reason=event.reason,
        regarding=reference_to_proto(event.regarding),
        message=event.message,
        fields=dict(event.fields),
        first_at=wall_timestamp(event.first_at),
        last_at=wall_timestamp(event.last_at),
        count=event.count,
        simulated=event.simulated,
    )
