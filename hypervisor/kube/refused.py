"""Under which reason a Pod hears that it was refused its share: the one that people know for the cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import Refusal, RefusalReason

# What no more exact reason is known for.
REFUSED = "GPUDeviceAllocatedFailed"
_REASONS: Mapping[RefusalReason, str] = {
    RefusalReason.INSUFFICIENT_TFLOPS: "GPUQuotaOrCapacityNotEnough",
    RefusalReason.INSUFFICIENT_VRAM: "GPUQuotaOrCapacityNotEnough",
    RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED: "PartitionTemplateMatchFailed",
    # Granted, and not to be recorded: it is tried again.
    RefusalReason.STORAGE_FAILED: "CommitFailed",
}


def event_reason(refusal: Refusal) -> str:
    """The reason of the Pod's event."""
    if refusal.reason is RefusalReason.INVALID_ARGUMENT and refusal.field == "owner.container":
        return "ContainerGPUAllocationFailed"
    return _REASONS.get(refusal.reason, REFUSED)
