"""What is wrong is an event or a logged reason, and the other Pods are untouched."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.daemon_process import wait_until
from tests.kube_fakes.node import KubeNode, environment, host_path, pod, settled

GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


@contextmanager
def undisturbed(node: KubeNode) -> Iterator[dict]:
    """A Pod that must not notice anything; its allocation is compared at the end."""
    document, _ = node.run(pod(f"witness-{uuid.uuid4().hex[:6]}", **GOOD))
    uid = document["metadata"]["uid"]
    before = node.wait_allocation(uid)
    yield before
    assert settled(node.wait_allocation(uid)) == settled(before)


@pytest.fixture
def bystander(any_node: KubeNode) -> Iterator[dict]:
    with undisturbed(any_node) as before:
        yield before


@pytest.fixture
def witness(shared_node: KubeNode) -> Iterator[dict]:
    with undisturbed(shared_node) as before:
        yield before


@pytest.mark.parametrize(
    ("annotations", "reason", "words"),
    [
        ({"compute_percent_limit": "10", "tflops_limit": "5"}, "AnnotationInvalid", "in percent or in TFLOPS"),
        ({"vram_limit": "lots"}, "AnnotationInvalid", '"lots"'),
        ({}, "AnnotationInvalid", "tflops request is not set"),
        ({**GOOD, "gpu_ids": "gpu-ffffffff-0000-0000-0000-000000000000"}, "GPUDeviceAllocatedFailed", "not a GPU of"),
        ({**GOOD, "gpu_model": "NVIDIA T1000"}, "GPUDeviceAllocatedFailed", "are a NVIDIA T1000"),
        ({**GOOD, "isolation": "partitioned"}, "GPUDeviceAllocatedFailed", "MIG mode is off"),
        ({"tflops_limit": "100000", "vram_limit": "1Gi"}, "GPUDeviceAllocatedFailed", "more than the whole card"),
        ({"compute_percent_limit": "0.5", "vram_limit": "1Gi"}, "GPUDeviceAllocatedFailed", "that can be held is 1%"),
        ({"tflops_limit": "500m", "vram_limit": "1Gi"}, "GPUDeviceAllocatedFailed", "that can be held is 1%"),
        ({"compute_percent_limit": "0", "vram_limit": "1Gi"}, "AnnotationInvalid", "above 0 and at most 100"),
        ({"compute_percent_limit": "101", "vram_limit": "1Gi"}, "AnnotationInvalid", "above 0 and at most 100"),
        ({"compute_percent_limit": "NaN", "vram_limit": "1Gi"}, "AnnotationInvalid", "no quantity"),
    ],
)
def test_a_wrong_demand_is_an_event_and_no_share(
    any_node: KubeNode, bystander: dict, annotations: dict[str, str], reason: str, words: str
) -> None:
    # Known when kubelet asks: of a Pod that was not, a MIG instance would be refused for that.
    document, given = any_node.run(pod(f"bad-{uuid.uuid4().hex[:6]}", **annotations), known=True)
    uid = document["metadata"]["uid"]
    event = any_node.wait_event(uid, reason)
    assert words in event["message"]
    assert event["type"] == "Warning"
    assert uid not in any_node.allocations()
    assert host_path(given, "/run/tensor-fusion/shm/shm").exists()
    assert environment(given, "x")["TF_ISOLATION_MODE"] == "soft"


def test_a_corrected_annotation_arms_the_same_files(any_node: KubeNode, bystander: dict) -> None:
    document, given = any_node.run(pod(f"fixed-{uuid.uuid4().hex[:6]}", vram_limit="1Gi", tflops_limit="many"))
    uid = document["metadata"]["uid"]
    any_node.wait_event(uid, "AnnotationInvalid")
    any_node.api.annotate(uid, tflops_limit="50")
    allocation = any_node.wait_allocation(uid)
    assert allocation["directory"] == str(host_path(given, "/run/tensor-fusion/shm/shm").parent)


def test_a_misspelt_annotation_is_told(any_node: KubeNode, bystander: dict) -> None:
    document, _ = any_node.run(pod(f"misspelt-{uuid.uuid4().hex[:6]}", **GOOD, vram_limits="1Gi"))
    uid = document["metadata"]["uid"]
    assert "vram-limits" in any_node.wait_event(uid, "AnnotationUnknown")["message"]


def test_another_nodes_pod_and_a_uid_that_comes_again_are_left_out(shared_node: KubeNode, witness: dict) -> None:
    owner = witness["spec"]["owner"]["pod"]
    shared_node.api.create(pod("elsewhere", node="node-2", **GOOD))
    with shared_node.api._lock:
        impostor = pod("impostor", uid=owner["uid"], **GOOD)
        shared_node.api._changed("MODIFIED", impostor)
        shared_node.api._changed("DELETED", impostor)
    wait_until(
        lambda: any("UID of another one" in line.get("event", "") for line in shared_node.daemon.log()),
        "the logged reason",
    )
    assert owner["uid"] in shared_node.allocations()


def test_a_checkpoint_with_a_wrong_checksum_is_a_condition_and_podresources_go_on(
    shared_node: KubeNode, witness: dict
) -> None:
    path = shared_node.kubelet.plugins / "kubelet_internal_checkpoint"
    good = path.read_text()
    shared_node.kubelet._write_checkpoint = lambda: path.write_text(good.replace('"Checksum": ', '"Checksum": 1'))
    try:
        document, _ = shared_node.run(pod(f"unsure-{uuid.uuid4().hex[:6]}", **GOOD))
        uid = document["metadata"]["uid"]
        shared_node.wait_allocation(uid)
        wait_until(lambda: "CheckpointRejected" in shared_node.conditions(), "the condition")
    finally:
        del shared_node.kubelet._write_checkpoint
        shared_node.kubelet._write_checkpoint()


def test_a_reply_of_ten_megabytes_is_read(shared_node: KubeNode, witness: dict) -> None:
    shared_node.kubelet.padding = 6000
    try:
        assert shared_node.kubelet.List(None, None).ByteSize() > 8 * 2**20
        document, _ = shared_node.run(pod(f"crowded-{uuid.uuid4().hex[:6]}", **GOOD))
        uid = document["metadata"]["uid"]
        shared_node.wait_allocation(uid)
        assert "PodResourcesUnreachable" not in shared_node.conditions()
    finally:
        shared_node.kubelet.padding = 0


def test_a_reply_that_is_too_long_is_a_condition_and_the_checkpoint_serves(
    shared_node: KubeNode, witness: dict
) -> None:
    shared_node.kubelet.padding = 14_000
    try:
        document, _ = shared_node.run(pod(f"flooded-{uuid.uuid4().hex[:6]}", **GOOD))
        uid = document["metadata"]["uid"]
        shared_node.wait_allocation(uid)
        assert "PodResourcesUnreachable" in shared_node.conditions()
    finally:
        shared_node.kubelet.padding = 0
