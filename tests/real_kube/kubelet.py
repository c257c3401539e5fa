"""A real kubelet on this machine, with a container runtime whose containers are plain processes, or with a real one.

Its device manager knows one directory only, /var/lib/kubelet, so it lives in a mount namespace of its own, where that
is a directory of the test; which takes root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import yaml

from tests.real_kube.cluster import Cluster
from tests.real_kube.container_runtime import ContainerRuntime
from tests.real_kube.containerd import Containerd
from tests.real_kube.mounts import MountNamespace


def missing() -> str:
    """Why there can be no real kubelet here; "" where there can."""
    if not (Path(os.environ.get("K8S_BIN", "")) / "kubelet").is_file():
        return "K8S_BIN holds no kubelet"
    if os.geteuid() != 0:
        return "a kubelet wants to be root"
    return "" if shutil.which("unshare") else "there is no unshare"


class RealKubelet:
    """One node. restart() is what an upgrade does: it ends without a word, and another one comes."""

    def __init__(self, directory: Path, cluster: Cluster, node: str, *, containers: bool = False) -> None:
        """containers: by a real container runtime."""
        self.root = directory / "kubelet"
        self.logs = directory / "pod-logs"
        self._directory = directory
        self.logs.mkdir()
        self._mounts = MountNamespace(self.root)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.runtime = (
                Containerd(directory, self._mounts)
                if containers
                else ContainerRuntime(directory / "runtime.sock", self.root)
            )
        except BaseException:
            self._mounts.close()
            raise
        settings = directory / "kubelet.yaml"
        settings.write_text(yaml.safe_dump(_settings(self.runtime.socket, self.logs) | self.runtime.kubelet_settings))
        self._command = self._mounts.command(
            str(Path(os.environ["K8S_BIN"]) / "kubelet"),
            *("--config", str(settings), "--kubeconfig", str(cluster.directory / "kubeconfig")),
            *("--hostname-override", node, "--root-dir", "/var/lib/kubelet"),
        )

    def start(self) -> RealKubelet:
        with (self._directory / "kubelet.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def restart(self) -> RealKubelet:
        self.kill()
        return self.start()

    def log(self) -> str:
        return (self._directory / "kubelet.log").read_text(errors="replace")

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.runtime.close()
        self._mounts.close()


def _free_port() -> int:
    """Several kubelets may run beside each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _settings(socket: Path, logs: Path) -> dict[str, object]:
    """No cgroups, no eviction, nothing of the machine but the device manager and Pods."""
    nothing = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "port": _free_port(),
        "healthzPort": 0,
        "readOnlyPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{socket}",
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(logs),
        "evictionHard": nothing,
        "syncFrequency": "5s",
        "maxPods": 200,
    }
