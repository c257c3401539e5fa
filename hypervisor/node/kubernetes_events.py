"""Events on Pods, in the journal at once and on the API server as it allows; repeats become a count.

What can't be written is dropped after a while and counted: the journal has it.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import trio

from hypervisor.kube.pod import Pod
from hypervisor.model import EventType, ObjectKind, ObjectReference
from hypervisor.model.event_reasons import check_event
from hypervisor.node.kubernetes_api import CONFLICT, ApiFailure, KubernetesApi
from hypervisor.node.publisher import EmitEvent

COMPONENT = "gpu-hypervisor"
MOST_WAITING = 512
MOST_REMEMBERED = 2048
MOST_TRIES = 5
# A repeat is told anew on the API server at most so often.
REPEAT_SECONDS = 300.0
LONGEST_MESSAGE = 1000


@dataclass(slots=True)
class _Told:
    """One event of one Pod, as it is on the API server or will be."""

    pod: Pod
    kind: EventType
    reason: str
    message: str
    name: str
    first_at: float
    last_at: float
    count: int = 1
    written: bool = False
    due: bool = True
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEventsStatistics:
    """Events that wait now, and counters since the start."""

    waiting: int
    written_total: int
    dropped_total: int
    failures_total: int


class PodEvents:
    """Told by the node, written by run()."""

    def __init__(self, api: KubernetesApi | None, emit: EmitEvent, node: str) -> None:
        self._api = api
        self._emit = emit
        self._node = node
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._wake = trio.Event()
        self._written = self._dropped = self._failures = 0

    def tell(self, pod: Pod, kind: EventType, reason: str, message: str, **fields: str) -> None:
        """Something has happened to a Pod; told once while it stays the same. Raises EventReasonError when it is not
        as the catalogue of reasons has it."""
        check_event(reason, ObjectKind.POD.value, kind, fields, message)
        message = message[:LONGEST_MESSAGE].encode(errors="backslashreplace").decode()
        key = hashlib.sha256("\0".join((pod.uid, kind.value, reason, message)).encode()).hexdigest()[:16]
        now, known = time.time(), self._told.get(key)
        if known is not None:
            known.count += 1
            if now - known.last_at >= REPEAT_SECONDS:
                known.last_at, known.due = now, True
                self._wake.set()
            return
        self._emit(
            kind,
            reason,
            ObjectReference(kind=ObjectKind.POD, name=pod.name, uid=pod.uid, namespace=pod.namespace),
            message,
            **fields,
        )
        self._told[key] = _Told(pod, kind, reason, message, _name(pod, key), now, now)
        self._forget_some()
        self._wake.set()

    async def run(self) -> None:
        """Write for ever. Cancelling leaves unwritten what waits."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            wait = await self.step()
            if wait:
                await trio.sleep(wait)
                self._wake.set()

    async def step(self) -> float:
        """Write all that is due; gives the seconds to wait before the rest is tried again, 0 when there is none."""
        for told in [each for each in self._told.values() if each.due]:
            try:
                await self._write(told)
            except ApiFailure as failure:
                self._failures += 1
                told.tries += 1
                if told.tries >= MOST_TRIES or (400 <= failure.code < 500 and failure.code != 429):
                    told.due = False
                    self._dropped += 1
                    continue
                return failure.retry_after_seconds or min(30.0, 2.0**told.tries)
            told.due, told.written, told.tries = False, True, 0
            self._written += 1
        return 0.0

    def statistics(self) -> PodEventsStatistics:
        """Counters since the start."""
        return PodEventsStatistics(
            waiting=sum(each.due for each in self._told.values()),
            written_total=self._written,
            dropped_total=self._dropped,
            failures_total=self._failures,
        )

    async def _write(self, told: _Told) -> None:
        if self._api is None:
            return
        if told.written:
            change = {"count": told.count, "lastTimestamp": _timestamp(told.last_at)}
            await self._api.count_event(told.pod.namespace, told.name, change)
            return
        try:
            await self._api.create_event(told.pod.namespace, self._event(told))
        except ApiFailure as failure:
            if failure.code != CONFLICT:
                raise  # else it is there, from before a restart

    def _event(self, told: _Told) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": told.name, "namespace": told.pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": told.pod.name,
                "namespace": told.pod.namespace,
                "uid": told.pod.uid,
            },
            "type": told.kind.value,
            "reason": told.reason,
            "message": told.message,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": _timestamp(told.first_at),
            "lastTimestamp": _timestamp(told.last_at),
            "count": told.count,
        }

    def _forget_some(self) -> None:
        """The oldest that are written; when too many wait, the oldest that wait."""
        while len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)
        waiting = [key for key, each in self._told.items() if each.due]
        for key in waiting[: max(0, len(waiting) - MOST_WAITING)]:
            self._told[key].due = False
            self._dropped += 1


def _name(pod: Pod, key: str) -> str:
    """A Pod's name may end in a dot or a dash where it is cut, and then no other word may follow."""
    return f"{pod.name[:230].rstrip('.-')}.{key}"


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
