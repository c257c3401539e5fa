"""Watches a server in threads, one a kind of object, and makes the content of a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from hypervisor.top.content import Content
from hypervisor.top.history import History
from hypervisor.top.interfaces import LISTED, Outside, Unavailable
from hypervisor.top.rows import GpuRow, NodeRow, PodRow, gpu_row, node_row, pod_rows

_RETRY_SECONDS = 1.0
_RATE_SECONDS = 3.0


class Feed:
    """The objects of a server as they are now; content() is called by one thread, once for each frame."""

    def __init__(self, outside: Outside, *, changed: Callable[[], None]) -> None:
        self._outside = outside
        self._changed = changed
        self._lock = threading.Condition()
        self._objects: dict[str, dict[str, tuple[Any, ...]]] = {}
        self._trouble: dict[str, str] = {}
        # Kinds of which all objects have been told at least once.
        self._listed: set[str] = set()
        self._busy, self._throttled = History(), History()
        self._recorded_at = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is watched."""
        return ("gpus", "nodes") if self._outside.cluster else ("gpus", "pods", "nodes")

    def start(self) -> None:
        """Begin to watch. The threads end with the process: a stream that is waited for has nothing to save."""
        for kind in self.kinds:
            threading.Thread(target=self._watch_for_ever, args=(kind,), name=f"watch {kind}", daemon=True).start()

    def wait_known(self, seconds: float) -> bool:
        """Wait until the server has answered for what has rows, or has refused; False after so many seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: bool(self._trouble) or self._listed.issuperset(self.kinds), seconds)

    def content(self, *, interval: float) -> Content:
        """What is known now; the past grows by one point an interval (seconds)."""
        with self._lock:
            objects = {kind: list(found.values()) for kind, found in self._objects.items()}
            trouble = next(iter(self._trouble.values()), "")
        gpus: list[GpuRow] = [row for rows in objects.get("gpus", []) for row in rows]
        pods: list[PodRow] = [row for rows in objects.get("pods", []) for row in rows]
        nodes = [row for rows in objects.get("nodes", []) for row in rows]
        self._record(gpus, pods, interval)
        return Content(
            address=self._outside.address,
            cluster=self._outside.cluster,
            clock=datetime.now().astimezone().strftime("%H:%M:%S"),
            about=self._about(nodes),
            gpus=tuple(gpus),
            pods=tuple(pods),
            nodes=tuple(nodes) if self._outside.cluster else (),
            past=_Past(self._busy),
            throttled={row.key: self._throttled.rate(row.key, _RATE_SECONDS) for row in pods},
            trouble=trouble,
            known="gpus" in objects,
        )

    def _record(self, gpus: list[GpuRow], pods: list[PodRow], interval: float) -> None:
        now = time.monotonic()
        if now - self._recorded_at < interval * 0.9:
            return
        self._recorded_at = now
        self._busy.record(now, [*((row.key, row.busy) for row in gpus), *((row.key, row.achieved) for row in pods)])
        self._throttled.record(now, [(row.key, row.throttled_seconds_total) for row in pods])

    def _about(self, nodes: list[Any]) -> str:
        if self._outside.cluster:
            return f"{self._outside.address}"
        if not nodes:
            return ""
        node = nodes[0]
        parts = [node.identity.name, f"driver {node.driver_version}", f"CUDA {node.cuda_version}"]
        return "  ".join([*parts, *(["SIMULATED"] if node.simulated else [])])

    def _watch_for_ever(self, kind: str) -> None:
        while True:
            try:
                self._watch(kind)
                trouble = f"{self._outside.address} has ended the watch; asking again"
            except Unavailable as error:
                trouble = f"{error}; what is shown is old"
            with self._lock:
                self._trouble[kind] = trouble
                self._lock.notify_all()
            self._changed()
            time.sleep(_RETRY_SECONDS)

    def _watch(self, kind: str) -> None:
        """One stream from its beginning to its end."""
        fresh: dict[str, tuple[Any, ...]] = {}
        for change in self._outside.watch(kind):
            key, rows = self._rows(kind, change.item)
            with self._lock:
                # What an earlier stream has told stands until this one tells anything.
                self._objects[kind] = fresh
                self._trouble.pop(kind, None)
                if change.type == "DELETED":
                    fresh.pop(key, None)
                elif change.type != LISTED:
                    fresh[key] = rows
                if change.type == LISTED:
                    self._listed.add(kind)
                    self._lock.notify_all()
            self._changed()

    def _rows(self, kind: str, item: Any) -> tuple[str, tuple[Any, ...]]:
        if item is None:
            return "", ()
        match kind:
            case "gpus":
                row = gpu_row(item)
                return row.key, (row,)
            case "pods":
                return item.spec.allocation_id, pod_rows(item)
        if self._outside.cluster:
            found: NodeRow = node_row(item)
            return found.key, (found,)
        return item.identity.uid, (item,)


class _Past(Mapping[str, Any]):
    """The values of a history by key, made when they are drawn: most rows are not on the screen."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __getitem__(self, key: str) -> Any:
        return self._history.values(key)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0
