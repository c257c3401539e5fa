"""Checks of what nodes send: pure, and strict enough that nothing that passes can break a sum, a page or a client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from hypervisor.aggregator.facts import gpu_facts
from hypervisor.v1 import node_pb2, types_pb2

MAX_GPUS = 512
MAX_ALLOCATIONS = 16_384
MAX_OBJECT_BYTES = 64 * 1024
MAX_TFLOPS = 1e6
MAX_VRAM_BYTES = 1 << 50
MAX_RATIO = 1000.0
MAX_AGE_SECONDS = 1e9
# SQLite's integers are signed; no honest counter comes near.
MAX_COUNTER = (1 << 63) - 1
# What protobuf allows in a Timestamp: 0001-01-01 to 9999-12-31. Outside, clients fail to print it.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class ReportError(ValueError):
    """A report that can't be used: field is the path of what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def check_identity(identity: types_pb2.NodeIdentity) -> None:
    """Raise ReportError unless name, UID and boot id can name a node."""
    if not _NAME.fullmatch(identity.name):
        raise ReportError("hello.node.name", f"{_shown(identity.name)} is no node name")
    if not _UID.fullmatch(identity.uid):
        raise ReportError("hello.node.uid", f"{_shown(identity.uid)} is no UID")
    _text(identity.boot_id, "hello.node.boot_id", 128)


def check_revision(revision: types_pb2.Revision, field: str) -> tuple[int, int]:
    """The revision as (epoch, revision). Raises ReportError when it is absent or can't be counted."""
    if not 0 < revision.epoch <= MAX_COUNTER or revision.revision > MAX_COUNTER:
        raise ReportError(field, "a revision with an epoch of 1 or more is needed")
    return revision.epoch, revision.revision


def check_node(node: types_pb2.Node, uid: str, field: str, *, owned_name: str = "") -> None:
    """Raise ReportError unless this is the node that the stream belongs to, and its figures can be summed.

    owned_name: the only name that it may have; "": any.
    """
    if node.identity.uid != uid:
        raise ReportError(f"{field}.identity.uid", f"{_shown(node.identity.uid)} is not this stream's node, {uid}")
    if not _NAME.fullmatch(node.identity.name):
        raise ReportError(f"{field}.identity.name", f"{_shown(node.identity.name)} is no node name")
    if owned_name and node.identity.name != owned_name:
        raise ReportError(
            f"{field}.identity.name", f"{_shown(node.identity.name)} is not this stream's node, {owned_name}"
        )
    if node.ByteSize() > MAX_OBJECT_BYTES:
        raise ReportError(field, f"is larger than {MAX_OBJECT_BYTES} bytes")
    _figure(node.tflops, f"{field}.tflops", MAX_TFLOPS * MAX_GPUS)
    _bytes_figure(node.vram, f"{field}.vram", MAX_VRAM_BYTES * MAX_GPUS)
    _amount(node.host_memory_bytes, f"{field}.host_memory_bytes", MAX_VRAM_BYTES)
    _conditions(node.conditions, f"{field}.conditions")
    _timestamp(node.started_at, f"{field}.started_at")


def check_gpu(gpu: types_pb2.Gpu, field: str) -> None:
    """Raise ReportError unless the GPU can be named, and its figures summed and compared."""
    if not _UUID.fullmatch(gpu.uuid):
        raise ReportError(f"{field}.uuid", f"{_shown(gpu.uuid)} is no UUID")
    if gpu.ByteSize() > MAX_OBJECT_BYTES:
        raise ReportError(field, f"is larger than {MAX_OBJECT_BYTES} bytes")
    for name in ("model", "vendor", "used_by"):
        _text(getattr(gpu, name), f"{field}.{name}", 256)
    capacity, path = gpu.capacity, f"{field}.capacity"
    _figure(capacity.tflops, f"{path}.tflops", MAX_TFLOPS)
    _bytes_figure(capacity.vram, f"{path}.vram", MAX_VRAM_BYTES)
    _figure(capacity.available_tflops, f"{path}.available_tflops", MAX_TFLOPS * MAX_RATIO)
    _bytes_figure(capacity.available_vram, f"{path}.available_vram", MAX_VRAM_BYTES)
    _bytes_figure(capacity.unattributed, f"{path}.unattributed", MAX_VRAM_BYTES)
    _amount(capacity.requested_tflops, f"{path}.requested_tflops", MAX_TFLOPS * MAX_RATIO)
    _amount(capacity.requested_vram_bytes, f"{path}.requested_vram_bytes", MAX_VRAM_BYTES)
    _amount(capacity.tflops_ratio, f"{path}.tflops_ratio", MAX_RATIO)
    _amount(capacity.vram_ratio, f"{path}.vram_ratio", MAX_RATIO)
    _conditions(gpu.conditions, f"{field}.conditions")


class ReportedGpu(NamedTuple):
    """A GPU of a report, serialised, with the digest of its facts; message is None when those are known already."""

    name: str
    latest: bytes
    digest: int
    message: types_pb2.Gpu | None


def reported_gpus(gpus: Sequence[types_pb2.Gpu], known: Mapping[str, int], field: str) -> list[ReportedGpu]:
    """The GPUs of a report. known: digests by name, of facts that have been checked before and need it no more.

    Raises ReportError unless all of them can be used.
    """
    if len(gpus) > MAX_GPUS:
        raise ReportError(f"{field}.gpus", f"{len(gpus)} GPUs; at most {MAX_GPUS} are taken of one node")
    found: list[ReportedGpu] = []
    names: set[str] = set()
    for index, gpu in enumerate(gpus):
        name = gpu.uuid.lower()
        latest = gpu.SerializeToString()
        digest = hash(gpu_facts(latest))
        changed = known.get(name) != digest
        if changed or len(latest) > MAX_OBJECT_BYTES:
            check_gpu(gpu, f"{field}.gpus[{index}]")
        if name in names:
            raise ReportError(f"{field}.gpus[{index}].uuid", f"{gpu.uuid} comes twice")
        names.add(name)
        found.append(ReportedGpu(name, latest, digest, gpu if changed else None))
    return found


def check_allocations(state: node_pb2.NodeSnapshot | node_pb2.NodeDelta, field: str) -> None:
    """Raise ReportError unless all allocations of a snapshot or a delta can be used."""
    if len(state.allocations) > MAX_ALLOCATIONS:
        raise ReportError(f"{field}.allocations", f"{len(state.allocations)} of them; at most {MAX_ALLOCATIONS}")
    for index, allocation in enumerate(state.allocations):
        name = allocation.spec.allocation_id
        if not 0 < len(name) <= 253:
            raise ReportError(f"{field}.allocations[{index}].spec.allocation_id", "is empty or longer than 253")
        if len(allocation.devices) > MAX_GPUS:
            raise ReportError(f"{field}.allocations[{index}].devices", f"more than {MAX_GPUS}")


def _figure(figure: types_pb2.Figure, field: str, maximum: float) -> None:
    if figure.HasField("value"):
        _amount(figure.value, f"{field}.value", maximum)


def _bytes_figure(figure: types_pb2.ByteFigure, field: str, maximum: int) -> None:
    if figure.HasField("bytes"):
        _amount(figure.bytes, f"{field}.bytes", maximum)


def _amount(value: float, field: str, maximum: float) -> None:
    # Written so that NaN, which compares with nothing, is refused as well.
    if not 0 <= value <= maximum:
        raise ReportError(field, f"{value} is not between 0 and {maximum:g}")


def _text(text: str, field: str, length: int) -> None:
    if len(text) > length or _CONTROL.search(text):
        raise ReportError(field, f"{_shown(text)} is longer than {length} or has control characters")


def _conditions(conditions: Iterable[types_pb2.Condition], field: str) -> None:
    for index, condition in enumerate(conditions):
        _timestamp(condition.last_transition_at, f"{field}[{index}].last_transition_at")


def _timestamp(timestamp: Timestamp, field: str) -> None:
    if not (_FIRST_SECOND <= timestamp.seconds <= _LAST_SECOND and 0 <= timestamp.nanos < 1_000_000_000):
        raise ReportError(field, "is no time between the years 1 and 9999")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
