"""What the supervisor is told by the daemon's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import hypervisor
from hypervisor.config import Settings
from hypervisor.workers.backoff import Backoff
from hypervisor.workers.cgroup import MemoryControl
from hypervisor.workers.placing import AUTO, cgroup_for, tree

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
        found = tree()
        return cls(
            memory=MemoryControl(found.root, at=found.at) if found is not None else None,
            directory=settings.state_path / "workers",
            launcher=Path(settings.worker_launcher.removeprefix("unix:")) if settings.worker_launcher else None,
            cgroup=_cgroup(settings),
            backoff=Backoff(
                first_seconds=settings.worker_backoff_seconds,
                most_seconds=max(settings.worker_backoff_most_seconds, settings.worker_backoff_seconds),
                reset_seconds=settings.worker_backoff_reset_seconds,
            ),
            log_bytes=settings.worker_log_mebibytes * 2**20,
            log_files=settings.worker_log_files,
            cgroup_root=found.root if found is not None else Path("/sys/fs/cgroup"),
            most_processes=settings.worker_most_processes,
        )


def _cgroup(settings: Settings) -> Path | None:
    """A launcher starts workers where it lives itself. In a cluster without one they stay in the daemon's Pod: outside
    of it nobody would count what they use."""
    if settings.worker_launcher or (settings.kubernetes and settings.worker_cgroup == AUTO):
        return None
    return cgroup_for(settings.worker_cgroup, settings.state_path)
