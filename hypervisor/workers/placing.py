"""Where workers live: a cgroup beside the daemon's, so that ending the daemon's does not end them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = "hypervisor-workers"
AUTO, NONE = "auto", "none"


def cgroup_for(setting: str, directory: Path) -> Path | None:
    """The cgroup-v2 directory below which each worker of a state directory gets its own; None: where it is started.

    setting: "auto", "none", or a directory. Two daemons of one machine never share one.
    """
    if setting == NONE:
        return None
    if setting == AUTO:
        root = tree_root()
        if root is None or os.geteuid() != 0 or not os.access(root, os.W_OK):
            return None
    else:
        root = Path(setting)
    return root / FOLDER / hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]


def tree_root() -> Path | None:
    """Where the whole cgroup-v2 tree is mounted and may be written to; None where it is not."""
    return _root(Path("/proc/self/mountinfo").read_text(errors="replace").splitlines())


def _root(mounts: Iterable[str]) -> Path | None:
    """Where the whole cgroup-v2 tree is mounted; a part of it, as containers see it, is not enough."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and len(fields) > 5 and fields[3] == "/" and "rw" in fields[5].split(","):
            return Path(fields[4])
    return None
