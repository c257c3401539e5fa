"""VRAM limits of cgroups, over a tree of plain files that look like the kernel's and a driver that is a table."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED
from hypervisor.gpu.errand import ErrandError
from hypervisor.gpu.memory_limits import has_memory_limits
from hypervisor.gpu.wire import MemoryLimitTold
from hypervisor.model import WorkerSpec
from hypervisor.workers.cgroup import MemoryControl, MemoryControlError
from hypervisor.workers.launching import LaunchError, limit_memory, limit_processes, remove_cgroup

GIB = 2**30
REGION = "nvidia/0000:18:00.0/vidmem"
NVML_BUS_ID = "00000000:18:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "dmem.capacity").write_text(f"drm/0000:00:02.0/stolen 1\n{REGION} {80 * GIB}\n")
    for folder in ("pods", "pods/one"):
        (tmp_path / folder).mkdir()
        for name in ("dmem.min", "dmem.max", "dmem.current"):
            (tmp_path / folder / name).write_text(f"{REGION} {'max' if name == 'dmem.max' else 0}\n")
    return tmp_path


@dataclass
class Driver:
    """What NVML would answer; deaf: it says yes and does nothing."""

    code: int = 0
    deaf: bool = False
    set: dict[tuple[str, Path], int | None] = field(default_factory=dict)

    async def limit(self, bus_id: str, cgroup: Path, hard_bytes: int | None) -> MemoryLimitTold:
        await trio.lowlevel.checkpoint()
        if self.code:
            raise ErrandError(self.code, "nvmlDeviceSetMemoryLimits_v1 says: no")
        if not self.deaf:
            self.set[bus_id, cgroup] = hard_bytes
        return MemoryLimitTold(0, "", self.set.get((bus_id, cgroup)))


def limit(control: MemoryControl, cgroup: Path, hard_bytes: int | None) -> bool:
    return trio.run(control.limit, cgroup, NVML_BUS_ID, hard_bytes)


SPEC = WorkerSpec(worker_id="w", command=("x",), gpu_bus_ids=(NVML_BUS_ID,), memory_limit_bytes=GIB)


def test_which_drivers_have_the_calls() -> None:
    assert [has_memory_limits(each) for each in ("610.43.02", "615.71.09", "620.1", "", "R615")] == [
        *(False, True, True, None, False)
    ]


def test_there_is_none_without_driver_and_controller(tmp_path: Path) -> None:
    assert not MemoryControl(tmp_path).present
    (tmp_path / "dmem.capacity").write_text("drm/0000:00:02.0/stolen 1\n")
    assert not MemoryControl(tmp_path).covers(NVML_BUS_ID)
    assert not MemoryControl(tmp_path, Driver()).present  # not as new as that
    trio.run(limit_memory, MemoryControl(tmp_path), tmp_path, SPEC)  # and then a worker just starts


def test_the_driver_is_asked_first_and_the_files_are_left_to_it(tree: Path) -> None:
    driver = Driver()
    control = MemoryControl(tree, driver, lambda: True)
    assert limit(control, tree / "pods/one", 4 * GIB)
    assert driver.set == {(NVML_BUS_ID, tree / "pods/one"): 4 * GIB}
    assert (tree / "pods/one/dmem.max").read_text() == f"{REGION} max\n"
    assert limit(control, tree / "pods/one", None)
    assert driver.set == {(NVML_BUS_ID, tree / "pods/one"): None}


def test_a_driver_without_the_call_leaves_the_files_and_is_not_asked_again(tree: Path) -> None:
    driver = Driver(FUNCTION_NOT_FOUND)
    control = MemoryControl(tree, driver, lambda: True)
    assert limit(control, tree / "pods/one", GIB)
    assert (tree / "pods/one/dmem.max").read_text() == f"{REGION} {GIB}"
    driver.code = NO_PERMISSION
    assert limit(control, tree / "pods/one", 2 * GIB)


def test_a_driver_that_limits_nothing_is_no_error_but_a_cgroup_without_the_controller_is(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    control = MemoryControl(tmp_path / "bare", Driver(NOT_SUPPORTED), lambda: True)  # RmMemacctMode is 0
    assert not limit(control, tmp_path / "bare", GIB)
    assert not control.covers(NVML_BUS_ID)
    control = MemoryControl(tree, Driver(NOT_SUPPORTED), lambda: True)
    with pytest.raises(LaunchError, match="is the dmem controller enabled above it"):
        trio.run(limit_memory, control, tree / "pods/one", SPEC)
    control = MemoryControl(tmp_path / "bare", Driver(NO_PERMISSION), lambda: True)
    with pytest.raises(MemoryControlError, match="says: no"):
        limit(control, tmp_path / "bare", GIB)


def test_a_limit_is_written_to_the_files_and_read_back(tree: Path) -> None:
    control = MemoryControl(tree)
    assert control.region(NVML_BUS_ID) == REGION  # eight digits of a domain are four of the kernel's
    assert control.region("00000000:19:00.0") is None
    one = tree / "pods/one"
    limit(control, one, 4 * GIB)
    assert (one / "dmem.max").read_text() == f"{REGION} {4 * GIB}"
    limit(control, one, None)
    assert (one / "dmem.max").read_text() == f"{REGION} max"


def test_a_limit_that_is_not_in_force_keeps_a_worker_from_starting(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = MemoryControl(tree)
    trio.run(limit_memory, control, tree / "pods/one", SPEC)
    with pytest.raises(LaunchError, match="says None bytes"):
        trio.run(limit_memory, MemoryControl(tree, Driver(deaf=True), lambda: True), tree / "pods/one", SPEC)
    monkeypatch.setattr(MemoryControl, "_write", lambda *_: None)  # says yes and does nothing
    with pytest.raises(MemoryControlError, match="and 2147483648 was set"):
        limit(control, tree / "pods/one", 2 * GIB)
    monkeypatch.undo()
    with pytest.raises(MemoryControlError, match="is the dmem controller enabled above it"):
        limit(control, tree / "pods/none", GIB)


def test_each_cgroup_above_hands_the_controller_on(tree: Path) -> None:
    for folder, enabled in ((tree, "cpu dmem"), (tree / "pods", "cpu")):
        (folder / "cgroup.subtree_control").write_text(enabled)
    limit(MemoryControl(tree), tree / "pods/one", GIB)
    assert (tree / "cgroup.subtree_control").read_text() == "cpu dmem"  # had it, and was not written again
    assert (tree / "pods/cgroup.subtree_control").read_text() == "+dmem"


def test_processes_are_bounded_where_the_kernel_counts_them(tree: Path) -> None:
    one = tree / "pods/one"
    limit_processes(tree, one, 100)  # no such control here: nothing happens
    assert not (one / "pids.max").exists()
    (one / "pids.max").write_text("max")
    limit_processes(tree, one, 100)
    assert (one / "pids.max").read_text() == "100"
    limit_processes(tree, one, 0)
    assert (one / "pids.max").read_text() == "max"


def test_the_last_cgroup_takes_those_above_along(tmp_path: Path) -> None:
    home = tmp_path / "hypervisor-workers/abc"
    for name in ("a", "b"):
        (home / name).mkdir(parents=True)
    remove_cgroup(home, "a")
    assert home.exists()
    remove_cgroup(home, "a")  # again: it has gone already
    remove_cgroup(home, "b")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_waits_until_it_is_known_what_the_driver_can(tree: Path) -> None:
    has_it: list[bool | None] = [None]
    driver = Driver()
    control = MemoryControl(tree, driver, lambda: has_it[0])

    async def body() -> None:
        with pytest.raises(LaunchError, match="has not answered yet"):
            await limit_memory(control, tree / "pods/one", SPEC)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limit_memory, control, tree / "pods/one", SPEC)
            await trio.sleep(1)
            assert not driver.set
            has_it[0] = True

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))
    assert driver.set == {(NVML_BUS_ID, tree / "pods/one"): GIB}


def test_a_cgroup_that_can_not_be_removed_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rmdir(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "rmdir", rmdir)
    remove_cgroup(tmp_path / "hypervisor-workers/abc", "a")
