"""What each Pod, or other owner of an allocation, may use and does use.

Owners that are no Pod have empty namespace, pod and container and go by their allocation id.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from hypervisor.metrics.family import Families
from hypervisor.metrics.view import MetricsView
from hypervisor.model import Allocation, AllocationUsage, DeviceGrant, DeviceUsage, LearnedCost, OwnerKind, Pacing
from hypervisor.model.allocation import SHARE_FULL_PPM

MOST_FUNCTIONS = 5  # of an owner on a device, whatever its figures hold
MOST_NAME = 71  # letters


def collect(view: MetricsView) -> Iterable[Metric]:
    """Limits and use, by owner and device; they go when the allocation goes."""
    usages = {usage.allocation_id: usage for usage in view.snapshot.usages}
    families, costs = Families(), _Costs()
    for allocation in view.snapshot.allocations:
        labels = _labels(allocation)
        usage = usages.get(allocation.spec.allocation_id)
        used = {device.gpu_uuid: device for device in usage.devices} if usage else {}
        for grant in allocation.grants:
            _limits(families, grant, labels | {"uuid": grant.gpu_uuid})
            device = used.get(grant.gpu_uuid)
            if device is not None:
                _use(families, device, labels | {"uuid": grant.gpu_uuid})
                costs.add(device, labels | {"uuid": grant.gpu_uuid})
        if usage is not None:
            _whole(families, usage, labels)
    costs.tell(families)
    yield from families.families()


def _labels(allocation: Allocation) -> dict[str, str]:
    owner = allocation.spec.owner
    if owner.kind is OwnerKind.POD:
        return {"namespace": owner.namespace, "pod": owner.name, "container": owner.container, "allocation": ""}
    return {"namespace": "", "pod": "", "container": "", "allocation": allocation.spec.allocation_id}


def _limits(families: Families, grant: DeviceGrant, labels: dict[str, str]) -> None:
    families.gauge("pod_gpu_memory_limit_bytes", "VRAM limit; absent: the card", grant.limit_vram_bytes, **labels)
    families.gauge("pod_gpu_compute_limit_ratio", "Limit of GPU time", grant.limit_share_ppm / SHARE_FULL_PPM, **labels)


def _use(families: Families, device: DeviceUsage, labels: dict[str, str]) -> None:
    reserved, overhead = device.reserved_bytes.value, device.overhead_bytes.value
    families.gauge(
        "pod_gpu_memory_used_bytes",
        "VRAM reserved by the owner's processes, known overhead of contexts included",
        None if reserved is None else reserved + (overhead or 0),
        **labels,
    )
    families.gauge("pod_gpu_compute_used_ratio", "GPU time achieved", device.busy_ratio.value, **labels)
    families.gauge(
        "pod_gpu_over_limit",
        "1 when more VRAM is held than a limit lowered meanwhile allows",
        float(device.over),
        **labels,
    )
    families.counter(
        "pod_gpu_throttled_seconds_total",
        "Time that launches have waited for their share",
        device.throttled_seconds_total.value,
        **labels,
    )
    families.counter(
        "pod_gpu_oom_rejections_total", "Requests of VRAM refused at the limit", device.denials_total.value, **labels
    )
    families.counter("pod_gpu_launches_total", "Kernel launches", device.launches_total.value, **labels)
    if device.pacing is not None:
        _pacing(families, device.pacing, labels)


def _pacing(families: Families, pacing: Pacing, labels: dict[str, str]) -> None:
    families.gauge(
        "pod_gpu_compute_achieved_ratio",
        "GPU time achieved over the last ten seconds",
        pacing.achieved_ratio.value,
        **labels,
    )
    families.gauge(
        "pod_gpu_compute_balance_seconds",
        "GPU time that may be used at once; below 0 what is owed",
        pacing.balance_seconds.value,
        **labels,
    )
    families.gauge(
        "pod_gpu_compute_correction_ratio", "What learned costs are multiplied by", pacing.correction, **labels
    )
    families.gauge(
        "pod_gpu_compute_lent_ratio",
        "GPU time lent on top of the limit, or taken off it where limits sum up to more than the GPU",
        pacing.lent_ratio,
        **labels,
    )


class _Costs:
    """Learned costs of the functions that each owner was charged most for on each device. A function in several shapes
    has several costs, and one series: their mean by launches."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[float, int]] = {}

    def add(self, device: DeviceUsage, labels: dict[str, str]) -> None:
        """What a device's figures say."""
        for cost in device.pacing.costs[:MOST_FUNCTIONS] if device.pacing is not None else ():
            launches = max(cost.launches, 1)
            key = (*labels.values(), _named(cost), "graph" if cost.graph else "function")
            seconds, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = (seconds + cost.seconds * launches, count + launches)

    def tell(self, families: Families) -> None:
        """One series each."""
        for (namespace, pod, container, allocation, uuid, function, kind), (seconds, count) in self._sums.items():
            families.gauge(
                "pod_gpu_function_cost_seconds",
                "GPU time that a launch is charged, of the five functions charged most; all graphs are one",
                seconds / count,
                namespace=namespace,
                pod=pod,
                container=container,
                allocation=allocation,
                uuid=uuid,
                function=function,
                kind=kind,
            )


def _named(cost: LearnedCost) -> str:
    """A name that programs of a tenant have written: printable ASCII, and not long."""
    if cost.graph:
        return ""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in cost.name[:MOST_NAME])


def _whole(families: Families, usage: AllocationUsage, labels: dict[str, str]) -> None:
    attached = float(bool(usage.processes))
    families.gauge("limiter_attached", "1 when a process is attached to the limits", attached, **labels)
    families.gauge(
        "limiter_processes", "Processes of the owner that are attached to its limits", len(usage.processes), **labels
    )
    families.gauge(
        "limiter_bypassing_processes",
        "Processes of the owner that use a GPU and are not attached to its limits",
        len(usage.bypassing_pids),
        **labels,
    )
    families.gauge(
        "limiter_tampering", "1 when the usage file can't be trusted", float(bool(usage.tampering)), **labels
    )
