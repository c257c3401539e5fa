"""Brings what changed to the store, a few times a second, and acknowledges what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import structlog

from hypervisor.aggregator import rows
from hypervisor.aggregator.event_log import EventLog
from hypervisor.aggregator.records import NodeRecord, Position
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.settings import AggregatorSettings
from hypervisor.aggregator.store import PRUNE_AT_ONCE, Batch, EventRow, Store, StoreError

log = structlog.get_logger("writer")
Key = TypeVar("Key")
Value = TypeVar("Value")

# A revision of readings alone is acknowledged this much later: one ack for several messages.
LAZY_ACK_HEARTBEATS = 3
_LONGEST_PAUSE_SECONDS = 5.0
_PRUNE_INTERVAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """failing: why the last commit failed, "" when it did not."""

    commits_total: int
    failures_total: int
    rows_total: int
    last_commit_seconds: float
    failing: str
    acknowledgements_waiting: int
    pruned_events_total: int


class Writer:
    """Owns the store's thread. Commits are one after another; what changes meanwhile goes into the next."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        events: EventLog,
        settings: AggregatorSettings,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._registry = registry
        self._events = events
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-writer")
        # Nodes that wait for an acknowledgement, and from when on it may be sent.
        self._due: dict[NodeRecord, float] = {}
        self._event_positions: dict[str, Position] = {}
        self._commits = self._failures = self._rows = self._pruned = 0
        self._last_seconds = 0.0
        self._failing = ""
        self._failed_in_a_row = 0
        self._next_prune = 0.0

    @property
    def failing(self) -> str:
        """Why nothing reaches the disk; "" when it does."""
        return self._failing

    def revision_received(self, node: NodeRecord, *, facts: bool) -> None:
        """The node's state has moved on; with facts it is acknowledged after the next commit, else a little later."""
        now = self._monotonic()
        due = now if facts else now + LAZY_ACK_HEARTBEATS * self._settings.heartbeat_seconds
        self._due[node] = min(due, self._due.get(node, due))

    def events_received(self, node: NodeRecord, position: Position) -> None:
        """The node has sent events up to this position."""
        self._event_positions[node.uid] = max(position, self._event_positions.get(node.uid, (0, 0)))
        self._due[node] = self._monotonic()

    async def run(self) -> None:
        """Commit for ever. Cancelling it may leave a commit running; close() waits for it."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            pause = await self.step()

    async def step(self) -> float:
        """One commit, if there is anything; returns the seconds until the next."""
        registry = self._registry
        has_changes = registry.dirty_gpus or registry.dirty_nodes or registry.removed_nodes
        events = self._events.take(self._store.events_at_once)
        if has_changes or events or self._event_positions:
            if not await self._commit(events):
                return self._pause_after_failure()
        else:
            self._acknowledge({node: node.held for node, due in self._due.items() if due <= self._monotonic()}, {})
        await self._prune()
        return self._settings.commit_interval_seconds

    async def close(self) -> None:
        """Commit what is left, and end the thread."""
        await self.step()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()

    def statistics(self) -> WriterStatistics:
        """Counters since the start."""
        return WriterStatistics(
            commits_total=self._commits,
            failures_total=self._failures,
            rows_total=self._rows,
            last_commit_seconds=self._last_seconds,
            failing=self._failing,
            acknowledgements_waiting=len(self._due),
            pruned_events_total=self._pruned,
        )

    # --- inside

    def _pause_after_failure(self) -> float:
        doubled: float = self._settings.commit_interval_seconds * (1 << min(self._failed_in_a_row, 8))
        return min(_LONGEST_PAUSE_SECONDS, doubled)

    async def _commit(self, events: Sequence[EventRow]) -> bool:
        registry = self._registry
        most = self._store.objects_at_once
        dirty_nodes, registry.dirty_nodes = _split(registry.dirty_nodes, most)
        dirty_gpus, registry.dirty_gpus = _split(registry.dirty_gpus, most)
        removed_nodes, registry.removed_nodes = registry.removed_nodes, {}
        if self._events.waiting:
            # A part of what came: of each node its first ones, in order.
            positions = _positions(events)
        else:
            positions, self._event_positions = self._event_positions, {}
        now = self._monotonic()
        held = {node: node.held for node, due in self._due.items() if due <= now and not self._is_dirty(node)}
        batch = self._batch(dirty_nodes, dirty_gpus, removed_nodes, events)
        begun = self._monotonic()
        try:
            stored = await asyncio.get_running_loop().run_in_executor(self._thread, self._store.commit, batch)
        except StoreError as error:
            registry.dirty_nodes = dirty_nodes | registry.dirty_nodes
            registry.dirty_gpus = dirty_gpus | registry.dirty_gpus
            registry.removed_nodes = removed_nodes | registry.removed_nodes
            for uid, position in positions.items():
                self._event_positions[uid] = max(position, self._event_positions.get(uid, (0, 0)))
            self._events.give_back(events)
            self._failures += 1
            self._failed_in_a_row += 1
            if not self._failing:
                log.warning("reports are kept in memory and not acknowledged", error=str(error))
            self._failing = str(error)
            return False
        if self._failing:
            log.info("the store can be written again")
        self._failing = ""
        self._failed_in_a_row = 0
        self._commits += 1
        self._rows += len(batch.nodes) + len(batch.gpus) + len(batch.removed_gpus) + len(stored)
        self._last_seconds = self._monotonic() - begun
        self._events.committed(len(events), stored)
        self._acknowledge(held, positions)
        return True

    def _is_dirty(self, node: NodeRecord) -> bool:
        """Whether some of the node's objects are left for a later commit."""
        registry = self._registry
        return node.uid in registry.dirty_nodes or (
            bool(registry.dirty_gpus) and any(name in registry.dirty_gpus for name in node.gpus)
        )

    def _batch(
        self,
        nodes: Mapping[str, None],
        gpus: Mapping[str, None],
        removed_nodes: Mapping[str, str],
        events: Sequence[EventRow],
    ) -> Batch:
        registry = self._registry
        node_records = [registry.nodes[uid] for uid in nodes if uid in registry.nodes]
        present = [registry.gpus[name] for name in gpus if name in registry.gpus]
        return Batch(
            version=registry.version,
            nodes=[rows.node_row(node) for node in node_records],
            removed_nodes=[(uid, name) for uid, name in removed_nodes.items() if uid not in registry.nodes],
            gpus=[rows.gpu_row(gpu) for gpu in present],
            removed_gpus=[
                (name, registry.tombstones.get(name, registry.version)) for name in gpus if name not in registry.gpus
            ],
            events=events,
            node_records=node_records,
            gpu_objects=present,
        )

    def _acknowledge(self, held: dict[NodeRecord, Position | None], positions: dict[str, Position]) -> None:
        """Tell nodes what is durable: the revision that was held when the batch was made, and its events."""
        for node, revision in held.items():
            if (position := positions.get(node.uid)) is not None:
                node.stored_events = max(node.stored_events, position)
                self._registry.event_positions[node.uid] = node.stored_events
            # What arrived during the commit has made itself due again, or waits for its turn.
            if node.held == revision and node.uid not in self._event_positions:
                self._due.pop(node, None)
            if node.link is not None:
                node.link.acknowledge(revision or (0, 0), node.stored_events)

    async def _prune(self) -> None:
        now = self._monotonic()
        if now < self._next_prune:
            return
        settings = self._settings
        oldest = self._wall() - settings.event_retention_seconds

        def prune() -> int:
            return self._store.prune(oldest_received_at=oldest, keep=settings.event_retention_count)

        try:
            removed = await asyncio.get_running_loop().run_in_executor(self._thread, prune)
        except StoreError as error:
            log.warning("old events could not be removed", error=str(error))
            removed = 0
        self._pruned += removed
        # A full slice means that there is more.
        self._next_prune = now if removed >= PRUNE_AT_ONCE else now + _PRUNE_INTERVAL_SECONDS


def _split(dirty: dict[Key, Value], most: int | None) -> tuple[dict[Key, Value], dict[Key, Value]]:
    """The first so many, all of them for None, and the rest."""
    if most is None or len(dirty) <= most:
        return dirty, {}
    taken = dict(islice(dirty.items(), most))
    return taken, {key: value for key, value in dirty.items() if key not in taken}


def _positions(events: Sequence[EventRow]) -> dict[str, Position]:
    """The last event of each node among these."""
    found: dict[str, Position] = {}
    for row in events:
        found[row.node_uid] = max(found.get(row.node_uid, (0, 0)), (row.epoch, row.sequence))
    return found
