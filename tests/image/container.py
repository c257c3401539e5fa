"""A container of an image's root directory: processes, mounts and network of its own, its entrypoint as process 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.daemon_process import wait_until
from tests.image.dockerfile import Stage

# Loopback is down in a new network namespace; this raises it, without programs that an image need not have.
_LOOPBACK = (
    "import fcntl, socket, struct; s = socket.socket(); "
    "fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 1 | 64))"  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
)
_START = (
    'root=$1; python=$2; loopback=$3; shift 3; "$python" -c "$loopback"; mount -t proc proc "$root/proc"; '
    'mount --rbind /dev "$root/dev"; mount -t tmpfs tmpfs "$root/tmp"; exec chroot "$@"'
)


class Container:
    """Runs the image's entrypoint with the words, or its own command where there are none; as its user or another."""

    def __init__(self, image: Stage, *words: str, user: str | None = None) -> None:
        self._image = image
        self._user = image.user if user is None else user
        self._environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/",
            **image.environment,
        }
        command = [f"--userspec={self._user}", str(image.root), *image.entrypoint, *(words or image.command)]
        self._process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"),
                *("sh", "-ec", _START, "sh", str(image.root), sys.executable, _LOOPBACK, *command),
            ],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._leader = int(wait_until(self._first_process, "the container's first process"))

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user."""
        inside = ["nsenter", "-t", str(self._leader), "-m", "-p", "-n", "chroot", f"--userspec={self._user}"]
        return subprocess.run(
            [*inside, str(self._image.root), *command],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def healthy(self) -> bool:
        """What the image's health check says."""
        assert self._process.poll() is None, self._process.stderr.read() if self._process.stderr else ""
        return self.run(*self._image.healthcheck).returncode == 0

    def close(self, *, seconds: float = 20.0) -> int:
        """End it as a container's engine does, and return its status."""
        if self._process.poll() is None:
            os.kill(self._leader, signal.SIGTERM)
        try:
            self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.kill(self._leader, signal.SIGKILL)  # with process 1 ends all that is in it
            self._process.communicate()
        return self._process.returncode
