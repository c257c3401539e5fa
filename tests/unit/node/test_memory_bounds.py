"""The kernel's VRAM limits of containers and of processes, over a tree of plain files that look like the kernel's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from hypervisor.model import IsolationMode, Owner, OwnerKind
from hypervisor.node.memory_bounds import Bound, MemoryBounds, container_path
from hypervisor.workers.cgroup import MemoryControl
from tests import builders

GIB = 2**30
BUS = "0000:18:00.0"
REGION = f"nvidia/{BUS}/vidmem"
POD = "8b8f1b0e-8a57-4a6e-9f0e-0123456789ab"
CONTAINER = "ab" * 32
LEAF = f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"


class Host:
    """Cgroups and /proc as files. A folder of cgroups gets its files when it is made, as the kernel does it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree, self.proc = path / "cgroup", path / "proc"
        self.home = self.tree / "hypervisor-workers/abc"
        self.events: list[tuple[str, str]] = []
        self._made = Path.mkdir
        monkeypatch.setattr(Path, "mkdir", lambda *args, **parts: self._mkdir(*args, **parts))
        for folder in (self.tree, self.home, self.tree / LEAF / "init.scope", self.tree / "user.slice"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.tree / "dmem.capacity").write_text(f"{REGION} {80 * GIB}\n")
        self.bounds = MemoryBounds(
            MemoryControl(self.tree), home=self.home, bus_id=lambda _: BUS, emit=self._emit, proc=self.proc
        )

    def _mkdir(self, path: Path, *args: Any, **parts: Any) -> None:
        self._made(path, *args, **parts)
        if self.tree in path.parents:
            for each in (path, *(above for above in path.parents if self.tree in above.parents)):
                for name, value in (("dmem.max", "max"), ("dmem.min", "0")):
                    if not (each / name).exists():
                        (each / name).write_text(f"{REGION} {value}\n")
        if path == self.tree:
            (path / "cgroup.subtree_control").write_text("cpu memory\n")

    def _emit(self, kind: Any, reason: str, about: Any, message: str, **_: str) -> None:
        self.events.append((reason, message))

    def step(self, *parts: Any) -> None:
        trio.run(self.bounds.step, *parts)

    def process(self, pid: int, cgroup: str, start: int = 12345) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/{cgroup}\n")
        (folder / "stat").write_text(f"{pid} (a) b) S " + " ".join(["0"] * 18) + f" {start} 0\n")

    def limit(self, cgroup: str) -> str:
        return (self.tree / cgroup / "dmem.max").read_text().strip()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def held(owner: Owner, isolation: IsolationMode = IsolationMode.HARD, limit: int = 4 * GIB) -> Any:
    spec = builders.make_spec("trainer", isolation=isolation, owner=owner)
    grant = builders.make_grant(0, limit_vram_bytes=limit)
    return builders.make_allocation("trainer", spec=spec, grants=(grant,))


POD_OWNER = Owner(kind=OwnerKind.POD, name="p", pod_uid=POD, container="main")
EXEC_OWNER = Owner(kind=OwnerKind.PROCESS, name="train", pid=4711, start_time_ticks=12345)


def test_a_container_of_a_pod_is_bound_at_its_own_cgroup(host: Host) -> None:
    host.process(4711, f"{LEAF}/init.scope")
    allocation = held(POD_OWNER)
    host.step([allocation], [builders.make_usage()])
    assert host.limit(LEAF) == f"{REGION} {4 * GIB}"
    assert host.limit(f"{LEAF}/init.scope") == f"{REGION} max"  # a part of it, bound with the whole
    assert "+dmem" in (host.tree / "cgroup.subtree_control").read_text()  # else the container had no such file
    lower = held(POD_OWNER, limit=2 * GIB)
    host.step([lower], [builders.make_usage()])
    assert host.limit(LEAF) == f"{REGION} {2 * GIB}"
    assert host.bounds.bounds == {Bound(host.tree / LEAF, BUS, 2 * GIB)}
    host.step([], [])
    assert host.limit(LEAF) == f"{REGION} max"
    assert not host.bounds.bounds


def test_a_process_that_asks_for_itself_is_moved_into_a_bound_cgroup(host: Host) -> None:
    host.process(4711, "user.slice")
    allocation = held(EXEC_OWNER)
    trio.run(host.bounds.take, allocation)
    own = host.home / "_allocations" / allocation.uid
    assert (own / "cgroup.procs").read_text() == "4711"
    assert (own / "dmem.max").read_text() == f"{REGION} {4 * GIB}"
    assert host.limit("user.slice") == f"{REGION} max"  # what else lives there is not bound by it


@pytest.mark.parametrize("isolation", [IsolationMode.SHARED, IsolationMode.PARTITIONED])
def test_what_has_no_limit_of_ours_is_left_alone(host: Host, isolation: IsolationMode) -> None:
    host.process(4711, LEAF)
    host.step([held(POD_OWNER, isolation)], [builders.make_usage()])
    assert not host.bounds.bounds


def test_a_pid_that_another_has_now_is_left_alone(host: Host) -> None:
    host.process(4711, "user.slice", start=99999)
    trio.run(host.bounds.take, held(EXEC_OWNER))
    assert not (host.home / "_allocations").exists()


def test_workers_and_containers_of_others_are_left_alone(host: Host) -> None:
    host.process(4711, "hypervisor-workers/abc/worker")
    trio.run(host.bounds.take, held(EXEC_OWNER))
    other = replace(POD_OWNER, pod_uid="00000000-8a57-4a6e-9f0e-0123456789ab")
    host.process(1, LEAF)
    host.step([held(other)], [builders.make_usage()])
    assert not host.bounds.bounds


def test_what_can_not_be_set_is_told_once(host: Host) -> None:
    host.process(4711, LEAF)
    (host.tree / LEAF / "dmem.max").unlink()
    (host.tree / LEAF / "dmem.max").mkdir()
    for _ in range(3):
        host.step([held(POD_OWNER)], [builders.make_usage()])
    ((reason, message),) = host.events
    assert reason == "MemoryLimitNotSet"
    assert "is the dmem controller enabled above it?" in message


def test_which_part_of_a_path_is_the_container() -> None:
    assert container_path(f"/kubepods/burstable/pod{POD}/{CONTAINER}") == f"kubepods/burstable/pod{POD}/{CONTAINER}"
    assert container_path(f"/{LEAF}/init.scope/x") == LEAF
    assert container_path("/user.slice/a") == "user.slice/a"
