"""What MPS is told by the daemon's settings."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hypervisor.config import Settings

_FLAG = b"multiuser-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings:
    """program: the control program, "" where there is none. directory: pipe and log directories of all cards.
    multiuser: one server for the users of all clients; else a card serves one user at a time."""

    program: str
    directory: Path
    multiuser: bool
    probe_seconds: float = 1.0
    answer_seconds: float = 3.0
    prepare_seconds: float = 8.0  # for a grant; below the deadline of those who ask

    @classmethod
    def of(cls, settings: Settings) -> MpsSettings:
        """From the daemon's settings."""
        program = shutil.which(settings.mps_program) or ""
        return cls(
            program=program,
            directory=Path(settings.mps_dir) if settings.mps_dir else settings.state_path / "mps",
            # Only a server of root's may serve several users.
            multiuser=settings.mps_multiuser and os.geteuid() == 0 and knows_multiuser(program),
            probe_seconds=settings.mps_probe_seconds,
            answer_seconds=settings.mps_answer_seconds,
            prepare_seconds=settings.mps_prepare_seconds,
        )


def knows_multiuser(program: str) -> bool:
    """Whether a control program has the flag; one that has not (branches 535 and 550) takes it for something else, and
    does not start a daemon at all. There is no other way to ask it."""
    if not program:
        return False
    try:
        return _FLAG in Path(program).read_bytes()
    except OSError:
        return False
