"""What a start finds: adopted, ended, made anew, recovered or removed, and what is right is not touched."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from hypervisor.allocations import Allocations
from hypervisor.limits import LimitDirectory
from hypervisor.model import AllocationPhase, OwnerKind, Refusal, RefusalReason
from tests.unit.allocations.builders import (
    GIB,
    Node,
    device,
    inventory,
    named,
    owned_by,
    percent,
    pod,
    request,
    start_time,
)
from tests.unit.limits.tenant import Tenant, own_namespace

STOCK = inventory(device(0), device(1))
OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def grant_two(node: Node) -> Allocations:
    allocations = node.start()
    allocations.allocate(named("a", request("0", compute=percent(40), vram=8 * GIB)), STOCK)
    allocations.allocate(named("b", request("1", compute=percent(30), vram=4 * GIB)), STOCK)
    return allocations


def restart(node: Node, allocations: Allocations) -> Allocations:
    allocations.close()
    node.events.clear()
    return node.start()


def test_two_hundred_and_fifty_six_are_adopted_in_time_and_nothing_is_written(node: Node) -> None:
    """The whole figure is a benchmark's; here it is bounded generously, on a machine that is busy."""
    node.settings["tflops_ratio"] = 100.0
    node.settings["vram_ratio"] = 100.0
    allocations = node.start()
    for index in range(256):
        allocations.allocate(named(f"job-{index:03d}", request("0", compute=percent(5), vram=GIB)), STOCK)
    before, held = node.contents(), allocations.all
    restarted = restart(node, allocations)
    assert restarted.all == held
    assert node.contents() == before
    assert node.events == []
    assert restarted.statistics().adoption_seconds < 2.0


def test_a_record_that_can_not_be_read_is_replaced_from_the_limit_file(node: Node) -> None:
    allocations = grant_two(node)
    first, second = allocations.all
    (node.records / f"{first.uid}.json").write_bytes(b'{"version":1,')
    shm = Path(first.directory) / "shm"
    before = (shm.read_bytes(), shm.stat().st_mtime_ns)
    restarted = restart(node, allocations)
    recovered = next(entry for entry in restarted.all if entry.uid == first.uid)
    assert (shm.read_bytes(), shm.stat().st_mtime_ns) == before
    assert recovered.grants == first.grants
    assert recovered.spec.allocation_id == "a"
    assert recovered.spec.owner.kind is OwnerKind.NAMED
    assert second in restarted.all
    (event,) = [entry for entry in node.events if entry.reason == "RecordSetAside"]
    assert event.fields["path"] == str(node.records / "set-aside" / f"{first.uid}.json")
    with pytest.raises(Refusal) as caught:  # its capacity is counted
        restarted.allocate(named("c", request("0", compute=percent(61))), STOCK)
    assert caught.value.reason is RefusalReason.INSUFFICIENT_TFLOPS
    again = restart(node, restarted)  # and it is an allocation like any other from now on
    assert recovered in again.all
    assert again.release("a") == ()


def test_a_damaged_record_without_a_usable_limit_file_harms_nobody(node: Node) -> None:
    allocations = grant_two(node)
    first, second = allocations.all
    (node.records / f"{first.uid}.json").write_bytes(b"")
    os.truncate(Path(first.directory) / "shm", 0)
    restarted = restart(node, allocations)
    assert restarted.all == (second,)
    assert node.reasons() == ["RecordSetAside"]
    assert Path(first.directory).is_dir()  # somebody may live in it, so it stays


@pytest.mark.parametrize("name", ["..", "a b", "x" * 200, ""])
def test_a_record_with_an_odd_name_leaves_nothing(node: Node, name: str) -> None:
    allocations = grant_two(node)
    held = allocations.all
    (node.records / f"{name}.json").write_bytes(b"{}")
    assert restart(node, allocations).all == held


def test_a_limit_file_of_another_major_version_stays_enforced_and_is_told(node: Node) -> None:
    allocations = grant_two(node)
    first, second = allocations.all
    shm = Path(first.directory) / "shm"
    with shm.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<H", 9))
    before = shm.read_bytes()
    restarted = restart(node, allocations)
    assert restarted.all == (first, second)
    usage = restarted.step(STOCK)[0]
    assert "version 9" in usage.tampering
    assert shm.read_bytes() == before
    with pytest.raises(Refusal) as caught:
        restarted.update_limits("a", (request(compute=percent(10)),), STOCK, expected=None)
    assert caught.value.reason is RefusalReason.STORAGE_FAILED
    assert restarted.release("a") == ()


def test_lost_limit_files_are_a_finding_and_made_by_nobody(node: Node) -> None:
    """Processes may still run under files that were deleted; others under new ones would count twice."""
    allocations = grant_two(node)
    first = allocations.all[0]
    shutil.rmtree(first.directory)
    restarted = restart(node, allocations)
    assert first in restarted.all
    assert not Path(first.directory).exists()
    assert "not there" in restarted.step(STOCK)[0].tampering
    assert restarted.release("a") == ()


def test_another_boot_ends_what_processes_owned_and_makes_the_rest_anew(node: Node) -> None:
    allocations = node.start()
    allocations.allocate(pod(), STOCK)
    with subprocess.Popen(["sleep", "60"]) as owner:
        allocations.allocate(owned_by(owner.pid, "mine"), STOCK)
        (kept,) = [entry for entry in allocations.all if entry.spec.allocation_id == "pod-uid"]
        node.boot_id = OTHER_BOOT
        restarted = restart(node, allocations)
        owner.kill()
    (renewed,) = restarted.all
    assert (renewed.spec, renewed.uid, renewed.grants) == (kept.spec, kept.uid, kept.grants)
    assert renewed.revision > kept.revision
    assert node.reasons() == ["AllocationEnded"]
    files = LimitDirectory(node.base, boot_id=OTHER_BOOT, node_epoch=1).open(renewed.uid)
    assert files.shm.state.armed
    assert (node.base / "team" / "pod-a" / "shm").exists()
    assert [path.name for path in node.records.glob("*.json")] == [f"{renewed.uid}.json"]


def test_a_base_that_was_lost_with_the_boot_is_made_anew(node: Node) -> None:
    allocations = grant_two(node)
    shutil.rmtree(node.base)
    node.boot_id = OTHER_BOOT
    restarted = restart(node, allocations)
    assert [entry.spec.allocation_id for entry in restarted.all] == ["a", "b"]
    assert all(usage.tampering == "" for usage in restarted.step(STOCK))


def test_files_without_a_record_are_removed_when_nobody_lives_in_them(node: Node) -> None:
    allocations = grant_two(node)
    first, second = allocations.all
    (node.records / f"{first.uid}.json").unlink()
    restarted = restart(node, allocations)
    assert restarted.all == (second,)
    assert not Path(first.directory).exists()
    assert restarted.statistics().orphans_removed == 1


@pytest.mark.parametrize("how", ["slot", "mapping", "environment"])
def test_files_without_a_record_are_kept_while_a_process_lives_in_them(node: Node, how: str) -> None:
    allocations = grant_two(node)
    first = allocations.all[0]
    usage = Path(first.directory) / "usage"
    environment = dict(os.environ)
    if how == "environment":
        environment |= {"TF_SHM_PATH": f"{first.directory}/shm"}
    program = (
        "import mmap, sys, time\n"
        "files = [open(name, 'r+b') for name in sys.argv[1:]]\n"
        "maps = [mmap.mmap(file.fileno(), 0) for file in files]\n"
        "print(1, flush=True)\n"
        "time.sleep(60)"
    )
    arguments = [] if how == "environment" else [str(usage)]
    with subprocess.Popen(["python3", "-c", program, *arguments], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        if how == "slot":
            Tenant(usage).attach(0, pid=process.pid, start=start_time(process.pid), namespace=own_namespace(), held=GIB)
        (node.records / f"{first.uid}.json").unlink()
        restarted = restart(node, allocations)
        kept = next(entry for entry in restarted.all if entry.uid == first.uid)
        assert (kept.phase, kept.grants) == (AllocationPhase.ENDING, first.grants)
        assert node.reasons() == ["AllocationRecovered"]
        if how != "mapping":  # who has mapped a file without a slot was only looked for at the start
            restarted.step(STOCK)
            assert len(restarted.all) == 2
        process.kill()
    deadline = time.monotonic() + 10
    sequence = 100
    while len(restarted.all) > 1:
        assert time.monotonic() < deadline
        sequence += 1
        restarted.step(inventory(device(0), sequence=sequence))
    assert not Path(first.directory).exists()


def test_an_allocate_that_was_killed_before_the_record_leaves_nothing(node: Node) -> None:
    """Files that were never armed were never anybody's."""
    allocations = grant_two(node)
    held = allocations.all
    uid = held[0].uid
    shutil.copytree(node.base / "by-uid" / uid, node.base / "by-uid" / "half-made")
    with (node.base / "by-uid" / "half-made" / "shm").open("r+b") as file:
        file.seek(4096 + 80)
        file.write(bytes(4))
    (node.base / "by-uid" / "unfinished").mkdir()
    (node.base / "by-uid" / "unfinished" / ".usage.unfinished").write_bytes(b"")
    restarted = restart(node, allocations)
    assert restarted.all == held
    assert sorted(path.name for path in (node.base / "by-uid").iterdir()) == sorted(entry.uid for entry in held)


def test_an_allocate_that_was_killed_before_it_armed_is_finished(node: Node) -> None:
    allocations = grant_two(node)
    first = allocations.all[0]
    with (Path(first.directory) / "shm").open("r+b") as file:
        file.seek(4096 + 80)
        file.write(bytes(4))
    restarted = restart(node, allocations)
    assert restarted._held[first.uid].files.shm.state.armed  # type: ignore[union-attr]


def test_a_change_that_was_killed_before_it_was_published_is_published(node: Node) -> None:
    allocations = grant_two(node)
    first = allocations.all[0]
    shm = Path(first.directory) / "shm"
    before = shm.read_bytes()
    changed = allocations.update_limits("a", (request(compute=percent(10)),), STOCK, expected=None)
    shm_now = shm.open("r+b")
    shm_now.write(before)
    shm_now.close()
    restarted = restart(node, allocations)
    assert changed in restarted.all
    assert restarted._held[first.uid].files.shm.limits.devices[0].limit_share_ppm == 100_000  # type: ignore[union-attr]


def test_foreign_things_in_the_base_are_left_alone(node: Node) -> None:
    allocations = grant_two(node)
    held = allocations.all
    strange = node.base / "by-uid" / "strange"
    strange.mkdir()
    (strange / "data").write_text("not ours")
    (node.base / "by-uid" / "file").write_text("")
    (node.base / "by-uid" / "link").symlink_to("/etc")
    restarted = restart(node, allocations)
    assert restarted.all == held
    assert (strange / "data").read_text() == "not ours"
    assert (node.base / "by-uid" / "link").is_symlink()
    assert node.reasons() == ["LimitFilesUnusable"]


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync", "ftruncate", "write"])
def test_a_full_disk_refuses_a_grant_and_leaves_nothing_half_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    allocations = grant_two(node)
    before, held = node.contents(), allocations.all

    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(Refusal) as caught:
            allocations.allocate(named("c", request("0", vram=GIB)), STOCK)
    assert caught.value.reason is RefusalReason.STORAGE_FAILED
    assert "free space" in caught.value.remedy
    assert (node.contents(), allocations.all) == (before, held)
    assert sorted(path.name for path in (node.base / "by-uid").iterdir()) == sorted(entry.uid for entry in held)
    allocations.allocate(named("c", request("0", vram=GIB)), STOCK)


def test_a_full_disk_refuses_a_change_and_the_old_limits_stay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    allocations = grant_two(node)
    before, held = node.contents(), allocations.all

    def full(*_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Refusal) as caught:
            allocations.update_limits("a", (request(compute=percent(10)),), STOCK, expected=None)
    assert caught.value.reason is RefusalReason.STORAGE_FAILED
    assert (node.contents(), allocations.all) == (before, held)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_on_the_base_is_one_line(node: Node) -> None:
    node.base.mkdir()
    node.base.chmod(0o500)
    with pytest.raises(Refusal) as caught:
        node.start()
    assert caught.value.reason is RefusalReason.STORAGE_FAILED


def test_a_base_that_is_a_file_is_one_line(node: Node) -> None:
    node.base.write_text("")
    with pytest.raises(Refusal) as caught:
        node.start()
    assert caught.value.reason is RefusalReason.STORAGE_FAILED
    assert str(node.base) in str(caught.value)
    assert "\n" not in str(caught.value)
