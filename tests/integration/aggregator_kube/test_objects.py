"""Reports become objects of an API server: written when they differ, taken back when changed, found after a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hypervisor.v1 import node_pb2, types_pb2
from tests.fleet import messages
from tests.fleet.process import AggregatorProcess, all_gpus, wait_until
from tests.fleet.stream import ReportStream
from tests.integration.aggregator_kube.conftest import GROUP, Kube, is_ready, settle

pytestmark = pytest.mark.slow

Replica = Callable[..., AggregatorProcess]
A0, A1 = messages.name("node-a", 0), messages.name("node-a", 1)


def pod_allocation(name: str, gpu: str, *, tflops: str = "100") -> types_pb2.Allocation:
    made = messages.allocation(name, [gpu])
    made.spec.owner.pod.namespace, made.spec.owner.pod.name, made.spec.owner.pod.uid = (
        "team",
        f"pod-{name}",
        f"u-{name}",
    )
    made.devices[0].requests.compute.tflops = tflops
    made.devices[0].requests.vram_bytes = 8 * messages.GIB
    return made


def report(stream: ReportStream, node: str = "node-a", revision: int = 1, **content: Any) -> None:
    stream.send(messages.hello(node))
    stream.wait_for("welcome")
    stream.send(messages.snapshot(messages.revision(1, revision), messages.state(node, **content)))
    stream.wait_for_revision(1, revision)


def gpus(node: str, count: int) -> list[types_pb2.Gpu]:
    return [messages.gpu(node, index, peers=count) for index in range(count)]


def test_a_report_becomes_objects(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        report(stream, gpus=gpus("node-a", 2), allocations=[pod_allocation("x", messages.uuid("node-a", 0))])
        node = kube.node_until("node-a", lambda node: node["status"]["phase"] == "Running", "the node runs")
        gpu = kube.gpu_until(A0, lambda gpu: "runningApps" in gpu["status"], "the Pod is told")
    assert gpu["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    status = gpu["status"]
    assert status["phase"] == "Running"
    assert status["gpuModel"] == "NVIDIA H100 80GB HBM3"
    assert status["usedBy"] == "tensor-fusion"
    assert status["capacity"] == status["available"] == {"tflops": "989", "vram": "81920Mi"}
    assert status["nodeSelector"] == {"kubernetes.io/hostname": "node-a"}
    assert [peer["peerGPUUUID"] for peer in status["topology"]["peers"]] == [A1]
    app = status["runningApps"][0]
    assert (app["namespace"], app["name"], app["count"]) == ("team", "pod-x", 1)
    assert app["pods"][0]["requests"] == {"tflops": "100", "vram": "8192Mi"}
    assert node["status"]["totalTFlops"] == "1978"
    assert node["status"]["totalGPUs"] == node["status"]["managedGPUs"] == 2
    assert node["status"]["totalGPUPods"] == 1


def test_nothing_is_written_that_did_not_change(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        report(stream, gpus=gpus("node-a", 2))
        before = settle(kube)
        same = messages.gpu("node-a", 0, peers=2, temperature=80.0)
        changed = messages.gpu("node-a", 1, peers=2, available_tflops=500.0)
        delta = node_pb2.NodeDelta(gpus=[same, changed])
        stream.send(messages.delta(messages.revision(1, 1), messages.revision(1, 2), delta))
        kube.gpu_until(A1, lambda gpu: gpu["status"]["available"]["tflops"] == "500", "the change is there")
        after = settle(kube)
    assert after[A0] == before[A0]
    assert after[A1] != before[A1]


def test_what_another_has_changed_or_removed_is_put_right(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        report(stream, gpus=gpus("node-a", 2))
        settle(kube)
        other = {
            "apiVersion": "tensor-fusion.ai/v1",
            "kind": "GPU",
            "metadata": {"name": A0},
            "status": {"phase": "Unknown"},
        }
        kube.apply(f"{GROUP}/gpus/{A0}/status", other)
        uid = kube.gpu_until(A1, lambda gpu: True, "it is there")["metadata"]["uid"]
        kube.ask("DELETE", f"{GROUP}/gpus/{A1}")
        kube.gpu_until(A0, lambda gpu: gpu["status"]["phase"] == "Running", "the phase is ours again")
        kube.gpu_until(A1, lambda gpu: gpu["metadata"]["uid"] != uid, "the GPU is there again")


def test_a_missing_card_goes_when_idle_and_stays_unknown_when_busy(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        held = pod_allocation("x", messages.uuid("node-a", 0))
        report(stream, gpus=gpus("node-a", 3), allocations=[held])
        kube.gpu_until(A1, lambda gpu: True, "it is there")
        gone = node_pb2.NodeDelta(removed_gpu_uuids=[messages.uuid("node-a", 0), messages.uuid("node-a", 1)])
        stream.send(messages.delta(messages.revision(1, 1), messages.revision(1, 2), gone))
        missing = kube.gpu_until(A0, lambda gpu: gpu["status"]["phase"] == "Unknown", "the busy one is Unknown")
        wait_until(lambda: kube.gpu(A1) is None, "the idle one is removed")
        assert (
            missing["status"]["missingSince"]
            == missing["metadata"]["annotations"]["tensor-fusion.ai/gpu-missing-since"]
        )
        kube.node_until("node-a", lambda node: node["status"]["totalTFlops"] == "989", "its capacity counts nowhere")
        back = node_pb2.NodeDelta(gpus=[messages.gpu("node-a", 0, peers=3)])
        stream.send(messages.delta(messages.revision(1, 2), messages.revision(1, 3), back))
        found = kube.gpu_until(A0, lambda gpu: gpu["status"]["phase"] == "Running", "it is back")
        assert "missingSince" not in found["status"]
        assert "tensor-fusion.ai/gpu-missing-since" not in (found["metadata"].get("annotations") or {})


def test_pools_select_nodes_by_the_labels_of_the_cluster(kube: Kube, replica: Replica) -> None:
    process = replica()
    for name, zone in (("node-a", "east"), ("node-b", "west")):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}}}
        kube.ask("POST", "/api/v1/nodes", body)
    expression = {"key": "zone", "operator": "In", "values": ["east"]}
    pool = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": "c-east"},
        "spec": {"nodeManagerConfig": {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}},
    }
    kube.ask("POST", f"{GROUP}/gpupools", pool)
    cluster = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "TensorFusionCluster",
        "metadata": {"name": "c"},
        "spec": {"gpuPools": [{"name": "east"}]},
    }
    kube.ask("POST", f"{GROUP}/tensorfusionclusters", cluster)
    with ReportStream(process.address) as a, ReportStream(process.address) as b:
        report(a, "node-a", gpus=gpus("node-a", 2))
        report(b, "node-b", gpus=gpus("node-b", 1))

        def status(path: str, right: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
            return wait_until(
                lambda: (
                    found["status"]
                    if (found := kube.get(path)) and "status" in found and right(found["status"])
                    else None
                ),
                what,
            )

        found = status(f"{GROUP}/gpupools/c-east", lambda s: s.get("totalNodes") == 1, "the pool has its node")
        assert (found["phase"], found["totalGPUs"], found["totalTFlops"], found["cluster"]) == (
            "Running",
            2,
            "1978",
            "c",
        )
        status(f"{GROUP}/tensorfusionclusters/c", lambda s: s.get("phase") == "Running", "the cluster runs")
        label = "tensor-fusion.ai/gpupool"
        kube.gpu_until(A0, lambda gpu: gpu["metadata"]["labels"][label] == "c-east", "the GPU names its pool")
        with process.cluster() as stub:
            assert set(all_gpus(stub)[A0].pools) == {"c-east"}
        kube.merge("/api/v1/nodes/node-b", {"metadata": {"labels": {"zone": "east"}}})
        status(f"{GROUP}/gpupools/c-east", lambda s: s.get("totalNodes") == 2, "a label puts a node into the pool")
        owner = kube.node_until("node-b", lambda node: "ownerReferences" in node["metadata"], "it goes with its Node")
        assert (
            owner["metadata"]["ownerReferences"][0]["uid"] == kube.ask("GET", "/api/v1/nodes/node-b")["metadata"]["uid"]
        )
        kube.merge(f"{GROUP}/gpupools/c-east", {"spec": {"nodeManagerConfig": {"nodeSelector": None}}})
        kube.merge("/api/v1/nodes/node-a", {"metadata": {"labels": {"zone": "north"}}})
        status(f"{GROUP}/gpupools/c-east", lambda s: s.get("totalNodes") == 2, "without a selector it has all")
        # It has left: first its Node object, then its hypervisor.
        kube.ask("DELETE", "/api/v1/nodes/node-a")
        assert kube.gpu(A0) is not None
    wait_until(lambda: kube.get(f"{GROUP}/gpunodes/node-a") is None, "its GPUNode goes")
    wait_until(lambda: kube.gpu(A0) is None, "its GPUs go")
    assert kube.get(f"{GROUP}/gpunodes/node-b") is not None


def test_a_crash_loses_nothing_and_rewrites_nothing(kube: Kube, replica: Replica) -> None:
    process = replica()
    with ReportStream(process.address) as stream:
        report(stream, gpus=gpus("node-a", 2), allocations=[pod_allocation("x", messages.uuid("node-a", 0))])
        kube.gpu_until(A0, lambda gpu: "runningApps" in gpu["status"], "all is written")
        before = settle(kube)
        process.kill()
    process.start()
    wait_until(lambda: is_ready(process), "it leads again")
    with process.cluster() as stub:
        restored = all_gpus(stub)
        assert restored.keys() == {A0, A1}
        assert restored[A0].gpu.model == "NVIDIA H100 80GB HBM3"
        assert restored[A0].gpu.capacity.tflops.value == 989.0
        assert [app.name for app in restored[A0].running_apps] == ["pod-x"]
    with ReportStream(process.address) as stream:
        report(
            stream, revision=2, gpus=gpus("node-a", 2), allocations=[pod_allocation("x", messages.uuid("node-a", 0))]
        )
        after = settle(kube)
    assert after == before


def test_an_object_that_is_refused_holds_up_no_other(kube: Kube, replica: Replica) -> None:
    process = replica()
    with ReportStream(process.address) as odd, ReportStream(process.address) as plain:
        # No name of an object: the API server refuses it.
        odd.send(messages.hello("Node_A"))
        odd.wait_for("welcome")
        odd.send(messages.snapshot(messages.revision(1, 1), messages.state("Node_A", gpus=[])))
        report(plain, "node-b", gpus=gpus("node-b", 1))
        kube.node_until("node-b", lambda node: node["status"]["phase"] == "Running", "the other is written")
    assert is_ready(process)
    assert "does not take an object" in process.log.read_text()
