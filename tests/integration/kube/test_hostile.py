"""What any user may write into a Pod stops neither the watch nor the daemon, and the other Pods get theirs."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon_process import wait_until
from tests.kube_fakes.node import KubeNode, pod

GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"container_gpu_count": '{"\\ud800": 0}'}, id="half-a-character"),
        pytest.param({"container_gpus": '{"main": ["\\ud800"]}'}, id="half-a-character-for-a-gpu"),
        pytest.param({"gpu_ids": "a\x00b"}, id="nul"),
        pytest.param({"gpu_model": "one\x85two\u2028three\x1cfour"}, id="ends-of-lines"),
        pytest.param({"gpu_model": "x" * 200_000}, id="as-long-as-annotations-may-be"),
        pytest.param({"gpu_ids": ",".join(f"gpu-{number}" for number in range(20_000))}, id="many-gpus"),
    ],
)
def test_texts_of_one_pod_are_no_harm_to_others(any_node: KubeNode, annotations: dict[str, str]) -> None:
    hostile, _ = any_node.run(pod(f"hostile-{uuid.uuid4().hex[:6]}", **GOOD, **annotations))
    good, _ = any_node.run(pod(f"good-{uuid.uuid4().hex[:6]}", **GOOD))
    any_node.wait_allocation(good["metadata"]["uid"])
    wait_until(
        lambda: any(each["type"] == "Warning" for each in any_node.api.events_of(hostile["metadata"]["uid"])),
        "what is wrong with it to be told",
    )


def test_a_name_may_be_as_long_as_kubernetes_takes(shared_node: KubeNode) -> None:
    name = "a" * 229 + "-" + "b" * 23
    document, _ = shared_node.run(pod(name, **GOOD))
    uid = document["metadata"]["uid"]
    shared_node.wait_allocation(uid)
    told = shared_node.wait_event(uid, "GPUDeviceAllocated")["metadata"]["name"]
    assert all(word and word[0] != "-" != word[-1] for word in told.split("."))
    assert len(told) <= 253


def test_a_thousand_unknown_annotations_are_a_few_events(shared_node: KubeNode) -> None:
    unknown = {f"unknown_{number}": "" for number in range(1000)}
    document, _ = shared_node.run(pod("verbose", **GOOD, **unknown))
    uid = document["metadata"]["uid"]
    wait_until(
        lambda: any("995 more" in each["message"] for each in shared_node.api.events_of(uid)), "the last of its events"
    )
    assert len(shared_node.api.events_of(uid)) == 7  # with that of its share


def test_a_workload_may_have_any_name(shared_node: KubeNode) -> None:
    document, _ = shared_node.run(pod("named", **GOOD, workload='a"} 1\nb\x00\x85c\\'))
    shared_node.wait_allocation(document["metadata"]["uid"])
    told = shared_node.daemon.get("/metrics")[1]
    assert list(text_string_to_metric_families(told))
