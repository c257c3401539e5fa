"""Objects as the API shows them: parsed when asked for, ages as of now, clocks of nodes replaced by ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hypervisor.aggregator import rows
from hypervisor.aggregator.records import GpuObject, NodeRecord
from hypervisor.v1 import cluster_pb2, types_pb2

_MAX_AGE_SECONDS = 1e9
_CAPACITY_FIGURES = ("tflops", "vram", "available_tflops", "available_vram", "unattributed")
_READINGS = tuple(field.name for field in types_pb2.GpuReadings.DESCRIPTOR.fields)


class Moment(NamedTuple):
    """Now, by the aggregator's two clocks."""

    monotonic: float
    wall: float


class NodeView(NamedTuple):
    """A node at one version: what a page keeps of it."""

    latest: bytes
    received_at: float
    liveness: cluster_pb2.Liveness
    last_seen_at: float
    last_seen_wall: float
    labels: Mapping[str, str]


def node_view(node: NodeRecord) -> NodeView:
    """The node as it is now."""
    return NodeView(node.latest, node.received_at, node.liveness, node.last_seen_at, node.last_seen_wall, node.labels)


def cluster_node(view: NodeView, now: Moment) -> cluster_pb2.ClusterNode:
    """The node for an answer."""
    made = cluster_pb2.ClusterNode(liveness=view.liveness)
    made.node.MergeFromString(view.latest)
    made.node.labels.update(view.labels)
    _refresh(made.node, ("tflops", "vram"), now.monotonic - view.received_at, now.wall)
    age = max(0.0, now.monotonic - view.last_seen_at)
    made.last_seen_age_seconds = age
    rows.put_seconds(made.last_seen_at, now.wall - age)
    return made


def cluster_gpu(gpu: GpuObject, now: Moment) -> cluster_pb2.ClusterGpu:
    """The GPU object for an answer."""
    made = cluster_pb2.ClusterGpu(
        name=gpu.name,
        node_name=gpu.node.name,
        phase=gpu.phase,
        node_liveness=gpu.liveness,
        version=gpu.version,
        pools=gpu.node.pools,
    )
    shown = made.gpu
    shown.MergeFromString(gpu.latest)
    made.MergeFromString(gpu.apps)
    shown.allocatable = gpu.allocatable
    held = now.monotonic - gpu.received_at
    if shown.HasField("capacity"):
        _refresh(shown.capacity, _CAPACITY_FIGURES, held, now.wall)
    if shown.HasField("readings"):
        _refresh(shown.readings, _READINGS, held, now.wall)
    if gpu.missing_since is not None:
        rows.put_seconds(made.missing_since, gpu.missing_since)
    return made


def _refresh(
    message: types_pb2.Node | types_pb2.GpuCapacity | types_pb2.GpuReadings,
    names: tuple[str, ...],
    held_seconds: float,
    wall: float,
) -> None:
    """Ages grow while we hold a figure; when it was observed follows from its age and our clock, since the node's may
    be wrong. What is no age counts as none."""
    for name in names:
        if not message.HasField(name):
            continue
        figure = getattr(message, name)
        if not (figure.HasField("observed_at") or figure.age_seconds):
            continue
        said = figure.age_seconds
        # Written so that NaN falls to 0.
        age = (said if 0 <= said <= _MAX_AGE_SECONDS else 0.0) + max(0.0, held_seconds)
        figure.age_seconds = age
        rows.put_seconds(figure.observed_at, wall - age)
