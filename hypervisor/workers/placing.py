"""Where workers live: a cgroup beside the daemon's, so that ending the daemon's does not end them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = "hypervisor-workers"
AUTO, NONE = "auto", "none"
INITIAL_NAMESPACE = 0xEFFFFFFB  # inode of the cgroup namespace that the machine begins with


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


@dataclass(frozen=True, slots=True)
class Tree:
    """The whole cgroup-v2 tree: where it is mounted and may be written to, and at which of its cgroups the paths begin
    that /proc/PID/cgroup tells us, which is not the top in a container with a cgroup namespace of its own."""

    root: Path
    base: str = "/"

    def at(self, told: str) -> str:
        """The path from the top, without a slash at its beginning, of what /proc/PID/cgroup tells."""
        return os.path.normpath(f"{self.base}/{told}").lstrip("/")


def tree_root() -> Path | None:
    """Where the whole tree is; None where it is not to be seen."""
    found = tree()
    return found.root if found is not None else None


def tree() -> Tree | None:
    """The whole tree, as far as it can be seen from here; a part of it, as containers see it, is not enough."""
    found = _mounted(Path("/proc/self/mountinfo").read_text(errors="replace").splitlines())
    if found is None:
        return None
    root, above = found
    if above == 0:
        try:
            inode = Path("/proc/self/ns/cgroup").stat().st_ino
        except OSError:
            inode = INITIAL_NAMESPACE  # a kernel without such namespaces
        # In a namespace of its own what looks like the top is the container's own cgroup.
        return Tree(root) if inode == INITIAL_NAMESPACE else None
    base = _beginning(root, above, os.getpid(), Path("/proc/self/cgroup").read_text(errors="replace"))
    return None if base is None else Tree(root, base)


def _mounted(mounts: Iterable[str]) -> tuple[Path, int] | None:
    """Where a cgroup-v2 tree is mounted from its top, as far as we can tell, and how far that is above where our
    paths begin."""
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and len(fields) > 5 and "rw" in fields[5].split(","):
            parts = [part for part in fields[3].split("/") if part]
            if set(parts) <= {".."}:
                found.append((Path(fields[4]), len(parts)))
    # Of several the highest one: a container may have its own part and, over it, the machine's.
    return max(found, key=lambda each: each[1], default=None)


def _beginning(root: Path, depth: int, pid: int, own: str) -> str | None:
    """The path of the cgroup, so deep below the top, at which our paths begin: by where in the tree we are ourselves,
    for its name is told nowhere. None where we are not found, as without the machine's PID namespace."""
    told = next((line[3:] for line in own.splitlines() if line.startswith("0::/")), "/").rstrip("/")
    wanted = depth + told.count("/")
    for folder, names, _ in os.walk(root):
        inside = folder.removeprefix(str(root))
        if inside.count("/") == wanted:
            names.clear()
            try:
                inhabitants = Path(folder, "cgroup.procs").read_text().split()
            except OSError:
                continue
            if str(pid) in inhabitants and inside.endswith(told):
                return inside.removesuffix(told)
    return None
