"""A supervised process that gives hard isolation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hypervisor.model.allocation import IsolationMode
from hypervisor.model.revision import Revision


class WorkerPhase(Enum):
    """Life of a worker."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class RestartPolicy(Enum):
    """When a worker that ended is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


MOST_SECONDS = 7 * 86_400.0  # of any time that is kept of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How it is found out whether a worker does its work; exactly one of command, unix_socket and file is set.

    A command must end with 0, a socket must take a connection, a file must exist. Times in seconds;
    failure_threshold: failures in a row until it counts.
    """

    command: tuple[str, ...] = ()
    unix_socket: str = ""
    file: str = ""
    initial_delay_seconds: float = 0.0
    period_seconds: float = 5.0
    timeout_seconds: float = 5.0
    failure_threshold: int = 3

    def __post_init__(self) -> None:
        if sum(map(bool, (self.command, self.unix_socket, self.file))) != 1:
            raise ValueError("a probe is a command, a unix socket or a file, and one of them")
        times = (self.initial_delay_seconds, self.period_seconds, self.timeout_seconds)
        if not all(0 <= seconds <= MOST_SECONDS for seconds in times) or not self.period_seconds * self.timeout_seconds:
            raise ValueError("the period and the timeout of a probe are above 0, and none of its times above a week")
        if self.failure_threshold < 1:
            raise ValueError("a probe counts from one failure on")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What was asked for. environment is the whole environment of the worker, as pairs.

    gpu_uuids, their PCI addresses, isolation and the two limits are what the worker's allocation came to when it was
    started.
    grace_seconds: time between the request to stop and the kill.
    """

    worker_id: str
    command: tuple[str, ...]
    allocation_id: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    gpu_bus_ids: tuple[str, ...] = ()
    isolation: IsolationMode = IsolationMode.SHARED
    effective_sm_percent: int | None = None
    memory_limit_bytes: int | None = None
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    readiness: Probe | None = None
    liveness: Probe | None = None
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.grace_seconds <= MOST_SECONDS:
            raise ValueError("the grace of a worker is between 0 s and a week")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker and its last run. started_at is wall time in seconds since the epoch, 0 when it never ran.

    unready_reason says why ready is false; log_path is the file with the output of the current or last run.
    """

    worker_id: str
    allocation_id: str
    command: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    phase: WorkerPhase
    pid: int | None
    restarts: int
    last_exit_reason: str
    last_output_lines: tuple[str, ...]
    started_at: float
    isolation: IsolationMode
    effective_sm_percent: int | None
    memory_limit_bytes: int | None
    restart_policy: RestartPolicy
    revision: Revision
    ready: bool
    unready_reason: str = ""
    log_path: str = ""
