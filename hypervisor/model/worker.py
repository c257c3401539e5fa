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


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker and its last run. started_at is wall time in seconds since the epoch."""

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
