"""A node of which nothing is a fake, but for the driver and, unless containers are asked for, the container runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from hypervisor.kube.indices import DEVICES_PER_RESOURCE, resource_names
from hypervisor.simulation.machine import opened
from hypervisor.v1 import podresources_v1_pb2 as api
from hypervisor.v1 import podresources_v1_pb2_grpc as api_grpc
from tests.daemon_process import wait_until
from tests.integration.conftest import daemons
from tests.kube_fakes.node import NODE, KubeNode, pod
from tests.real_kube.api_server import RealApiServer
from tests.real_kube.cluster import running_cluster
from tests.real_kube.kubelet import RealKubelet

SECONDS = 120.0
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


class RealNode(KubeNode):
    """A node of which nothing is a fake."""

    def __init__(self, make_daemon: Any, api: RealApiServer, kubelet: RealKubelet) -> None:
        super().__init__(make_daemon, api=api, kubelet=kubelet)
        self.proxy = f"unix:{self.daemon.directory / 'proxy.sock'}"
        self.daemon.flags = (*self.daemon.flags, "--pod-resources-proxy", self.proxy)

    def offered(self) -> dict[str, int]:
        """What the Node object has of our resources to give."""
        status = self.api.cluster.ask("GET", f"/api/v1/nodes/{NODE}")["status"]
        return {key: int(value) for key, value in status.get("allocatable", {}).items() if key in resource_names()}

    def wait_registered(self) -> None:
        everything = dict.fromkeys(resource_names(), DEVICES_PER_RESOURCE)
        wait_until(lambda: self.offered() == everything, "the Node object to offer all indices", SECONDS)

    def metric(self, name: str) -> float:
        page = self.daemon.get("/metrics")[1].splitlines()
        return float(next(line.split()[1] for line in page if line.startswith(f"{name} ")))

    def wait_followed(self) -> None:
        """Until kubelet would give our indices: a Pod that it admits before fails, and the Node object is behind."""

        def offered() -> bool:
            with grpc.insecure_channel(f"unix:{self.kubelet.root}/pod-resources/kubelet.sock") as channel:
                stub = api_grpc.PodResourcesListerStub(channel)
                reply = stub.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=10)
            found = {each.resource_name for each in reply.devices}
            return found >= set(resource_names())

        wait_until(offered, "kubelet to offer all indices", SECONDS)

    def run_pod(self, name: str, **annotations: str) -> str:
        """A Pod on this node, given to kubelet by the API server; its UID."""
        document = pod(name, **annotations)
        document["spec"] |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
        document["spec"]["containers"][0] |= {"command": ["sleep", "3600"], "imagePullPolicy": "IfNotPresent"}
        return self.api.create(document)["metadata"]["uid"]

    def wait_running(self, *uids: str) -> None:
        def running() -> bool:
            pods = self.api.pods
            return all(pods[uid]["status"].get("phase") == "Running" for uid in uids)

        wait_until(running, "the Pods to run", SECONDS)

    def run_deployment(self, name: str, annotations: dict[str, str], container: dict, **spec: Any) -> None:
        """Three replicas of a container, made by the real controllers."""
        labels = {"app": name}
        document = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": labels,
                        "annotations": pod("unnamed", **annotations)["metadata"]["annotations"],
                    },
                    "spec": {
                        "automountServiceAccountToken": False,
                        "terminationGracePeriodSeconds": 1,
                        "containers": [container],
                        **spec,
                    },
                },
            },
        }
        self.api.cluster.ask("POST", DEPLOYMENTS, document)

    def end_deployment(self, name: str) -> None:
        self.api.cluster.ask("DELETE", f"{DEPLOYMENTS}/{name}")

    def clear(self) -> None:
        """No Pods any more, and nothing of them."""
        for each in self.api.pods.values():
            self.api.delete(each["metadata"]["uid"])
        wait_until(lambda: not self.allocations(), "the end of all allocations", SECONDS)

    def peaks(self) -> dict[str, int]:
        """Peak bytes by Pod name, by the simulator's own ledger."""
        with opened(self.daemon.machine) as machine:
            groups = machine.show()["groups"]
        return {each["name"]: sum(used["peak_bytes"] for used in each["gpus"].values()) for each in groups}


@contextmanager
def real_node(*, containers: bool = False) -> Iterator[RealNode]:
    """A node that is ready, in a cluster of its own."""
    with (
        running_cluster(K8S_WITH="kube-controller-manager kube-scheduler") as cluster,
        daemons() as make,
        tempfile.TemporaryDirectory(prefix="kubelet-", ignore_cleanup_errors=True) as place,
    ):
        kubelet = RealKubelet(Path(place), cluster, NODE, containers=containers)
        found = None
        try:
            kubelet.start()
            found = RealNode(make, RealApiServer(cluster), kubelet)
            found.daemon.start().wait_ready()
            found.wait_registered()
            yield found
        finally:
            kubelet.close()
            if found is not None:
                found.daemon.close()
