"""Index resources and the ids of other plugins."""

from __future__ import annotations

import pytest

from hypervisor.kube.answers import preferred
from hypervisor.kube.device_ids import is_third_party, uuid_of
from hypervisor.kube.grants import grant_uid
from hypervisor.kube.indices import (
    MOST_INDICES,
    BadIndexError,
    bucket_of,
    device_ids,
    index_of,
    requested_index,
    resource_names,
)

UUID = "GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"
MIG = "MIG-0650a168-e770-3ea8-8ac3-8a1d419763e0"


def test_resources_and_the_128_indices_they_mean() -> None:
    names = resource_names()
    assert names[0] == "tensor-fusion.ai/index_0"
    assert names[15:] == ("tensor-fusion.ai/index_f", "tensor-fusion.ai/index_10")
    meant = [index_of(name, count) for name in names[:16] for count in range(1, 9)]
    assert meant == list(range(1, MOST_INDICES + 1))
    assert [bucket_of(name) for name in names] == list(range(17))
    # What the product's formula makes of its last index.
    assert index_of("tensor-fusion.ai/index_10", 1) == 129


@pytest.mark.parametrize(
    "name", ["tensor-fusion.ai/index_11", "tensor-fusion.ai/index_0f", "tensor-fusion.ai/index_", "nvidia.com/gpu"]
)
def test_a_foreign_index_is_none(name: str) -> None:
    assert bucket_of(name) is None
    with pytest.raises(BadIndexError, match="not an index resource"):
        index_of(name, 1)


@pytest.mark.parametrize("count", [0, 9, -1])
def test_a_quantity_that_means_no_index(count: int) -> None:
    with pytest.raises(BadIndexError, match="means no index"):
        index_of("tensor-fusion.ai/index_3", count)


def test_a_container_asks_for_one_index_resource() -> None:
    assert requested_index({"tensor-fusion.ai/index_3": 2, "nvidia.com/gpu": 1}) == ("tensor-fusion.ai/index_3", 2)
    assert requested_index({"nvidia.com/gpu": 1}) is None
    with pytest.raises(BadIndexError, match="ask for one of them"):
        requested_index({"tensor-fusion.ai/index_3": 2, "tensor-fusion.ai/index_4": 1})


def test_ids_leave_room_and_stay_far_below_the_message_limit() -> None:
    for bucket in (0, 16):
        ids = device_ids(bucket)
        assert len(set(ids)) == len(ids) >= MOST_INDICES
        assert max(map(len, ids)) <= 63
        assert sum(map(len, ids)) < 16_384


@pytest.mark.parametrize(
    ("device_id", "uuid"),
    [
        (UUID, UUID),
        (f"{UUID}::3", UUID),
        (MIG, MIG),
        (f"{MIG}::0", MIG),
        (f"{UUID}-3", UUID),
        ("nvidia0", "GPU-A"),
        ("nvidia0/vgpu1", "GPU-A"),
        ("nvidia0/gi3", "MIG-B"),
        ("0", "GPU-A"),
        ("nvidia7", None),
        ("0-3", None),
        ("tegra", None),
        ("", None),
    ],
)
def test_ids_of_other_plugins(device_id: str, uuid: str | None) -> None:
    found = uuid_of(device_id, {"0": "GPU-A", "0/3": "MIG-B"})
    assert found == (uuid.lower() if uuid else None)


def test_sharing_plugins_are_told_by_their_long_ids() -> None:
    assert is_third_party(f"{UUID}-3")
    assert not is_third_party(f"{UUID}::3")
    assert not is_third_party(MIG)


def test_preference_is_total() -> None:
    assert preferred(["a", "b", "c"], ["c"], 2) == ("c", "a")
    assert preferred([], [], 3) == ()
    assert preferred(["a"], ["a"], -1) == ()


def test_a_grants_name_is_its_own() -> None:
    first = grant_uid("tensor-fusion.ai/index_0", ["0-1", "0-2"], "aa")
    assert first == grant_uid("tensor-fusion.ai/index_0", ["0-2", "0-1"], "aa")
    assert first != grant_uid("tensor-fusion.ai/index_0", ["0-1"], "aa")
    assert first != grant_uid("tensor-fusion.ai/index_1", ["0-1", "0-2"], "aa")
    assert len(first) < 63
