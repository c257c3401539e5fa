"""A real containerd with runc for a real kubelet, where the machine has them; its containers are containers.

It lives in kubelet's mount namespace, for kubelet names paths of its own. Pods have networks of their own that lead
nowhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.daemon_process import wait_until
from tests.real_kube.images import PAUSE, write_pause_image
from tests.real_kube.mounts import MountNamespace

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
# What kubelet's own images have as a place for a network: an address that nobody routes.
_PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD) echo '{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],
"ips":[{"version":"4","interface":0,"address":"192.0.2.2/24"}]}' ;;
esac
"""


def missing() -> str:
    """Why there are no real containers here; "" where there are."""
    absent = [each for each in PROGRAMS if shutil.which(each, path=path()) is None]
    return f"real containers take {', '.join(absent)}, in PATH or in folders named by CONTAINERD_BIN" if absent else ""


def path() -> str:
    """Where programs of a container runtime are looked for."""
    return os.pathsep.join([os.environ.get("CONTAINERD_BIN", ""), os.environ["PATH"], "/usr/sbin"])


class Containerd:
    """Serves on a unix socket until close(), which ends all containers."""

    # What kubelet has to be told of a runtime that has cgroups.
    kubelet_settings: dict[str, object] = {  # noqa: RUF012 - never changed
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["none"],
    }

    def __init__(self, directory: Path, mounts: MountNamespace) -> None:
        self.directory = directory / "containerd"
        self.socket = self.directory / "c.sock"
        self._surroundings = {**os.environ, "PATH": path()}
        for each in ("plugins", "networks"):
            (self.directory / each).mkdir(parents=True)
        for name in ("nowhere", "loopback"):
            plugin = self.directory / "plugins" / name
            plugin.write_text(_PLUGIN)
            plugin.chmod(0o755)
        network = {"cniVersion": "0.4.0", "name": "nowhere", "plugins": [{"type": "nowhere"}]}
        (self.directory / "networks/10-nowhere.conflist").write_text(json.dumps(network))
        settings = self.directory / "config.toml"
        settings.write_text(
            f"""version = 2
root = "{self.directory / "root"}"
state = "{self.directory / "state"}"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true  # in a container even root may not lower it
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{self.directory / "plugins"}"
    conf_dir = "{self.directory / "networks"}"
"""
        )
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                mounts.command("containerd", "--config", str(settings)),
                env=self._surroundings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: self._ctr("version", check=False).returncode == 0, "containerd to serve", 60)
            self.take_image(write_pause_image(self.directory))
        except BaseException:
            self.close()
            raise

    def take_image(self, archive: Path) -> None:
        """Kubelet finds it and pulls nothing."""
        self._ctr("images", "import", str(archive))

    def close(self) -> None:
        for task in self._tasks():
            self._ctr("tasks", "kill", "--signal", "SIGKILL", task, check=False)
        wait_until(lambda: self._tasks("RUNNING") == [], "the containers to end", 30)
        for task in self._tasks():
            self._ctr("tasks", "delete", "--force", task, check=False)  # and with it its shim
        self._process.terminate()
        self._process.wait(30)
        # Kubelet's control groups of Pods, empty now; all but its own are left alone.
        for group in Path("/sys/fs/cgroup").glob("**/kubepods"):
            for inner in (*sorted(group.glob("**/"), reverse=True), group):
                with suppress(OSError):
                    inner.rmdir()

    def _tasks(self, state: str = "") -> list[str]:
        rows = self._ctr("tasks", "list", check=False).stdout.splitlines()[1:]
        return [row.split()[0] for row in rows if state in row]

    def _ctr(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words]
        return subprocess.run(command, env=self._surroundings, capture_output=True, text=True, timeout=120, check=check)
