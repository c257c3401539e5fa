"""A node of the fake cluster: the real daemon between a fake kubelet and a fake API server, and Pods on it."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import node_pb2_grpc
from tests.daemon_process import DaemonProcess, wait_until
from tests.kube_fakes.api_server import FakeApiServer
from tests.kube_fakes.kubelet import FakeKubelet, Given
from tests.node_values import GIB  # noqa: F401 - for tests that import from here

NODE = "node-1"
INDEX_0 = "tensor-fusion.ai/index_0"


def pod(
    name: str,
    *,
    node: str = NODE,
    namespace: str = "default",
    resources: dict[str, int] | None = None,
    uid: str = "",
    **annotations: str,
) -> dict:
    """A Pod with one container, main, that asks for one of index_0 unless told otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or str(uuid.uuid4()),
            "annotations": {f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "main",
                    "image": "app",
                    "resources": {
                        "limits": {
                            key: str(value) for key, value in ({INDEX_0: 1} if resources is None else resources).items()
                        }
                    },
                }
            ],
        },
    }


class KubeNode:
    """Kubelet, API server and daemon; each can be stopped and started."""

    def __init__(
        self,
        make_daemon: Callable[..., DaemonProcess],
        *flags: str,
        simulate: str = "h100-sxm-80gb",
        environment: dict[str, str] | None = None,
        api: Any = None,
        kubelet: Any = None,
    ) -> None:
        """api, kubelet: real ones, where the fake ones are not meant."""
        self.daemon = make_daemon(simulate=simulate, environment=environment)
        root = self.daemon.directory
        self.api = FakeApiServer().start() if api is None else api
        self.kubelet = FakeKubelet(root / "kubelet").start() if kubelet is None else kubelet
        self.logs = root / "pod-logs" if kubelet is None else kubelet.logs
        self.logs.mkdir(exist_ok=True)
        self.daemon.flags = (
            *self.daemon.flags,
            *("--kubernetes", "--kubeconfig", str(self.api.kubeconfig(root / "kubeconfig"))),
            *(
                "--kubelet-dir",
                str(root / "kubelet" if kubelet is None else kubelet.root),
                "--pod-logs-dir",
                str(self.logs),
            ),
            *("--host-dir", str(root / "host"), "--node-name", NODE),
            *flags,
        )

    def start(self) -> KubeNode:
        self.daemon.start().wait_ready()
        self.wait_registered()
        return self

    def close(self) -> None:
        self.daemon.close()
        self.kubelet.stop()
        self.api.stop()

    def wait_registered(self) -> None:
        wait_until(lambda: self.kubelet.allocatable(INDEX_0) > 0, "index_0 to be allocatable")
        wait_until(lambda: self.kubelet.allocatable("tensor-fusion.ai/index_10") > 0, "index_10 to be allocatable")

    def run(self, document: dict, *, known: bool = False) -> tuple[dict, Given]:
        """Create a Pod on this node and admit it, as kubelet does when it sees it; known: after the daemon has seen it
        too, which is a race otherwise."""
        created = self.api.create(document)
        if known:
            self.wait_known()
        (given,) = self.kubelet.admit(created)
        return created, given

    def wait_known(self) -> None:
        """Until the daemon's watch has told of all Pods."""
        count = sum(each["spec"].get("nodeName") == NODE for each in self.api.pods.values())
        wait_until(lambda: f"gpuhv_pods_pods {count}.0" in self.daemon.get("/metrics")[1], "the Pods to be known")

    def clear(self) -> None:
        """No Pods any more, and nothing of them."""
        for uid in list(self.api.pods):
            self.api.delete(uid)
        for uid in {given.pod_uid for given in self.kubelet.given}:
            self.kubelet.forget(uid)
        wait_until(lambda: not self.allocations(), "the end of all allocations")
        self.wait_known()

    def ask(self, method: str, request: Any) -> dict[str, Any]:
        """What the daemon answers on its read socket, as the command line's JSON has it."""
        with grpc.insecure_channel(self.daemon.read_address) as channel:
            answer = getattr(node_pb2_grpc.NodeServiceStub(channel), method)(request, timeout=10, wait_for_ready=True)
        found: dict[str, Any] = MessageToDict(answer)
        return found

    def allocations(self) -> dict[str, dict]:
        """The allocations of Pods, by Pod UID."""
        items = self.ask("ListAllocations", pb.ListAllocationsRequest()).get("allocations", [])
        return {each["spec"]["owner"]["pod"]["uid"]: each for each in items if "pod" in each["spec"]["owner"]}

    def gpus(self) -> list[dict]:
        """The cards, by index."""
        found: list[dict] = self.ask("ListGpus", pb.ListGpusRequest())["gpus"]
        return found

    def wait_allocation(self, uid: str) -> dict:
        found: dict = wait_until(lambda: self.allocations().get(uid), f"an allocation of Pod {uid}")
        return found

    def wait_event(self, uid: str, reason: str) -> dict:
        def told() -> list[dict]:
            return [each for each in self.api.events_of(uid) if each["reason"] == reason]

        try:
            found: list[dict] = wait_until(told, f"an event {reason} on Pod {uid}")
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {[each['reason'] for each in self.api.events_of(uid)]}") from None
        return found[0]

    def conditions(self) -> set[str]:
        """Types of the node's conditions."""
        node = self.ask("GetNode", pb.GetNodeRequest())["node"]
        return {each["type"] for each in node["conditions"]}


def settled(allocation: dict) -> dict:
    """What of an allocation stays while it is in use."""
    return {key: allocation[key] for key in ("uid", "createdAt", "directory", "phase", "spec")}


def host_path(given: Given, container_path: str) -> Path:
    """Where a file of a container lies on the host."""
    assert given.answer is not None
    return Path(next(each.host_path for each in given.answer.mounts if each.container_path == container_path))


def environment(given: Given, group: str) -> dict[str, str]:
    """The environment of a process of a container, run without one: paths are those of the host."""
    assert given.answer is not None
    found = dict(given.answer.envs)
    found["TF_SHM_PATH"] = str(host_path(given, found["TF_SHM_PATH"]))
    preload = host_path(given, "/etc/ld.so.preload").read_text().strip()
    # The loader puts the folder of a 64-bit program's libraries in place of $LIB.
    found["LD_PRELOAD"] = str(host_path(given, preload.replace("$LIB", "lib64")))
    return {**os.environ, **found, "SIM_GROUP": group}


def run_container(
    given: Given, command: list[str], group: str, *, without: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[Any]:
    """Run a command in a container to its end; without: variables that it is not given."""
    surroundings = {key: value for key, value in environment(given, group).items() if key not in without}
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60, check=False)
