"""Writes events to the API server, a series for what repeats, and keeps the last ones for those who ask.

An event is named by its origin, so that a second delivery of it is refused by the API server; of a series the last
origin is kept on it. Events of a node are written in order, so that its last one tells all that are written.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from hypervisor.aggregator.event_watch import matches
from hypervisor.aggregator.kubernetes import event_objects, names
from hypervisor.aggregator.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubernetesClient
from hypervisor.aggregator.kubernetes.event_objects import DEFAULT_NAMESPACE
from hypervisor.aggregator.pace import Pace
from hypervisor.aggregator.records import Position
from hypervisor.aggregator.store import EventQuery, EventRow, StoredEvent

log = structlog.get_logger("kubernetes")

HISTORY = 10_000
# A series that has been silent for so long is over: the next of its kind is a new event.
SERIES_SECONDS = 360.0
MOST_SERIES = 5_000
_LIST = "/apis/events.k8s.io/v1/events"


@dataclass(slots=True)
class _Series:
    path: str
    count: int
    last_at: float


class EventWriter:
    """Only the loop's tasks call it, but read(), which any thread may."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        instance: str,
        per_second: float,
        at_once: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._instance = instance
        self._monotonic = monotonic
        self._pace = Pace(per_second=per_second, at_once=at_once, monotonic=monotonic)
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._history: deque[StoredEvent] = deque(maxlen=HISTORY)
        self._lock = threading.Lock()
        self._number = 0
        # The last written event of each node.
        self.positions: dict[str, Position] = {}

    @property
    def ready(self) -> int:
        """How many events may be written now."""
        return self._pace.ready

    async def load(self) -> int:
        """Take the events of ours that are there; returns the last number. Raises ApiError."""
        found, _ = await self._client.list_all(_LIST, {"labelSelector": f"{names.MANAGED_BY}={names.AGGREGATOR}"})
        rows = []
        for body in found:
            last = event_objects.parse_origin((body["metadata"].get("annotations") or {}).get(names.EVENT_LAST, ""))
            if last is not None:
                self._advance(last[0], last[1:])
            if (row := event_objects.stored_row(body)) is not None:
                rows.append(row)
        rows.sort(key=lambda row: (row.first_at, row.node_uid, row.epoch, row.sequence))
        self._keep(rows)
        return self._number

    async def write(self, row: EventRow, uids: Mapping[tuple[str, str], str]) -> bool:
        """Bring one event to the API server; False when it was there already. Raises ApiError.

        What happens to a Pod, its node has written to the API server itself; it is only kept.
        """
        place = (row.epoch, row.sequence)
        if place <= self.positions.get(row.node_uid, (0, 0)):
            return False
        if row.kind != "Pod":
            self._pace.take()
            await self._tell(row, uids)
        self._advance(row.node_uid, place)
        return True

    def keep(self, rows: Sequence[EventRow]) -> list[StoredEvent]:
        """Number what was written, for those who ask."""
        return self._keep(rows)

    def read(self, query: EventQuery) -> list[StoredEvent]:
        """Events that match, in the order of arrival; from memory."""
        with self._lock:
            found = tuple(self._history)
        return [stored for stored in found if stored.number > query.after and matches(query, stored.row)][: query.limit]

    # --- inside

    async def _tell(self, row: EventRow, uids: Mapping[tuple[str, str], str]) -> None:
        regarding = event_objects.regarding_of(row, uids)
        key, now = event_objects.series_key(row, regarding), self._monotonic()
        running = self._series.get(key)
        try:
            if running is not None and now - running.last_at < SERIES_SECONDS:
                count = running.count + row.repeats
                if await self._repeat(running, row, count):
                    running.count, running.last_at = count, now
                    self._series.move_to_end(key)
                    return
            body = event_objects.event_body(row, regarding, instance=self._instance)
            collection = names.events(regarding.namespace or DEFAULT_NAMESPACE)
            await self._client.create(collection, body)
        except ApiError as error:
            if error.code == CONFLICT:
                return  # it is there, from before a crash
            if not error.of_object:
                raise
            log.warning("the API server does not take an event; it is kept here only", error=str(error))
            return
        self._series[key] = _Series(f"{collection}/{body['metadata']['name']}", max(1, row.repeats), now)
        while len(self._series) > MOST_SERIES:
            self._series.popitem(last=False)

    async def _repeat(self, running: _Series, row: EventRow, count: int) -> bool:
        """False when the series' event has expired meanwhile."""
        try:
            await self._client.merge(running.path, event_objects.series_change(row, count))
        except ApiError as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return True

    def _advance(self, node_uid: str, place: Position) -> None:
        self.positions[node_uid] = max(place, self.positions.get(node_uid, (0, 0)))

    def _keep(self, rows: Sequence[EventRow]) -> list[StoredEvent]:
        made = [StoredEvent(number, row) for number, row in enumerate(rows, start=self._number + 1)]
        self._number += len(made)
        with self._lock:
            self._history.extend(made)
        return made
