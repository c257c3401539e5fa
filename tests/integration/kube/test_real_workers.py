"""Workers in a Pod of their own, as the chart deploys them: real control plane and kubelet, both DaemonSets of ours.

Of what the chart makes, only paths of the host, the port and the GPUs are the test's own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from buildsupport.manifests import HELM, NAMESPACE, render
from hypervisor.workers.placing import tree_root
from tests.daemon_process import wait_until
from tests.integration.kube.test_real_manifests import apply
from tests.integration.workers.conftest import end_workers
from tests.kube_fakes.node import NODE
from tests.mps_fakes import CONTROL
from tests.real_kube import kubelet as real_kubelet
from tests.real_kube.api_server import ACCOUNT
from tests.real_kube.cluster import MERGE, Cluster, missing, running_cluster
from tests.real_kube.kubelet import RealKubelet

pytestmark = [
    pytest.mark.real_kube,
    pytest.mark.slow,
    pytest.mark.skipif(not HELM.exists(), reason="needs Helm"),
    pytest.mark.skipif(tree_root() is None, reason="a container without a cgroup has no end"),
]
SECONDS = 180.0
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DAEMON, WORKERS = "hypervisor", "hypervisor-workers"


class Deployed:
    """The chart's node, on this machine."""

    def __init__(self, cluster: Cluster, place: Path, logs: Path) -> None:
        self.cluster = cluster
        self.host = place / "host"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kubeconfig = self.host / "var/lib/hypervisor/kubeconfig"
        text = render("--set", "node.workers.enabled=true", "--set", "aggregator.enabled=false")
        found = [each for each in yaml.safe_load_all(text) if each]
        apply(cluster, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        for each in found:
            if each["kind"] == "DaemonSet":
                self._settle(each, logs)
                if each["metadata"]["name"] == DAEMON:
                    container = each["spec"]["template"]["spec"]["containers"][0]
                    # Cards, and a way to the API server that this machine has.
                    container["args"] += [
                        *("--simulate", "h100-sxm-80gb", "--http-port", str(port)),
                        *("--kubeconfig", "/var/lib/hypervisor/kubeconfig"),
                        *("--mps-program", str(CONTROL), "--mps-answer-seconds", "20"),
                    ]
                    container["ports"][0]["containerPort"] = port
        kubeconfig.parent.mkdir(parents=True)
        apply(cluster, [each for each in found if each["kind"] != "DaemonSet"])
        cluster.kubeconfig_of(NAMESPACE, ACCOUNT, kubeconfig)
        apply(cluster, [each for each in found if each["kind"] == "DaemonSet"])

    def _settle(self, daemon_set: dict[str, Any], logs: Path) -> None:
        for volume in daemon_set["spec"]["template"]["spec"]["volumes"]:
            path = volume.get("hostPath", {}).get("path", "/var/lib/kubelet")
            if not path.startswith(("/var/lib/kubelet", "/sys/")):
                volume["hostPath"]["path"] = str(logs if path == "/var/log/pods" else f"{self.host}{path}")

    def pod(self, component: str) -> dict[str, Any] | None:
        """The Pod of a component that is not about to end."""
        items = self.cluster.ask("GET", f"{PODS}?labelSelector=tensor-fusion.ai/component={component}")["items"]
        return next((each for each in items if "deletionTimestamp" not in each["metadata"]), None)

    def wait_ready(self, component: str, *, after: str = "") -> dict[str, Any]:
        """A Pod of a component that is ready, another than the one of this UID."""

        def ready() -> dict[str, Any] | None:
            found = self.pod(component)
            if found is None or found["metadata"]["uid"] == after:
                return None
            conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
            return found if conditions.get("Ready") == "True" else None

        found: dict[str, Any] = wait_until(ready, f"a Pod of {component} that is ready", SECONDS)
        return found

    def delete(self, component: str) -> str:
        found = self.pod(component)
        assert found is not None
        self.cluster.ask("DELETE", f"{PODS}/{found['metadata']['name']}")
        return str(found["metadata"]["uid"])

    def cli(self, *words: str, socket_name: str, tail: tuple[str, ...] = ()) -> dict[str, Any]:
        done = self.run(*words, socket_name=socket_name, tail=tail)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def said(self, *words: str, socket_name: str) -> bool:
        """Whether it was done; while a card is being prepared it is not."""
        return self.run(*words, socket_name=socket_name).returncode == 0

    def run(self, *words: str, socket_name: str, tail: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        server = ("--server", f"unix:{self.host}/run/hypervisor/{socket_name}", "-o", "json")
        command = [sys.executable, "-m", "hypervisor", *words, *server, *tail]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def workers(self) -> list[dict[str, Any]]:
        return list(self.cli("get", "workers", socket_name="hypervisor.sock")["items"])

    def worker(self, name: str) -> dict[str, Any]:
        return next(each for each in self.workers() if each["workerId"] == name)

    def cgroup(self, pid: int) -> str:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        return next(line[3:] for line in lines if line.startswith("0::"))


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    if why := missing() or real_kubelet.missing():
        pytest.skip(why)
    with (
        running_cluster(K8S_WITH="kube-controller-manager kube-scheduler") as cluster,
        tempfile.TemporaryDirectory(prefix="kubelet-", ignore_cleanup_errors=True) as place,
    ):
        kubelet = RealKubelet(Path(place), cluster, NODE).start()
        found = None
        try:
            wait_until(lambda: cluster.ask("GET", "/api/v1/nodes")["items"], "the Node object", SECONDS)
            labels = {"nvidia.com/gpu.present": "true"}
            cluster.ask("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}}, kind=MERGE)
            found = Deployed(cluster, Path(place), kubelet.logs)
            found.wait_ready(WORKERS)
            found.wait_ready(DAEMON)
            yield found
        finally:
            kubelet.close()
            if found is not None:
                end_workers(found.host / "var/lib/hypervisor")


def test_workers_live_in_a_pod_of_their_own_and_outlive_the_daemons(deployed: Deployed) -> None:
    node = deployed
    tail = ("one", "--", "sleep", "600")
    first = node.cli("worker", "start", socket_name="admin.sock", tail=tail)
    assert first["phase"] == "WORKER_PHASE_RUNNING"
    pid = int(first["pid"])
    launcher = node.wait_ready(WORKERS)["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    daemon = node.wait_ready(DAEMON)["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    assert node.cgroup(pid) == f"/container-{launcher[:12]}"
    # Hard isolation: the control daemon of the card is a worker too. Granted means that its limits were read back.
    hard = ("--gpu", "0", "--compute", "25%", "--vram", "4Gi", "--isolation", "hard")
    wait_until(lambda: node.said("allocate", "trainer", *hard, socket_name="admin.sock"), "the card", SECONDS)
    (control,) = [each for each in node.workers() if each["workerId"].startswith("mps-")]
    assert node.cgroup(int(control["pid"])) == f"/container-{launcher[:12]}"

    # The daemon's whole container, and not one pid: kubelet makes it anew.
    root = tree_root()
    assert root is not None
    inside = (root / f"container-{daemon[:12]}/cgroup.procs").read_text().split()
    assert len(inside) > 1  # the daemon has its readers beside it
    (root / f"container-{daemon[:12]}/cgroup.kill").write_text("1")

    def restarted() -> bool:
        status = node.pod(DAEMON)["status"]["containerStatuses"][0]  # type: ignore[index]
        return status["restartCount"] == 1 and status["ready"]

    wait_until(restarted, "the daemon's container to be made anew", SECONDS)
    for name, was in (("one", pid), (control["workerId"], int(control["pid"]))):
        held = node.worker(name)
        assert (held["phase"], int(held["pid"]), held.get("restarts", 0)) == ("WORKER_PHASE_RUNNING", was, 0)

    # An update of the daemon: its Pod goes, and another one comes.
    node.wait_ready(DAEMON, after=node.delete(DAEMON))
    held = node.worker("one")
    assert (held["phase"], int(held["pid"]), held.get("restarts", 0)) == ("WORKER_PHASE_RUNNING", pid, 0)
    os.kill(pid, 0)

    # The worker Pod goes: so do its workers, and the daemon starts them in the next one.
    node.wait_ready(WORKERS, after=node.delete(WORKERS))

    def again() -> bool:
        found = node.worker("one")
        return found["phase"] == "WORKER_PHASE_RUNNING" and int(found["pid"]) != pid

    wait_until(again, "the worker to run in the new Pod", SECONDS)
    assert not Path(f"/proc/{pid}").exists()
    launcher = node.wait_ready(WORKERS)["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    assert node.cgroup(int(node.worker("one")["pid"])) == f"/container-{launcher[:12]}"
    assert node.worker("one")["lastExitReason"]
