"""Pools by labels and selectors, and who holds shares of a GPU."""

from __future__ import annotations

import pytest

from hypervisor.aggregator import derive, selectors
from hypervisor.aggregator.summaries import parsed, running_apps, shares
from hypervisor.v1 import types_pb2


def selector(*expressions: dict, fields: list | None = None) -> selectors.NodeSelector:
    return selectors.from_object(
        {"nodeSelectorTerms": [{"matchExpressions": list(expressions), "matchFields": fields or []}]}
    )


@pytest.mark.parametrize(
    ("expression", "labels", "selected"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, {"zone": "b"}, True),
        ({"key": "zone", "operator": "In", "values": ["a"]}, {}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, {}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, {"zone": "a"}, False),
        ({"key": "gpu", "operator": "Exists"}, {"gpu": ""}, True),
        ({"key": "gpu", "operator": "Exists"}, {}, False),
        ({"key": "gpu", "operator": "DoesNotExist"}, {}, True),
        ({"key": "gpu", "operator": "DoesNotExist"}, {"gpu": ""}, False),
        ({"key": "count", "operator": "Gt", "values": ["4"]}, {"count": "8"}, True),
        ({"key": "count", "operator": "Gt", "values": ["8"]}, {"count": "8"}, False),
        ({"key": "count", "operator": "Lt", "values": ["8"]}, {"count": "4"}, True),
        ({"key": "count", "operator": "Lt", "values": ["8"]}, {"count": "many"}, False),
    ],
)
def test_an_expression_selects_as_kubernetes_has_it(expression: dict, labels: dict, selected: bool) -> None:
    assert selector(expression).matches(labels, name="n") is selected


def test_terms_are_alternatives_and_their_parts_are_not() -> None:
    gpu, big = {"key": "gpu", "operator": "Exists"}, {"key": "size", "operator": "In", "values": ["big"]}
    both = selector(gpu, big)
    assert not both.matches({"gpu": ""}, name="n")
    assert both.matches({"gpu": "", "size": "big"}, name="n")
    either = selectors.from_object({"nodeSelectorTerms": [{"matchExpressions": [gpu]}, {"matchExpressions": [big]}]})
    assert either.matches({"size": "big"}, name="n")
    assert not either.matches({}, name="n")


def test_a_term_of_nothing_selects_nothing_and_no_selector_everything() -> None:
    assert not selectors.from_object({"nodeSelectorTerms": [{}]}).matches({}, name="n")
    assert not selectors.from_object({}).matches({}, name="n")
    assert selectors.from_object(None).matches({}, name="n")


def test_a_node_is_selected_by_name() -> None:
    by_name = selector(fields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}])
    assert by_name.matches({}, name="n1")
    assert not by_name.matches({}, name="n2")


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "a", "operator": "Like", "values": ["b"]},
        {"operator": "Exists"},
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "Gt", "values": ["1", "2"]},
    ],
)
def test_a_selector_that_means_nothing_is_refused(expression: dict) -> None:
    with pytest.raises(selectors.SelectorError):
        selector(expression)


def test_a_selector_of_the_command_line() -> None:
    made = selectors.from_text("zone=a, size=big")
    assert made.matches({"zone": "a", "size": "big", "other": "x"}, name="n")
    assert not made.matches({"zone": "a"}, name="n")
    with pytest.raises(selectors.SelectorError, match="zone"):
        selectors.from_text("zone")


def test_pools_come_from_labels_and_from_selectors() -> None:
    zone_a = {"a": selectors.from_text("zone=a")}
    assert derive.pools({"zone": "a", "tensor-fusion.ai/pool-b": "true"}, selectors=zone_a) == ("a", "b")
    assert derive.pools({"zone": "b"}, selectors=zone_a) == ("default",)


def allocation(name: str, *, workload: str = "", tflops: str = "10") -> types_pb2.Allocation:
    made = types_pb2.Allocation()
    made.spec.allocation_id = name
    made.spec.owner.pod.namespace, made.spec.owner.pod.name, made.spec.owner.pod.uid = (
        "ns",
        f"pod-{name}",
        f"uid-{name}",
    )
    if workload:
        made.spec.labels["tensor-fusion.ai/workload"] = workload
    device = made.devices.add(gpu_uuid="GPU-A")
    device.requests.compute.tflops = tflops
    return made


def test_shares_of_a_gpu_are_told_by_workload() -> None:
    held = [
        share
        for each in (allocation("1", workload="w"), allocation("2"), allocation("3", workload="w"))
        for share in shares(each)
    ]
    assert {share.gpu for share in held} == {"gpu-a"}
    apps = parsed(running_apps(held)).running_apps
    assert [(app.namespace, app.name, app.count) for app in apps] == [("ns", "pod-2", 1), ("ns", "w", 2)]
    assert [pod.uid for pod in apps[1].pods] == ["uid-1", "uid-3"]
    assert running_apps(held) == running_apps(reversed(held))


def test_use_is_no_part_of_a_share() -> None:
    before = allocation("1")
    after = allocation("1")
    after.devices[0].usage.reserved.bytes = 7
    after.phase = types_pb2.ALLOCATION_PHASE_ENDING
    assert shares(before) == shares(after)
    assert shares(allocation("1", tflops="20")) != shares(before)


def test_an_owner_that_is_no_pod_is_named() -> None:
    made = types_pb2.Allocation()
    made.spec.allocation_id = "x"
    made.devices.add(gpu_uuid="GPU-A")
    made.spec.owner.process.command = "python train.py"
    assert [share.app for share in shares(made)] == ["python train.py"]
    made.spec.owner.declared_in = "file.toml"
    assert [share.app for share in shares(made)] == ["x"]
