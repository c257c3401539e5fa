"""A mount namespace in which /var/lib/kubelet is a directory of the test: kubelet's device manager knows no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.daemon_process import wait_until


class MountNamespace:
    """Held by a process until close(); what is mounted in it is gone with it and those that were started in it."""

    def __init__(self, kubelet_root: Path) -> None:
        kubelet_root.mkdir()
        self._working = kubelet_root.with_name("working")
        self._working.mkdir()
        ready = kubelet_root / "held"
        script = (
            f"mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --bind {kubelet_root} /var/lib/kubelet"
            f" && touch {ready} && exec sleep infinity"
        )
        self._holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.DEVNULL)
        wait_until(ready.exists, "a mount namespace")
        ready.unlink()

    def command(self, *words: str) -> list[str]:
        """What runs a program in it, in an empty directory: who enters a mount namespace stands at its root, and a
        kubelet removes what it finds where it stands when a runtime names no log."""
        there = ("sh", "-c", 'cd "$0" && exec "$@"', str(self._working))
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *there, *words]

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(10)
