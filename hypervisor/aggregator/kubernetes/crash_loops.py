"""Which hypervisor Pod is in a crash loop, why, and when it may be made anew. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hypervisor.aggregator.kubernetes.client import Object
from hypervisor.aggregator.kubernetes.objects import timestamp
from hypervisor.aggregator.kubernetes.restoring import seconds

FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 3_600.0
_CAUSE = 400
_SIGNALS: Mapping[int, str] = {6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoop:
    """A Pod whose container has restarted more often than it may. cause: how the container ended last; output is
    true where the container's own last line is in it."""

    pod: str
    uid: str
    node: str
    container: str
    restarts: int
    cause: str
    output: bool


@dataclass(frozen=True, slots=True)
class Recreated:
    """How often a node's Pod was made anew in a row, and when last, in wall time of the aggregator."""

    count: int = 0
    at: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether the back-off is over."""
        if self.count == 0 or now < self.at:
            return self.count == 0
        return now - self.at >= self.pause

    @property
    def pause(self) -> float:
        """Twice as long with each time."""
        longest: float = FIRST_PAUSE_SECONDS * 2 ** min(self.count - 1, 16)
        return min(LONGEST_PAUSE_SECONDS, longest)

    def next(self, now: float) -> Recreated:
        """After one more; a node that was well for long begins anew."""
        forgiven = self.count == 0 or now - self.at > 2 * LONGEST_PAUSE_SECONDS
        return Recreated(1 if forgiven else self.count + 1, now)

    def text(self) -> str:
        """For an annotation."""
        return f"{self.count} {timestamp(self.at)}"


def recreated(text: str) -> Recreated:
    """From an annotation; never, for what can't be read."""
    count, _, at = text.partition(" ")
    return Recreated(int(count), seconds(at)) if count.isdecimal() and at else Recreated()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recreation:
    """The last removal of a node's Pod, as it is told: kept on the GPUNode before the Pod is removed, so that a crash
    of ours between the two forgets nothing."""

    pod: str
    uid: str
    count: int
    container: str
    restarts: int
    threshold: int
    cause: str

    def text(self) -> str:
        """For an annotation."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def message(self) -> str:
        """The event's message."""
        return (
            f"Pod {self.pod} was removed to be made anew, time {self.count} in a row: container {self.container} "
            f"has restarted {self.restarts} times, more than {self.threshold}; last end: {self.cause}"
        )

    @property
    def fields(self) -> dict[str, str]:
        """The event's fields."""
        return {
            "pod": self.pod,
            "container": self.container,
            "restarts": str(self.restarts),
            "threshold": str(self.threshold),
            "cause": self.cause,
        }


def recreation(text: str) -> Recreation | None:
    """From an annotation; None for what can't be read."""
    try:
        found = Recreation(**json.loads(text))
    except (ValueError, TypeError):
        return None
    texts = (found.pod, found.uid, found.container, found.cause)
    counts = (found.count, found.restarts, found.threshold)
    good = all(isinstance(each, str) and each for each in texts) and all(type(each) is int for each in counts)
    return found if good else None


def crash_loop(pod: Object, threshold: int) -> CrashLoop | None:
    """The worst container beyond the threshold; None when there is none, or the Pod is being removed already."""
    metadata = pod["metadata"]
    node = (pod.get("spec") or {}).get("nodeName") or ""
    if threshold <= 0 or metadata.get("deletionTimestamp") or not node:
        return None
    worst = max(_containers(pod), key=lambda each: int(each.get("restartCount") or 0), default=None)
    if worst is None or int(worst.get("restartCount") or 0) <= threshold:
        return None
    ended = _last_end(worst)
    output = last_line(str(ended.get("message") or ""))
    return CrashLoop(
        pod=metadata["name"],
        uid=metadata["uid"],
        node=node,
        container=worst["name"],
        restarts=int(worst["restartCount"]),
        cause=end_text(ended, output),
        output=bool(output),
    )


def end_text(ended: Mapping[str, Any], output: str) -> str:
    """How a container ended: exit code, signal, reason and its last line."""
    if not ended:
        return "it is not said how it ended"
    code = int(ended.get("exitCode") or 0)
    # A shell and most runtimes tell of a signal in the exit code.
    signal = int(ended.get("signal") or 0) or (code - 128 if 128 < code < 193 else 0)
    parts = [f"exit code {code}"]
    if signal:
        parts.append(f"signal {_SIGNALS.get(signal, signal)}")
    if ended.get("reason"):
        parts.append(str(ended["reason"]))
    text = ", ".join(parts)
    return f"{text}: {output}" if output else text


def last_line(text: str) -> str:
    """The last line that says something, cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_CAUSE] if lines else ""


def _containers(pod: Object) -> Iterator[dict[str, Any]]:
    status = pod.get("status") or {}
    for part in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(part) or ()


def _last_end(container: Mapping[str, Any]) -> Mapping[str, Any]:
    for part in ("state", "lastState"):
        ended: Mapping[str, Any] | None = (container.get(part) or {}).get("terminated")
        if ended:
            return ended
    return {}
