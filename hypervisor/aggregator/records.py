"""What the registry keeps: slotted, because there are eighty thousand of them.

A GpuObject is replaced as a whole when a fact changes, so that a page or a watcher may keep a reference; only its last
readings are refreshed in place. The message is kept as bytes: a fifth of the memory, and parsed when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hypervisor.aggregator import derive
from hypervisor.aggregator.summaries import Share
from hypervisor.v1 import cluster_pb2, types_pb2

Position = tuple[int, int]  # (epoch, revision) or (epoch, sequence)


class Link(Protocol):
    """The registry's view of an open report stream."""

    def acknowledge(self, revision: Position, events: Position) -> None: ...
    def ask_for_snapshot(self, reason: str) -> None: ...


class NodeRecord:
    """One node. Times ending in _at are CLOCK_MONOTONIC, last_seen_wall is for people; both of the aggregator."""

    __slots__ = (
        "allocations",
        "boot_id",
        "contested",
        "digest",
        "gpus",
        "held",
        "host_memory_bytes",
        "labels",
        "last_seen_at",
        "last_seen_wall",
        "latest",
        "link",
        "liveness",
        "name",
        "pools",
        "received_at",
        "reported_labels",
        "simulated",
        "stored_events",
        "uid",
        "version",
    )

    def __init__(self, uid: str, name: str) -> None:
        self.uid = uid
        self.name = name
        self.boot_id = ""
        self.simulated = False
        # 0: the node doesn't say.
        self.host_memory_bytes = 0
        self.pools: tuple[str, ...] = (derive.DEFAULT_POOL,)
        # As the node says them, and with those of its Node object, which count more.
        self.reported_labels: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        # The Node message as last reported, and the digest of its facts.
        self.latest = b""
        self.digest = 0
        self.received_at = 0.0
        # What a delta may build on; None after a restart, until a snapshot has come.
        self.held: Position | None = None
        self.stored_events: Position = (0, 0)
        self.gpus: dict[str, GpuObject] = {}
        # GPUs that this node reports and another node holds.
        self.contested: set[str] = set()
        # By allocation id: its share of each GPU.
        self.allocations: dict[str, tuple[Share, ...]] = {}
        self.liveness: cluster_pb2.Liveness = cluster_pb2.LIVENESS_FRESH
        self.last_seen_at = 0.0
        self.last_seen_wall = 0.0
        self.version = 0
        self.link: Link | None = None

    def busy(self, name: str) -> bool:
        """Whether an allocation of the node is on this GPU."""
        return any(share.gpu == name for held in self.allocations.values() for share in held)


class GpuObject:
    """One GPU object. available_* are None when the node can't say."""

    __slots__ = (
        "allocatable",
        "apps",
        "available_tflops",
        "available_vram_bytes",
        "digest",
        "health",
        "index",
        "isolation",
        "latest",
        "liveness",
        "missing_since",
        "model",
        "name",
        "node",
        "partition",
        "phase",
        "received_at",
        "simulated",
        "tflops",
        "tflops_ratio",
        "used_by",
        "vendor",
        "version",
        "vram_bytes",
        "vram_ratio",
        "worst_tier",
    )

    name: str
    node: NodeRecord
    index: int
    model: str
    vendor: str
    used_by: str
    health: int
    isolation: int
    allocatable: bool
    simulated: bool
    tflops: float | None
    vram_bytes: int | None
    available_tflops: float | None
    available_vram_bytes: int | None
    tflops_ratio: float
    vram_ratio: float
    worst_tier: int
    # A MIG instance: a part of another device, and no capacity of its own.
    partition: bool
    # Who holds a share: see summaries.running_apps.
    apps: bytes
    latest: bytes
    digest: int
    received_at: float
    liveness: cluster_pb2.Liveness
    # Wall time of the aggregator; None while the node reports the card.
    missing_since: float | None
    phase: str
    version: int

    def replaced(self, **changes: object) -> GpuObject:
        """A copy with these attributes changed."""
        copy = GpuObject.__new__(GpuObject)
        for name in GpuObject.__slots__:
            setattr(copy, name, changes.get(name, getattr(self, name)))
        return copy


def gpu_object(
    gpu: types_pb2.Gpu,
    node: NodeRecord,
    *,
    latest: bytes,
    digest: int,
    received_at: float,
    intern: Callable[[str], str],
) -> GpuObject:
    """The object of a GPU as just reported; latest is the same serialised, digest that of its facts."""
    made = GpuObject.__new__(GpuObject)
    capacity = gpu.capacity
    made.name = gpu.uuid.lower()
    made.node = node
    made.index = gpu.index
    # Few different texts on many cards.
    made.model, made.vendor, made.used_by = intern(gpu.model), intern(gpu.vendor), intern(gpu.used_by)
    made.health, made.isolation = gpu.health, gpu.active_isolation
    made.allocatable, made.simulated = gpu.allocatable, gpu.simulated
    made.tflops = value_of(capacity.tflops)
    made.vram_bytes = bytes_of(capacity.vram)
    made.available_tflops = value_of(capacity.available_tflops)
    made.available_vram_bytes = bytes_of(capacity.available_vram)
    made.tflops_ratio = capacity.tflops_ratio or 1.0
    made.vram_ratio = capacity.vram_ratio or 1.0
    made.worst_tier = derive.worst_tier(gpu)
    made.partition = gpu.HasField("partition")
    made.apps = b""
    made.latest = latest
    made.digest = digest
    made.received_at = received_at
    made.liveness = cluster_pb2.LIVENESS_FRESH
    made.missing_since = None
    made.phase = derive.phase(gpu.health, missing=False)
    made.version = 0
    return made


def value_of(figure: types_pb2.Figure) -> float | None:
    """The figure's value, None when it is absent."""
    return figure.value if figure.HasField("value") else None


def bytes_of(figure: types_pb2.ByteFigure) -> int | None:
    """The figure's bytes, None when they are absent."""
    return figure.bytes if figure.HasField("bytes") else None
