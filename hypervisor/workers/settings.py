"""What the supervisor is told by the daemon's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import hypervisor
from hypervisor.config import Settings
from hypervisor.workers.backoff import Backoff
from hypervisor.workers.cgroup import MemoryControl
from hypervisor.workers.placing import cgroup_for, tree_root

SHIM = Path(hypervisor.__file__).resolve().parent / "native" / "worker-shim"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """directory: one folder a worker below it. launcher: unix socket of a launcher, None to start shims ourselves.
    cgroup: cgroup-v2 directory for workers, None to leave them where they are started; cgroup_root: the top of its
    tree. most_processes: tasks that a worker may have where the kernel counts them, 0 for any number. memory: what
    limits the VRAM of cgroups, None where there is no tree of cgroups to write to."""

    directory: Path
    launcher: Path | None = None
    cgroup: Path | None = None
    cgroup_root: Path = Path("/sys/fs/cgroup")
    most_processes: int = 0
    memory: MemoryControl | None = None
    backoff: Backoff = field(default_factory=Backoff)
    log_bytes: int = 2**20
    log_files: int = 3
    shim: Path = SHIM

    @classmethod
    def of(cls, settings: Settings) -> WorkerSettings:
        """From the daemon's settings."""
        root = tree_root()
        return cls(
            memory=MemoryControl(root) if root is not None else None,
            directory=settings.state_path / "workers",
            launcher=Path(settings.worker_launcher.removeprefix("unix:")) if settings.worker_launcher else None,
            # A launcher starts them where it lives itself.
            cgroup=None if settings.worker_launcher else cgroup_for(settings.worker_cgroup, settings.state_path),
            backoff=Backoff(
                first_seconds=settings.worker_backoff_seconds,
                most_seconds=max(settings.worker_backoff_most_seconds, settings.worker_backoff_seconds),
                reset_seconds=settings.worker_backoff_reset_seconds,
            ),
            log_bytes=settings.worker_log_mebibytes * 2**20,
            log_files=settings.worker_log_files,
            cgroup_root=root or Path("/sys/fs/cgroup"),
            most_processes=settings.worker_most_processes,
        )
