"""Steps follow from what is, whatever came before; a state that is right gives none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypervisor.kube.annotations import parse
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.grants import Grant
from hypervisor.kube.placing import place
from hypervisor.kube.pod import Pod, PodContainer, PodError, read_pod
from hypervisor.kube.reconcile import (
    Bind,
    Compare,
    Discard,
    Release,
    World,
    by_index,
    container_of,
    held_indices,
    steps,
)
from hypervisor.model import AllocationPhase, Owner, OwnerKind, Refusal, RefusalReason
from tests import node_values as v

INDEX = "tensor-fusion.ai/index_0"


def a_pod(uid: str = "u1", name: str = "p", **parts) -> Pod:
    containers = (PodContainer(name="main", resources=((INDEX, 1),)),)
    return replace(Pod(uid=uid, namespace="ns", name=name, node="n", containers=containers), **parts)


def a_grant(uid: str = "grant-a", ids: tuple[str, ...] = ("0-1",), **parts) -> Grant:
    found = {"uid": uid, "resource": INDEX, "device_ids": ids, "created_at": 10.0, **parts}
    return Grant(**found)


def an_assignment(ids: tuple[str, ...] = ("0-1",), **parts) -> Assignment:
    return replace(Assignment(resource=INDEX, device_ids=ids, container="main", namespace="ns", pod_name="p"), **parts)


def an_allocation(uid: str = "grant-a", pod_uid: str = "u1"):
    found = v.allocation(pod_uid)
    owner = Owner(kind=OwnerKind.POD, name="p", namespace="ns", pod_uid=pod_uid, container="main")
    return replace(found, uid=uid, spec=replace(found.spec, owner=owner))


def world(**parts) -> World:
    base = World(
        pods={"u1": a_pod()},
        complete=True,
        grants=(),
        allocations=(),
        assignments=(an_assignment(),),
        asked_at=20.0,
        now=20.0,
    )
    return replace(base, **parts)


def kinds(found) -> list[type]:
    return [type(step) for step in found]


def test_a_grant_is_bound_to_the_pod_that_kubelet_names() -> None:
    (step,) = steps(world(grants=(a_grant(),)))
    assert step == Bind(grant=a_grant(), pod=a_pod(), container="main")


def test_what_kubelet_said_before_the_grant_is_of_somebody_else() -> None:
    assert steps(world(grants=(a_grant(),), asked_at=10.0)) == ()
    assert steps(world(grants=(a_grant(),), assignments=None)) == ()


def test_a_predecessor_of_the_same_name_is_not_meant() -> None:
    bound = a_grant("grant-old", ("0-0",), pod_uid="u1", container="main")
    found = steps(world(grants=(bound, a_grant()), allocations=(an_allocation("grant-old"),)))
    assert kinds(found) == [Compare]


def test_a_uid_of_the_checkpoint_counts_and_a_name_does_not() -> None:
    other = an_assignment(pod_uid="u2")
    assert steps(world(grants=(a_grant(),), assignments=(other,))) == ()


def test_a_pod_that_is_over_is_released_and_its_grant_forgotten() -> None:
    bound = a_grant(pod_uid="u1", container="main")
    for pods in ({"u1": a_pod(ended=True)}, {}):
        (step,) = steps(world(pods=pods, grants=(bound,), allocations=(an_allocation(),), assignments=()))
        assert isinstance(step, Release)
        (after,) = steps(world(pods=pods, grants=(bound,), assignments=()))
        assert isinstance(after, Discard)


def test_without_a_list_nothing_is_over_unless_kubelet_has_forgotten_it() -> None:
    unknown = world(pods={}, complete=False, allocations=(an_allocation(),), assignments=())
    assert steps(unknown) == ()
    assert steps(replace(unknown, living=frozenset({"u1"}))) == ()
    assert kinds(steps(replace(unknown, living=frozenset({"u9"})))) == [Release]


def test_what_is_being_given_up_is_left_alone() -> None:
    revoked = replace(an_allocation(), phase=AllocationPhase.REVOKED)
    assert steps(world(pods={}, allocations=(revoked,), assignments=())) == ()


def test_ids_that_come_again_make_the_older_grant_nobodys() -> None:
    newer = a_grant("grant-b", created_at=15.0)
    found = steps(world(grants=(a_grant(), newer)))
    assert kinds(found) == [Discard, Bind]
    assert found[1].grant is newer


def test_a_grant_of_a_failed_admission_is_forgotten_after_a_while() -> None:
    lonely = world(grants=(a_grant(),), assignments=())
    assert steps(lonely) == ()
    assert kinds(steps(replace(lonely, asked_at=500.0))) == [Discard]


def test_a_pod_whose_allocation_was_lost_is_bound_again_while_its_files_wait() -> None:
    bound = a_grant(pod_uid="u1", container="main")
    assert steps(world(grants=(bound,))) == (), "it was released, and its files are gone"
    lost = world(grants=(bound,), unarmed=frozenset({bound.uid}))
    assert steps(lost) == (Bind(grant=bound, pod=a_pod(), container="main"),)
    assert kinds(steps(replace(lost, pods={"u1": a_pod(ended=True)}))) == [Discard]


def test_the_index_names_one_pod_or_none() -> None:
    pods = [a_pod("u1", "a"), a_pod("u2", "b")]
    assert by_index(pods, INDEX, 3, {"u1": 3, "u2": 4}) is pods[0]
    assert by_index(pods, INDEX, 3, {"u1": 3, "u2": 3}) is None
    assert by_index([replace(pods[0], ended=True)], INDEX, 3, {"u1": 3}) is None
    assert by_index(pods, "nvidia.com/gpu", 3, {"u1": 3}) is None
    assert container_of(pods[0], INDEX, 1) == "main"
    assert container_of(pods[0], INDEX, 2) is None


# --- placing


def cards(count: int = 3):
    return [replace(v.device(index).identity, index=index) for index in range(count)]


def requested(count: int = 3, *, held=(), fits=lambda _: None, given=(), **annotations: str):
    demand = parse({f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in annotations.items()})
    return [each.gpu for each in place(demand, "main", cards(count), held=held, fits=fits, given=given)]


def test_placing_leaves_the_choice_to_admission_or_takes_what_is_named() -> None:
    assert requested(vram_limit="1Gi", gpu_count="2") == ["", ""]
    assert requested(vram_limit="1Gi", gpu_ids=v.uuid(2).lower()) == [v.uuid(2)]
    assert requested(vram_limit="1Gi", gpu_indices="1") == [v.uuid(1)]
    assert requested(isolation="shared", held={v.uuid(0), v.uuid(1)}) == [v.uuid(2)]
    assert requested(vram_limit="1Gi", given=[v.uuid(1)]) == [v.uuid(1)]


@pytest.mark.parametrize(
    ("annotations", "given", "words"),
    [
        ({"gpu_ids": "gpu-nowhere"}, (), "not a GPU of this node"),
        ({"gpu_model": "NVIDIA T4"}, (), "are a NVIDIA T4"),
        ({"gpu_indices": "7"}, (), "have an index of 7"),
        ({"gpu_count": "4"}, (), "can be used, and 4 are asked for"),
        ({"gpu_ids": v.uuid(2).lower()}, (v.uuid(0),), "before the Pod's annotations were known"),
        ({"gpu_count": "2"}, (v.uuid(0),), "they ask for 2 GPUs"),
    ],
)
def test_placing_says_why_not(annotations, given, words) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        requested(vram_limit="1Gi", given=given, **annotations)
    assert refused.value.reason is RefusalReason.GPU_NOT_FOUND


def test_placing_goes_on_to_the_next_card_that_fits() -> None:
    def fits(devices) -> None:
        if devices[0].gpu == v.uuid(0):
            raise Refusal(RefusalReason.INSUFFICIENT_VRAM, "full")

    assert requested(vram_limit="1Gi", gpu_indices="0,2", fits=fits) == [v.uuid(2)]


# --- Pods


def test_what_is_read_of_a_pod() -> None:
    content = b"""{"metadata": {"name": "a", "namespace": "b", "uid": "c", "annotations":
      {"tensor-fusion.ai/qos": "low", "other": "x"}}, "spec": {"nodeName": "n", "containers": [{"name": "main",
      "resources": {"limits": {"tensor-fusion.ai/index_0": "2", "nvidia.com/gpu": 1, "cpu": "100m"}}}]},
      "status": {"phase": "Running"}}"""
    pod = read_pod(content)
    assert pod.annotations == (("tensor-fusion.ai/qos", "low"),)
    assert pod.containers[0].resources == (("nvidia.com/gpu", 1), (INDEX, 2))
    assert pod.native_gpus
    assert not pod.ended
    for wrong in (b"", b"[]", b'{"metadata": {"name": 1}}'):
        with pytest.raises(PodError):
            read_pod(wrong)


def test_a_pod_waits_for_an_index_that_another_still_has() -> None:
    old, new, other = a_pod("u1", "old"), a_pod("u2", "new"), a_pod("u3", "other")
    indices = {"u1": 3, "u2": 3, "u3": 4}
    (held,) = held_indices([old, new, other], indices, frozenset({"u1", "u3"}))
    assert (held.waiting, held.holder, held.index) == (new, old, 3)
    assert held_indices([replace(old, ended=True), new], indices, frozenset({"u1"})) == []
    assert held_indices([old, new], indices, frozenset()) == []


def test_a_clock_that_was_set_back_keeps_no_grant_waiting() -> None:
    before = a_grant(created_at=4000.0)
    assert steps(world(grants=(before,))) == (Bind(grant=before, pod=a_pod(), container="main"),)
    after = a_grant("grant-b", created_at=15.0)
    found = steps(world(grants=(before, after)))
    assert kinds(found) == [Discard, Bind]
    assert found[1].grant is after, "which is the newer one, whatever their times say"
    assert steps(world(grants=(after,), asked_at=4000.0)) == (), "kubelet was asked before, by the old clock"
