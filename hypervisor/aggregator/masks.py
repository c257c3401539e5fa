"""Field masks: which fields of an object an answer carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from hypervisor.model import Refusal, RefusalReason
from hypervisor.v1 import cluster_pb2

Mask = Callable[[cluster_pb2.ClusterGpu], cluster_pb2.ClusterGpu]
_MAX_PATHS = 64
# The stubs know two types of descriptors and allow one.
_DESCRIPTOR: Any = cluster_pb2.ClusterGpu.DESCRIPTOR


def gpu_mask(fields: FieldMask) -> Mask:
    """How to cut an object down to these fields; all of them when there are none. Raises Refusal for a wrong path."""
    if not fields.paths:
        return lambda gpu: gpu
    if len(fields.paths) > _MAX_PATHS:
        raise Refusal(RefusalReason.INVALID_ARGUMENT, f"more than {_MAX_PATHS} paths", field="fields")
    for path in fields.paths:
        if not FieldMask(paths=[path]).IsValidForDescriptor(_DESCRIPTOR):
            raise Refusal(
                RefusalReason.INVALID_ARGUMENT,
                f"ClusterGpu has no field {path!r}",
                field="fields",
                remedy="name fields as in the .proto file, for instance gpu.capacity.available_tflops",
            )
    # The caller's message may be freed or changed; the mask is ours.
    mask = FieldMask(paths=fields.paths)

    def cut(gpu: cluster_pb2.ClusterGpu) -> cluster_pb2.ClusterGpu:
        made = cluster_pb2.ClusterGpu()
        mask.MergeMessage(gpu, made)
        return made

    return cut
