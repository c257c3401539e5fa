"""Grants: their files, and what kubelet's checkpoint still tells of those that were lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.grants import Grant, grant_uid, is_grant_of
from hypervisor.node.kubernetes_grants import GrantStore, bring_through
from hypervisor.rpc.kept_answers import grant_of
from hypervisor.v1 import deviceplugin_v1beta1_pb2 as api

INDEX = "tensor-fusion.ai/index_0"
UID = grant_uid(INDEX, ("0-1",), "0123abcd")


def a_grant(number: int = 1) -> Grant:
    ids = (f"0-{number}",)
    return Grant(uid=grant_uid(INDEX, ids, f"{number:08x}"), resource=INDEX, device_ids=ids, created_at=100.0 - number)


def an_assignment(host_path: str = f"/base/by-uid/{UID}/shm", **parts) -> Assignment:
    answer = api.ContainerAllocateResponse(
        envs={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"},
        mounts=[api.Mount(container_path="/run/tensor-fusion/shm/shm", host_path=host_path)],
    )
    found = {
        "resource": INDEX,
        "device_ids": ("0-1",),
        "container": "main",
        "pod_uid": "u",
        "answer": answer.SerializeToString(),
    }
    return Assignment(**{**found, **parts})


def test_what_kubelet_keeps_tells_the_grant_and_its_cards() -> None:
    assert grant_of(an_assignment(), now=5.0) == Grant(
        uid=UID, resource=INDEX, device_ids=("0-1",), created_at=5.0, cards=("GPU-1", "GPU-2")
    )


@pytest.mark.parametrize(("mode", "kept"), [("hard", "hard"), ("partitioned", "partitioned"), ("soft", "")])
def test_what_kubelet_keeps_tells_the_mode_that_the_container_was_made_for(mode: str, kept: str) -> None:
    answer = api.ContainerAllocateResponse.FromString(an_assignment().answer)
    answer.envs["TF_ISOLATION_MODE"] = mode
    found = grant_of(an_assignment(answer=answer.SerializeToString()), now=5.0)
    assert found is not None
    assert found.isolation == kept


@pytest.mark.parametrize(
    "assignment",
    [
        an_assignment(resource="nvidia.com/gpu"),
        an_assignment(device_ids=("0-2",)),
        an_assignment(host_path="/base/by-uid/../../etc/shm"),
        an_assignment(answer=b""),
        an_assignment(answer=b"\xff\xff"),
    ],
)
def test_what_is_not_our_answer_for_these_ids_is_no_grant(assignment: Assignment) -> None:
    assert grant_of(assignment, now=5.0) is None


def test_a_grant_is_there_after_a_kill_and_is_brought_to_the_disk_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = GrantStore.open(tmp_path)
    grants = [a_grant(number) for number in (2, 1)]
    for grant in grants:
        store.save(grant)
    assert synced == [], "kubelet waits for no disk"
    assert GrantStore.open(tmp_path).all == store.all == tuple(grants)
    trio.run(bring_through, store.unsynced())
    assert sorted(Path(path).name for path in synced) == sorted(
        [*(f"{grant.uid}.json" for grant in grants), tmp_path.name]
    )
    synced.clear()
    trio.run(bring_through, store.unsynced())
    assert synced == []
    store.remove(grants[0].uid)
    trio.run(bring_through, store.unsynced())
    assert str(tmp_path) in synced
    assert GrantStore.open(tmp_path).all == store.all == (grants[1],)


def test_names_are_made_for_their_ids() -> None:
    assert is_grant_of(UID, INDEX, ["0-1"])
    assert not is_grant_of(UID, INDEX, ["0-1", "0-2"])
    assert not is_grant_of(UID.replace("0123abcd", "0123ABCD"), INDEX, ["0-1"])
    assert not is_grant_of("", INDEX, ["0-1"])


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    store = GrantStore.open(tmp_path)
    store.save(a_grant())
    (tmp_path / f".{UID}.json.unfinished").write_text('{"uid":')
    assert GrantStore.open(tmp_path).all == (a_grant(),)
    assert [each.name for each in tmp_path.iterdir()] == [f"{a_grant().uid}.json"]
