"""Annotations are parsed strictly: what they say, and what is said about those that are wrong."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.kube.annotations import AnnotationError, Demand, is_ours, parse, unknown_keys
from hypervisor.kube.quantity import BadQuantityError, parse_quantity
from hypervisor.model import Compute, IsolationMode, QosClass, Resources

GIB = 2**30


def parsed(**values: str) -> Demand:
    return parse({f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in values.items()})


def test_tflops_and_vram() -> None:
    demand = parsed(tflops_request="100", tflops_limit="200", vram_request="4Gi", vram_limit="8Gi", qos="high")
    assert demand.requests == Resources(compute=Compute(tflops=Decimal(100)), vram_bytes=4 * GIB)
    assert demand.limits == Resources(compute=Compute(tflops=Decimal(200)), vram_bytes=8 * GIB)
    assert (demand.isolation, demand.qos, demand.count) == (IsolationMode.SOFT, QosClass.HIGH, 1)


def test_what_is_left_out_is_the_other_figure() -> None:
    only_request = parsed(compute_percent_request="25", vram_request="1Gi")
    assert (
        only_request.limits == only_request.requests == Resources(compute=Compute(percent=Decimal(25)), vram_bytes=GIB)
    )
    only_limit = parsed(compute_percent_limit="12.5", vram_limit="8192Mi")
    assert only_limit.requests == only_limit.limits
    assert only_limit.limits.vram_bytes == 8 * GIB


def test_shared_and_dedicated_are_whole_cards() -> None:
    for demand in (parsed(isolation="shared"), parsed(dedicated_gpu="true", gpu_model="NVIDIA T4")):
        assert demand.exclusive
        assert demand.requests.compute == Compute(percent=Decimal(100))


def test_choices_of_cards() -> None:
    demand = parsed(
        isolation="shared", gpu_count="2", gpu_ids="GPU-A, gpu-b", gpu_indices="0,3", gpu_model="NVIDIA H100"
    )
    assert demand.gpu_ids == ("gpu-a", "gpu-b")
    assert demand.gpu_indices == (0, 3)
    assert demand.gpu_model == "NVIDIA H100"
    assert parsed(isolation="shared", gpu_ids="a,b").count == 2
    partitioned = parsed(isolation="partitioned", partition_uuids="MIG-1:gpu-a", partition_id="1g.10gb")
    assert partitioned.gpu_ids == ("mig-1",)
    assert partitioned.partition == "1g.10gb"


def test_gpus_of_containers() -> None:
    demand = parsed(
        isolation="shared", gpu_count="3", container_gpu_count='{"b": 1, "a": 2}', container_gpus='{"a": ["GPU-X"]}'
    )
    assert demand.container_counts == (("a", 2), ("b", 1))
    assert demand.container_gpus == (("a", ("gpu-x",)),)


@pytest.mark.parametrize(
    ("values", "quoted"),
    [
        ({"tflops_request": "many"}, '"many"'),
        ({"tflops_request": "-1"}, '"-1"'),
        ({"tflops_request": "0"}, '"0"'),
        ({"vram_limit": "8 Gi"}, '"8 Gi"'),
        ({"vram_limit": "0.5"}, '"0.5"'),
        ({"vram_limit": "99Pi"}, '"99Pi"'),
        ({"compute_percent_limit": "101"}, '"101"'),
        ({"compute_percent_limit": "50", "tflops_request": "10"}, "in percent or in TFLOPS"),
        ({"tflops_request": "20", "tflops_limit": "10"}, "it is more than tensor-fusion.ai/tflops-limit"),
        ({"vram_request": "2Gi", "vram_limit": "1Gi"}, "it is more than tensor-fusion.ai/vram-limit"),
        ({"gpu_count": "2"}, "tflops request is not set"),
        ({"isolation": "Soft", "tflops_limit": "1"}, "shared, soft, hard, partitioned"),
        ({"qos": "urgent", "tflops_limit": "1"}, "low, medium, high, critical"),
        ({"vendor": "AMD", "tflops_limit": "1"}, '"AMD"'),
        ({"gpu_count": "0", "tflops_limit": "1"}, "from 1 to 128"),
        ({"gpu_count": "129", "tflops_limit": "1"}, '"129"'),
        ({"gpu_count": "2", "gpu_ids": "a", "tflops_limit": "1"}, "1 GPUs are named, and gpu-count says 2"),
        ({"gpu_ids": "a,,b", "tflops_limit": "1"}, "an entry of the list is empty"),
        ({"gpu_ids": "a,a", "tflops_limit": "1"}, "named twice"),
        ({"gpu_indices": "0,x", "tflops_limit": "1"}, '"0,x"'),
        ({"dedicated_gpu": "yes", "tflops_limit": "1"}, '"yes"'),
        ({"disable_features": "gpu-limiter", "tflops_limit": "1"}, "isolation: shared"),
        ({"disable_features": "warp", "tflops_limit": "1"}, "warp is no feature"),
        ({"partition": "1g.10gb", "tflops_limit": "1"}, "isolation: partitioned"),
        ({"container_gpu_count": "[1]", "tflops_limit": "1"}, "JSON object"),
        ({"container_gpu_count": '{"a": true}', "tflops_limit": "1"}, "the count of a"),
        ({"container_gpus": '{"a": []}', "tflops_limit": "1"}, "no list of ids"),
        ({"index": "0", "tflops_limit": "1"}, "from 1 to 136"),
    ],
)
def test_a_wrong_annotation_is_quoted(values: dict[str, str], quoted: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        parsed(**values)
    assert "annotation tensor-fusion.ai/" in str(refused.value)
    assert quoted in str(refused.value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(AnnotationError) as refused:
        parsed(tflops_limit="9" * 200_000)
    assert len(str(refused.value)) < 300


def test_keys() -> None:
    assert is_ours({"tensor-fusion.ai/vram-limit": "1Gi"})
    assert not is_ours({"tensor-fusion.ai/gpupool": "a", "other/vram-limit": "1Gi"})
    assert unknown_keys({"tensor-fusion.ai/vram-limits": "1Gi", "tensor-fusion.ai/qos": "low"}) == (
        "tensor-fusion.ai/vram-limits",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("0.5", "0.5"), ("500m", "0.5"), ("8Gi", 8 * GIB), ("24G", 24 * 10**9), ("3e2", 300), (".5", "0.5")],
)
def test_quantities(text: str, value: object) -> None:
    assert parse_quantity(text) == Decimal(str(value))


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_bad_one(text: str) -> None:
    try:
        assert parse_quantity(text).is_finite()
    except BadQuantityError:
        pass


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "vendor",
                "isolation",
                "tflops-request",
                "tflops-limit",
                "vram-request",
                "vram-limit",
                "compute-percent-limit",
                "gpu-count",
                "gpu-ids",
                "gpu-indices",
                "container-gpu-count",
                "container-gpus",
                "partition",
                "qos",
                "index",
                "partition-uuids",
            ]
        ).map(lambda key: f"tensor-fusion.ai/{key}"),
        st.one_of(st.text(max_size=30), st.sampled_from(["1", "50", "8Gi", "shared", "{}", '{"a": 1}', "a,b", "9e99"])),
    )
)
def test_any_annotations_are_a_demand_or_an_error_of_ours(annotations: dict[str, str]) -> None:
    try:
        demand = parse(annotations)
    except AnnotationError:
        return
    assert demand.count >= 1
    for resources in (demand.requests, demand.limits):
        assert resources.vram_bytes is None or resources.vram_bytes > 0


@pytest.mark.parametrize("key", ["container_gpu_count", "container_gpus"])
@pytest.mark.parametrize("text", [r'{"\ud800": 0}', r'{"main": ["\ud800"]}', '{"\ud800": 1}'])
def test_half_a_character_is_refused_and_can_be_told(key: str, text: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        parsed(tflops_limit="10", vram_limit="1Gi", **{key: text})
    assert str(caught.value).encode()
