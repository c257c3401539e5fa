"""The store: what was saved is read back, what is damaged is set aside, and a full disk leaves what was there."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.allocations.records import RecordStore, StoreError
from hypervisor.durable import Unsynced
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    Compute,
    ComputePolicy,
    DeviceGrant,
    DeviceRequest,
    IsolationMode,
    Owner,
    OwnerKind,
    QosClass,
    Resources,
    Revision,
)
from tests.unit.allocations.builders import BOOT, named, request

ALLOCATION = Allocation(
    spec=named(),
    uid="uid-1",
    phase=AllocationPhase.ACTIVE,
    grants=(),
    created_at=1.5,
    revision=Revision(1, 2),
    directory="/run/x",
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
COMPUTES = st.one_of(
    st.none(),
    st.decimals("0.000001", "100", places=6).map(lambda value: Compute(percent=value)),
    st.decimals("0.000001", "99999", places=6).map(lambda value: Compute(tflops=value)),
)
RESOURCES = st.builds(Resources, compute=COMPUTES, vram_bytes=st.one_of(st.none(), st.integers(0, 2**63)))
ALLOCATIONS = st.builds(
    Allocation,
    spec=st.builds(
        AllocationSpec,
        allocation_id=TEXT,
        owner=st.builds(Owner, kind=st.sampled_from(OwnerKind), name=TEXT, pid=st.integers(0, 2**31)),
        devices=st.lists(st.builds(DeviceRequest, gpu=TEXT, requests=RESOURCES, limits=RESOURCES), max_size=3).map(
            tuple
        ),
        isolation=st.sampled_from(IsolationMode),
        qos=st.sampled_from(QosClass),
        policy=st.sampled_from(ComputePolicy),
        host_memory_limit_bytes=st.one_of(st.none(), st.integers(0, 2**63)),
        labels=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    ),
    uid=st.just("uid-1"),
    phase=st.sampled_from(AllocationPhase),
    grants=st.lists(
        st.builds(
            DeviceGrant,
            gpu_uuid=TEXT,
            gpu_index=st.integers(0, 300),
            request_share_ppm=st.integers(0, 10**6),
            limit_share_ppm=st.integers(0, 10**6),
            request_vram_bytes=st.integers(0, 2**44),
            limit_vram_bytes=st.one_of(st.none(), st.integers(0, 2**44)),
        ),
        max_size=3,
    ).map(tuple),
    created_at=st.floats(0, 2e9),
    revision=st.builds(Revision, st.integers(0, 2**62), st.integers(0, 2**62)),
    directory=TEXT,
    simulated=st.booleans(),
)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path / "allocations")
    made.prepare()
    return made


@given(ALLOCATIONS)
def test_what_is_saved_is_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, allocation: Allocation) -> None:
    store = RecordStore(tmp_path_factory.mktemp("store"))
    store.save(allocation, boot_id=BOOT)
    (record,), damaged = store.load()
    assert (record.allocation, record.boot_id, damaged) == (allocation, BOOT, ())


def test_decimals_stay_what_was_written(store: RecordStore) -> None:
    spec = named("job", request("0", compute=Compute(percent=Decimal("33.30"))))
    store.save(replace(ALLOCATION, spec=spec), boot_id=BOOT)
    assert str(store.load()[0][0].allocation.spec.devices[0].limits.compute) == "33.30%"


def saved(store: RecordStore, tmp_path: Path) -> bytes:
    store.save(ALLOCATION, boot_id=BOOT)
    return (tmp_path / "allocations" / "uid-1.json").read_bytes()


def test_a_record_that_is_cut_anywhere_is_set_aside_and_the_others_are_read(store: RecordStore, tmp_path: Path) -> None:
    data = saved(store, tmp_path)
    path = tmp_path / "allocations" / "uid-1.json"
    other = replace(ALLOCATION, uid="uid-2")
    store.save(other, boot_id=BOOT)
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        records, (damaged,) = store.load()
        assert [record.allocation for record in records] == [other]
        assert (damaged.uid, damaged.path) == ("uid-1", tmp_path / "allocations" / "set-aside" / "uid-1.json")
        assert damaged.path.read_bytes() == data[:length]
        assert not path.exists()
        assert damaged.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b'"version":1', b'"version":"1"'),
        lambda data: data.replace(b'"uid":"uid-1"', b'"uid":"uid-3"'),
        lambda data: data.replace(b'"boot_id"', b'"bootid"'),
        lambda data: data.replace(b'"percent":"40"', b'"percent":null'),
        lambda data: data.replace(b'"soft"', b'"squishy"'),
        lambda data: b"\xff\xfe" + data,
        lambda data: b"[" * 100_000,
        lambda data: b"null",
    ],
)
def test_a_record_of_another_version_or_meaning_is_set_aside(
    store: RecordStore, tmp_path: Path, change: object
) -> None:
    data = saved(store, tmp_path)
    changed = change(data)  # type: ignore[operator]
    assert changed != data
    (tmp_path / "allocations" / "uid-1.json").write_bytes(changed)
    records, damaged = store.load()
    assert (records, len(damaged)) == ((), 1)
    assert store.load() == ((), ())


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_full_disk_leaves_the_record_that_was_there(
    store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = saved(store, tmp_path)

    def failing(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(StoreError) as caught:
            store.save(replace(ALLOCATION, created_at=9.0), boot_id=BOOT)
    assert "No space left" in str(caught.value)
    assert [path.name for path in (tmp_path / "allocations").iterdir()] == ["uid-1.json"]
    assert (tmp_path / "allocations" / "uid-1.json").read_bytes() == before


def test_a_pods_record_survives_a_kill_and_is_brought_to_the_disk_with_others(
    store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet waits for no disk; see GrantStore. Other records are on disk at once."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    owner = Owner(kind=OwnerKind.POD, name="p", namespace="default", pod_uid="u", container="main")
    of_pod = replace(ALLOCATION, uid="uid-2", spec=replace(ALLOCATION.spec, owner=owner))
    store.save(of_pod, boot_id=BOOT)
    assert synced == []
    (record,), damaged = RecordStore(tmp_path / "allocations").load()
    assert (record.allocation, damaged) == (of_pod, ())
    work = store.unsynced()
    assert work is not None
    work()
    assert synced == ["uid-2.json", "allocations"]
    assert store.unsynced() is None
    store.save(ALLOCATION, boot_id=BOOT)
    assert len(synced) == 4
    store.remove("uid-2", of_pod=True)
    assert len(synced) == 4
    work = store.unsynced()
    assert work is not None
    work()
    assert "allocations" in synced[4:]


def test_what_could_not_be_brought_to_the_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced = Unsynced(tmp_path)
    (tmp_path / "a").touch()
    unsynced.add(tmp_path / "a")
    work = unsynced.take()
    assert work is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            work()
    again = unsynced.take()
    assert again is not None
    again()
    assert unsynced.take() is None


def test_a_half_written_record_of_a_killed_daemon_is_swept(store: RecordStore, tmp_path: Path) -> None:
    saved(store, tmp_path)
    (tmp_path / "allocations" / ".uid-1.json.unfinished").write_bytes(b"{")
    store.prepare()
    assert [path.name for path in (tmp_path / "allocations").iterdir()] == ["uid-1.json"]


def test_removing_twice_is_no_error(store: RecordStore, tmp_path: Path) -> None:
    saved(store, tmp_path)
    store.remove("uid-1")
    store.remove("uid-1")
    assert store.load() == ((), ())


def test_a_store_that_can_not_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        RecordStore(tmp_path / "file" / "allocations").prepare()
