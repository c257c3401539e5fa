"""The kernel's control of device memory, over a tree of plain files that look like its own."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_there_is_none_without_the_driver(tmp_path: Path) -> None:
    assert MemoryControl.find(tmp_path) is None
    (tmp_path / "dmem.capacity").write_text("drm/0000:00:02.0/stolen 1\n")
    assert MemoryControl.find(tmp_path) is None


def test_a_limit_is_set_and_read_back(tree: Path) -> None:
    control = MemoryControl.find(tree)
    assert control is not None
    assert control.region(NVML_BUS_ID) == REGION  # eight digits of a domain are four of the kernel's
    assert control.region("00000000:19:00.0") is None
    one = tree / "pods/one"
    control.set(one, REGION, hard_bytes=4 * GIB, soft_bytes=GIB)
    assert (one / "dmem.max").read_text() == f"{REGION} {4 * GIB}"
    assert (one / "dmem.min").read_text() == f"{REGION} {GIB}"
    assert (tree / "pods/dmem.min").read_text() == f"{REGION} {GIB}"  # else the soft limit would count for nothing
    control.clear(one, REGION)
    assert (one / "dmem.max").read_text() == f"{REGION} max"
    assert (one / "dmem.min").read_text() == f"{REGION} 0"


def test_a_limit_that_is_not_in_force_keeps_a_worker_from_starting(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = MemoryControl(tree)
    spec = WorkerSpec(worker_id="w", command=("x",), gpu_bus_ids=(NVML_BUS_ID,), memory_limit_bytes=GIB)
    limit_memory(control, tree / "pods/one", spec)
    assert control.used(tree / "pods/one", REGION) == 0
    monkeypatch.setattr(MemoryControl, "_write", lambda *_: None)  # says yes and does nothing
    with pytest.raises(LaunchError, match="and 2147483648 was set"):
        limit_memory(control, tree / "pods/one", WorkerSpec(
            worker_id="w", command=("x",), gpu_bus_ids=(NVML_BUS_ID,), memory_limit_bytes=2 * GIB
        ))  # fmt: skip
    monkeypatch.undo()
    with pytest.raises(MemoryControlError, match="is the dmem controller enabled above it"):
        control.set(tree / "pods/none", REGION, hard_bytes=GIB)


def test_each_cgroup_above_hands_the_controller_on(tree: Path) -> None:
    for folder, enabled in ((tree, "cpu dmem"), (tree / "pods", "cpu")):
        (folder / "cgroup.subtree_control").write_text(enabled)
    MemoryControl(tree).set(tree / "pods/one", REGION, hard_bytes=GIB)
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
