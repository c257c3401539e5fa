"""Which GPU objects a caller wants: a filter becomes one function of an object. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hypervisor.aggregator import derive
from hypervisor.aggregator.records import GpuObject
from hypervisor.model import Refusal, RefusalReason
from hypervisor.v1 import cluster_pb2, types_pb2

Predicate = Callable[[GpuObject], bool]


def predicate(wanted: cluster_pb2.GpuFilter) -> Predicate | None:
    """The filter as a function; None when everything matches. Raises Refusal for a filter that means nothing."""
    if not (math.isfinite(wanted.min_available_tflops) and wanted.min_available_tflops >= 0):
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{wanted.min_available_tflops} is no amount of TFLOPS",
            field="filter.min_available_tflops",
        )
    if wanted.isolation not in types_pb2.IsolationMode.values():
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT, f"{wanted.isolation} is no isolation mode", field="filter.isolation"
        )
    tests = [*_of_place(wanted), *_of_capacity(wanted)]
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda gpu: all(test(gpu) for test in tests)


def is_allocatable(gpu: GpuObject) -> bool:
    """Whether a grant could be made on it now, as far as is known."""
    return gpu.allocatable and gpu.phase == derive.PHASE_RUNNING and gpu.liveness != cluster_pb2.LIVENESS_LOST


def _of_place(wanted: cluster_pb2.GpuFilter) -> Iterator[Predicate]:
    if pool := wanted.pool:
        yield lambda gpu: pool in gpu.node.pools
    if node_name := wanted.node_name:
        yield lambda gpu: gpu.node.name == node_name
    if model := wanted.model.casefold():
        yield lambda gpu: gpu.model.casefold() == model
    if vendor := wanted.vendor.casefold():
        yield lambda gpu: gpu.vendor.casefold() == vendor
    if wanted.HasField("max_tier"):
        max_tier = wanted.max_tier
        yield lambda gpu: gpu.worst_tier <= max_tier


def _of_capacity(wanted: cluster_pb2.GpuFilter) -> Iterator[Predicate]:
    if isolation := wanted.isolation:
        # An idle card may take any mode.
        yield lambda gpu: gpu.isolation in (isolation, types_pb2.ISOLATION_MODE_UNSPECIFIED)
    if tflops := wanted.min_available_tflops:
        yield lambda gpu: gpu.available_tflops is not None and gpu.available_tflops >= tflops
    if vram := wanted.min_available_vram_bytes:
        yield lambda gpu: gpu.available_vram_bytes is not None and gpu.available_vram_bytes >= vram
    if wanted.only_allocatable:
        yield is_allocatable
