"""The registry on real files: grants, repeats, changes, releases, restarts."""

from __future__ import annotations

import grp
import os
import re
import subprocess
from pathlib import Path

import pytest

from hypervisor.model import Refusal, RefusalReason, Revision
from tests.unit.allocations.builders import GIB, Node, device, inventory, named, percent, pod, request, uuid_of

INVENTORY = inventory(device(0), device(1))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_grant_makes_both_files_and_a_record(node: Node) -> None:
    allocation, existed = node.start().allocate(named(), INVENTORY)
    assert not existed
    directory = node.base / "by-uid" / allocation.uid
    assert allocation.directory == str(directory)
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == {"shm": 0o644, "usage": 0o660}
    assert directory.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_uid for path in (directory, *directory.iterdir())} == {os.geteuid()}
    assert [path.name for path in node.records.iterdir()] == [f"{allocation.uid}.json"]
    assert node.reasons() == ["AllocationGranted"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to any group")
def test_what_is_named_is_for_the_group_of_the_product(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    group = grp.struct_group(("hypervisor", "x", 54321, []))
    monkeypatch.setattr(grp, "getgrnam", {"hypervisor": group}.__getitem__)
    allocation, _ = node.start().allocate(named(), INVENTORY)
    directory = node.base / "by-uid" / allocation.uid
    assert directory.stat().st_gid == (directory / "usage").stat().st_gid == 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("name", ["usage", "shm"])
def test_another_user_can_not_write_what_is_named(node: Node, name: str) -> None:
    allocation, _ = node.start().allocate(named(), INVENTORY)
    base = os.open(node.base, os.O_PATH | os.O_DIRECTORY)  # what lies above is the tests' own and private
    try:
        done = subprocess.run(
            ["sh", "-c", ': >>"$0"', f"/proc/self/fd/{base}/by-uid/{allocation.uid}/{name}"],
            user=65534,
            group=65534,
            extra_groups=(),
            pass_fds=(base,),
            capture_output=True,
            text=True,
        )
    finally:
        os.close(base)
    assert "Permission denied" in done.stderr


def test_the_same_request_gets_the_same_allocation(node: Node) -> None:
    allocations = node.start()
    first, _ = allocations.allocate(named(), INVENTORY)
    before = node.contents()
    assert allocations.allocate(named(), INVENTORY) == (first, True)
    assert node.contents() == before


def test_the_same_id_with_other_figures_is_refused(node: Node) -> None:
    allocations = node.start()
    first, _ = allocations.allocate(named(), INVENTORY)
    with pytest.raises(Refusal) as caught:
        allocations.allocate(named("job", request("0", compute=percent(41), vram=8 * GIB)), INVENTORY)
    assert caught.value.reason is RefusalReason.ALLOCATION_EXISTS
    assert caught.value.field == "devices"
    assert "its share is 40% with " in caught.value.message
    assert ", not 41% with " in caught.value.message
    assert allocations.all == (first,)


def test_an_empty_name_is_called_empty(node: Node) -> None:
    with pytest.raises(Refusal, match="the name is empty"):
        node.start().allocate(named(""), INVENTORY)


def test_a_limit_of_one_context_has_no_room_for_anything(node: Node) -> None:
    allocations = node.start()
    with pytest.raises(Refusal) as caught:
        allocations.allocate(named("job", request("0", vram=1)), INVENTORY)
    (context,) = re.findall(r"\((\d+) bytes\)", caught.value.remedy)
    with pytest.raises(Refusal, match="more than"):
        allocations.allocate(named("job", request("0", vram=int(context))), INVENTORY)
    assert allocations.allocate(named("job", request("0", vram=int(context) + 1)), INVENTORY)


def test_a_dry_run_makes_nothing(node: Node) -> None:
    allocations = node.start()
    before = node.contents()
    allocation, existed = allocations.allocate(named(), INVENTORY, dry_run=True)
    assert (allocation.uid, allocation.directory, existed) == ("", "", False)
    assert allocation.grants[0].limit_share_ppm == 400_000
    assert (node.contents(), allocations.all, node.events) == (before, (), [])


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\nb", "a\0b", "-x", "x" * 64, "ü", "a b"])
def test_names_that_would_leave_their_place_are_refused(node: Node, name: str) -> None:
    allocations = node.start()
    before = node.contents()
    with pytest.raises(Refusal) as caught:
        allocations.allocate(named(name), INVENTORY)
    assert (caught.value.reason, caught.value.field) == (RefusalReason.INVALID_ARGUMENT, "allocation_id")
    assert node.contents() == before


@pytest.mark.parametrize(
    ("namespace", "name", "field"),
    [
        ("..", "pod", "owner.pod.namespace"),
        ("team/x", "pod", "owner.pod.namespace"),
        ("by-uid", "pod", "owner.pod.namespace"),
        ("team", "../../etc", "owner.pod.name"),
        ("team", ".hidden", "owner.pod.name"),
    ],
)
def test_pod_names_that_would_leave_the_base_are_refused(node: Node, namespace: str, name: str, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        node.start().allocate(pod(namespace, name), INVENTORY)
    assert (caught.value.reason, caught.value.field) == (RefusalReason.INVALID_ARGUMENT, field)


def test_a_pod_has_a_symlink_for_people_until_it_is_released(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(pod(), INVENTORY)
    link = node.base / "team" / "pod-a"
    assert link.resolve() == Path(allocation.directory).resolve()
    allocations.release("pod-uid")
    assert not link.is_symlink()
    assert not link.parent.exists()


def test_changed_limits_are_in_the_file_and_survive_a_restart(node: Node) -> None:
    allocations = node.start()
    before, _ = allocations.allocate(named(), INVENTORY)
    after = allocations.update_limits("job", (request(compute=percent("12.5")),), INVENTORY, expected=before.revision)
    assert (after.grants[0].limit_share_ppm, after.grants[0].limit_vram_bytes) == (125_000, 8 * GIB)
    assert after.revision > before.revision
    allocations.close()
    assert node.start().all == (after,)


def test_a_change_for_another_revision_is_refused(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(named(), INVENTORY)
    with pytest.raises(Refusal) as caught:
        allocations.update_limits("job", (request(compute=percent(1)),), INVENTORY, expected=Revision(1, 99))
    assert caught.value.reason is RefusalReason.REVISION_MISMATCH
    assert allocations.all == (allocation,)


def test_a_change_passes_admission_again(node: Node) -> None:
    allocations = node.start()
    allocations.allocate(named("a", request("0", compute=percent(60), vram=GIB)), INVENTORY)
    b, _ = allocations.allocate(named("b", request("0", compute=percent(40), vram=GIB)), INVENTORY)
    before = node.contents()
    with pytest.raises(Refusal) as caught:
        allocations.update_limits("b", (request(compute=percent(41)),), INVENTORY, expected=None)
    assert caught.value.reason is RefusalReason.INSUFFICIENT_TFLOPS
    assert (allocations.all[1], node.contents()) == (b, before)


def test_a_change_of_one_device_leaves_the_others(node: Node) -> None:
    allocations = node.start()
    both = named("job", request("0", compute=percent(10), vram=GIB), request("1", compute=percent(20), vram=GIB))
    allocations.allocate(both, INVENTORY)
    change = request(uuid_of(1).upper(), vram=2 * GIB)
    after = allocations.update_limits("job", (change,), INVENTORY, expected=None)
    assert [grant.limit_vram_bytes for grant in after.grants] == [GIB, 2 * GIB]
    assert [grant.limit_share_ppm for grant in after.grants] == [100_000, 200_000]


def test_a_restart_adopts_everything_and_writes_nothing(node: Node) -> None:
    allocations = node.start()
    for index in range(8):
        allocations.allocate(named(f"job-{index}", request(compute=percent(5), vram=GIB)), INVENTORY)
    allocations.allocate(pod(), INVENTORY)
    allocations.step(INVENTORY)
    before, held = node.contents(), allocations.all
    allocations.close()
    restarted = node.start()
    assert restarted.all == held
    assert node.contents() == before
    assert restarted.statistics().adopted == 9


def test_releasing_what_is_not_there_is_refused(node: Node) -> None:
    with pytest.raises(Refusal) as caught:
        node.start().release("nothing")
    assert caught.value.reason is RefusalReason.ALLOCATION_NOT_FOUND


def test_a_release_frees_the_capacity_and_removes_the_files(node: Node) -> None:
    allocations = node.start()
    whole = request("0", compute=percent(100), vram=80 * GIB)
    first, _ = allocations.allocate(named("a", whole), INVENTORY)
    with pytest.raises(Refusal):
        allocations.allocate(named("b", whole), INVENTORY)
    assert allocations.release("a") == ()
    assert not Path(first.directory).exists()
    assert list(node.records.iterdir()) == []
    allocations.allocate(named("b", whole), INVENTORY)
