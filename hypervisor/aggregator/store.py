"""The interface of stores: what the writer hands over and what a start finds. SQLite is one, Kubernetes another.

Rows are plain tuples in the order of their NamedTuple, made on the loop and written by the store's own thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hypervisor.aggregator.records import GpuObject, NodeRecord
from hypervisor.metrics.family import Families

# Most events that one prune removes, so that a commit never waits long for it.
PRUNE_AT_ONCE = 5_000


class StoreError(Exception):
    """The store can't be used or written; the text says which, why, and what to do."""


class NodeRow(NamedTuple):
    """A node's facts. detail is the Node message without ages."""

    uid: str
    name: str
    boot_id: str
    simulated: bool
    liveness: int
    last_seen_wall: float
    version: int
    detail: bytes


class GpuRow(NamedTuple):
    """A GPU object's facts. detail is the Gpu message without readings and ages, apps who holds a share of it, as
    summaries.running_apps has it."""

    name: str
    node_uid: str
    gpu_index: int
    model: str
    vendor: str
    used_by: str
    phase: str
    health: int
    isolation: int
    allocatable: bool
    simulated: bool
    tflops: float | None
    vram_bytes: int | None
    available_tflops: float | None
    available_vram_bytes: int | None
    missing_since: float | None
    version: int
    detail: bytes
    apps: bytes


class EventRow(NamedTuple):
    """An event as it is kept. Times are wall time in seconds, received_at by the aggregator's clock.

    fields is a serialised Event with only its map of fields.
    """

    node_uid: str
    epoch: int
    sequence: int
    node_name: str
    type: int
    reason: str
    kind: str
    namespace: str
    name: str
    object_uid: str
    message: str
    fields: bytes
    first_at: float
    last_at: float
    repeats: int
    simulated: bool
    received_at: float


class StoredEvent(NamedTuple):
    """An event with its number in the order of arrival, which only grows."""

    number: int
    row: EventRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one commit writes: all of it or nothing."""

    version: int
    nodes: Sequence[NodeRow] = ()
    # UID and name.
    removed_nodes: Sequence[tuple[str, str]] = ()
    gpus: Sequence[GpuRow] = ()
    # Names of removed GPUs with the version of their removal.
    removed_gpus: Sequence[tuple[str, int]] = ()
    events: Sequence[EventRow] = ()
    # What the rows were made from, for stores that derive more than a row of it. The loop changes them: they are read
    # on the loop only.
    node_records: Sequence[NodeRecord] = ()
    gpu_objects: Sequence[GpuObject] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a start finds.

    start: how many there have been, this one included. version: the first one that was surely never given out.
    resumable: versions from which a watch can be continued, first and last. event_positions: the last stored
    (epoch, sequence) of each node.
    """

    store_id: str
    start: int
    version: int
    resumable: tuple[int, int]
    nodes: Sequence[NodeRow]
    gpus: Sequence[GpuRow]
    tombstones: Sequence[tuple[str, int]]
    event_positions: dict[str, tuple[int, int]]
    last_event: int


class EventQuery(NamedTuple):
    """Which events are wanted; empty parts match everything. after: number of the last one that is already known."""

    after: int = 0
    limit: int = 500
    kind: str = ""
    namespace: str = ""
    name: str = ""
    object_uid: str = ""
    type: int = 0
    node_name: str = ""


class Store(Protocol):
    """A durable store. load, commit and prune are called from one thread, read_events from another."""

    @property
    def objects_at_once(self) -> int | None:
        """Most nodes, and most GPUs, that one commit takes; None: as many as there are."""
        ...

    @property
    def events_at_once(self) -> int | None:
        """Most events that one commit takes; None: as many as there are."""
        ...

    def load(self) -> Stored:
        """What is stored. Raises StoreError."""
        ...

    def commit(self, batch: Batch) -> Sequence[StoredEvent]:
        """Write durably, all or nothing; returns the events that were not known yet. Raises StoreError."""
        ...

    def prune(self, *, oldest_received_at: float, keep: int) -> int:
        """Forget a bounded number of events beyond the retention; returns how many. Raises StoreError."""
        ...

    def read_events(self, query: EventQuery) -> Sequence[StoredEvent]:
        """Events in the order of arrival. Raises StoreError."""
        ...

    def collect(self, made: Families) -> None:
        """Add the store's own metrics. Called on the loop."""
        ...

    def close(self) -> None:
        """Let go of all files."""
        ...
