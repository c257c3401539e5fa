"""What a Pod hears of a refusal, and which workload its share counts for."""

from __future__ import annotations

import pytest

from hypervisor.kube.names import WORKLOAD
from hypervisor.kube.pod import pod_from_mapping
from hypervisor.kube.refused import event_reason
from hypervisor.model import EventType, Refusal, RefusalReason
from hypervisor.model.event_reasons import check_event


@pytest.mark.parametrize(
    ("reason", "field", "told"),
    [
        (RefusalReason.INSUFFICIENT_VRAM, "devices[0]", "GPUQuotaOrCapacityNotEnough"),
        (RefusalReason.INSUFFICIENT_TFLOPS, "devices[0]", "GPUQuotaOrCapacityNotEnough"),
        (RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED, "", "PartitionTemplateMatchFailed"),
        (RefusalReason.STORAGE_FAILED, "", "CommitFailed"),
        (RefusalReason.INVALID_ARGUMENT, "owner.container", "ContainerGPUAllocationFailed"),
        (RefusalReason.INVALID_ARGUMENT, "isolation", "GPUDeviceAllocatedFailed"),
        (RefusalReason.GPU_UNHEALTHY, "", "GPUDeviceAllocatedFailed"),
    ],
)
def test_a_refusal_is_told_under_the_reason_of_its_cause(reason: RefusalReason, field: str, told: str) -> None:
    refusal = Refusal(reason, "so it is", field=field)
    assert event_reason(refusal) == told
    check_event(told, "Pod", EventType.WARNING, {"cause": str(refusal)}, str(refusal))


@pytest.mark.parametrize(
    ("labels", "annotations", "workload"),
    [
        ({WORKLOAD: "w"}, {WORKLOAD: "other"}, "w"),
        ({}, {WORKLOAD: "w"}, "w"),
        (None, None, ""),
        ({WORKLOAD: "w" * 300}, None, "w" * 253),
    ],
)
def test_the_workload_of_a_pod(labels: object, annotations: object, workload: str) -> None:
    pod = pod_from_mapping({"metadata": {"name": "p", "uid": "u", "labels": labels, "annotations": annotations}})
    assert pod.workload == workload
