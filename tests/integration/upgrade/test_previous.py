"""This version over what an earlier one has left: a node's state and limit files, an aggregator's store."""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.aggregator.sqlite_schema import MIGRATIONS
from hypervisor.aggregator.sqlite_store import SqliteStore
from hypervisor.aggregator.store import EventQuery
from hypervisor.limits import LimitDirectory
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls
from tests.integration.upgrade import recorded
from tests.simulated_load import LOAD, Machine, assert_share

VERSIONS = ("first",)
GIB = 2**30
# Of the header of a limit file: after eight bytes of magic the major and the minor version.
_MAJOR = 8


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def records(version: str) -> dict[str, dict]:
    """By name, the allocations that the earlier version has recorded."""
    found = (json.loads(path.read_text()) for path in (recorded.FOLDER / version / "allocations").iterdir())
    return {each["allocation"]["spec"]["allocation_id"]: each["allocation"] for each in found}


def contents(base: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of each limit file of limits."""
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in sorted(base.rglob("shm"))}


def laid_out(make_daemon: Callable[..., DaemonProcess], version: str, tmp_path: Path) -> tuple[DaemonProcess, Machine]:
    """A daemon that is not started yet, over the earlier version's files and on a machine of the same cards."""
    machine = Machine(tmp_path / "machine", "h100-sxm-80gb")
    daemon = make_daemon("--node-name", "fixture", simulate=str(machine.path))
    recorded.lay_out_node(version, daemon.state_directory, daemon.base_directory)
    return daemon, machine


def test_limit_files_of_an_earlier_version_are_read(version: str, tmp_path: Path) -> None:
    recorded.lay_out_node(version, tmp_path / "state", tmp_path / "base")
    boot = recorded.BOOT_ID_FILE.read_text().strip()
    directory = LimitDirectory(tmp_path / "base", boot_id=boot, node_epoch=2)
    known = {record["uid"]: record for record in records(version).values()}
    assert set(directory.uids()) == known.keys()
    for uid, record in known.items():
        files = directory.open(uid)
        assert files.finding is None
        assert files.shm.state.armed
        grant, device = record["grants"][0], files.shm.limits.devices[0]
        assert device.uuid == grant["gpu_uuid"]
        assert device.limit_share_ppm == grant["limit_share_ppm"]
        assert device.vram_limit_bytes == grant["limit_vram_bytes"]
        files.close()


def test_the_aggregator_migrates_an_earlier_file_once(version: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    recorded.lay_out_aggregator(version, path)
    with sqlite3.connect(path) as database:
        before = database.execute("SELECT max(version) FROM migrations").fetchone()[0]
        gpus = {row[0] for row in database.execute("SELECT name FROM gpus")}
        events = database.execute("SELECT reason, name FROM events ORDER BY number").fetchall()
    database.close()
    assert before < len(MIGRATIONS)
    for _ in range(2):
        store = SqliteStore(path, tombstone_limit=100)
        stored = store.load()
        assert {row.name for row in stored.gpus} == gpus
        assert len(stored.nodes) == 1
        found = store.read_events(EventQuery(limit=100))
        assert [(each.row.reason, each.row.name) for each in found] == events
        store.close()
    with sqlite3.connect(path) as database:
        applied = [row[0] for row in database.execute("SELECT version FROM migrations ORDER BY version")]
    database.close()
    assert applied == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.slow
def test_a_node_of_an_earlier_version_is_adopted(
    make_daemon: Callable[..., DaemonProcess], version: str, tmp_path: Path
) -> None:
    daemon, machine = laid_out(make_daemon, version, tmp_path)
    known, before = records(version), contents(daemon.base_directory)
    identity = json.loads((daemon.state_directory / "node.json").read_text())
    daemon.start().wait_ready()
    listed = {each.spec.allocation_id: each for each in calls.list_allocations(daemon)}
    assert listed.keys() == known.keys()
    for name, record in known.items():
        found, grant = listed[name], record["grants"][0]
        assert found.uid == record["uid"]
        device = found.devices[0]
        assert (device.gpu_uuid, device.limit_share_ppm) == (grant["gpu_uuid"], grant["limit_share_ppm"])
        assert device.limit_vram_bytes == grant["limit_vram_bytes"]
    # In place: the same files, so that a process in them has its limits on.
    assert {path: inode for path, (inode, _) in contents(daemon.base_directory).items()} == {
        path: inode for path, (inode, _) in before.items()
    }
    # The node is who it was, its journal goes on, and repeats that were not told yet are told.
    events = calls.list_events(daemon)
    assert {event.epoch for event in events} == {identity["epoch"], identity["epoch"] + 1}
    assert json.loads((daemon.state_directory / "node.json").read_text())["uid"] == identity["uid"]
    refused = [event for event in events if event.reason == "AllocationRefused"]
    assert [event.count for event in refused] == [1, 2]
    assert not list(daemon.state_directory.rglob("*.damaged"))
    assert not list(daemon.state_directory.rglob("set-aside"))
    # This version's library in the earlier version's files: the limit holds, by the machine's own ledger.
    soft = listed["soft"]
    limit = soft.devices[0].limit_vram_bytes
    library = Path(LOAD).parents[1] / "libcuda_limiter.so"
    limits = ["env", f"LD_PRELOAD={library}", f"TF_SHM_PATH={soft.directory}", "TF_ISOLATION_MODE=soft"]
    ran = machine.run([*limits, str(LOAD), "--grow=1073741824", "--seconds=1"], group="soft")
    assert ran.line("refused")["refused"], ran.stderr
    assert limit - 2 * GIB < machine.used("soft").peak_bytes <= limit
    # The control: without the library the same program takes more.
    machine.run([str(LOAD), "--grow=1073741824", "--seconds=1"], group="free")
    assert machine.used("free").peak_bytes > 2 * limit


@pytest.mark.slow
def test_limit_files_of_another_major_version_are_kept_and_not_touched(
    make_daemon: Callable[..., DaemonProcess], version: str, tmp_path: Path
) -> None:
    daemon, machine = laid_out(make_daemon, version, tmp_path)
    other = records(version)["soft"]
    directory = daemon.base_directory / "by-uid" / other["uid"]
    for name in ("shm", "usage"):
        with (directory / name).open("r+b") as file:
            file.seek(_MAJOR)
            file.write(struct.pack("<H", 2))
    before = {name: (directory / name).read_bytes() for name in ("shm", "usage")}
    daemon.start().wait_ready()
    # Its share stays promised: what is left of the card is what it was.
    daemon.cli("allocate", "fits", "--gpu", "0", "--compute", "40%", admin=True)
    refused = daemon.cli("allocate", "more", "--gpu", "0", "--compute", "20%", admin=True, check=False)
    assert refused.returncode == 1
    assert "of its GPU time left" in refused.stderr
    pods = json.loads(daemon.cli("get", "pods", "-o", "json").stdout)["items"]
    (pod,) = (each for each in pods if each["spec"]["allocationId"] == "soft")
    assert "layout version 2.0; this daemon knows 1.x" in json.dumps(pod)
    assert pod["enforcement"] == "ENFORCEMENT_VIOLATED"
    assert [event.regarding.name for event in calls.list_events(daemon) if event.reason == "LimitFilesUnusable"] == [
        "soft"
    ]
    # This version's library does not run a program without limits there.
    library = Path(LOAD).parents[1] / "libcuda_limiter.so"
    limits = ["env", f"LD_PRELOAD={library}", f"TF_SHM_PATH={directory}", "TF_ISOLATION_MODE=soft"]
    ran = machine.run([*limits, str(LOAD), "--seconds=1"], group="refused")
    assert ran.status != 0
    assert machine.used("refused").busy_seconds == 0
    assert {name: (directory / name).read_bytes() for name in before} == before


@pytest.mark.slow
def test_a_record_of_a_later_version_is_recovered_from_the_limit_file(
    make_daemon: Callable[..., DaemonProcess], version: str, tmp_path: Path
) -> None:
    daemon, _ = laid_out(make_daemon, version, tmp_path)
    later = records(version)["damaged"]
    path = daemon.state_directory / "allocations" / f"{later['uid']}.json"
    path.write_text(path.read_text().replace('"version":1', '"version":2', 1))
    before = contents(daemon.base_directory)[str(daemon.base_directory / "by-uid" / later["uid"] / "shm")]
    daemon.start().wait_ready()
    (found,) = (each for each in calls.list_allocations(daemon) if each.uid == later["uid"])
    assert found.spec.allocation_id == "damaged"
    assert found.devices[0].limit_share_ppm == later["grants"][0]["limit_share_ppm"]
    assert (daemon.state_directory / "allocations/set-aside" / path.name).exists()
    assert contents(daemon.base_directory)[str(Path(found.directory) / "shm")][0] == before[0]
    assert "RecordSetAside" in [event.reason for event in calls.list_events(daemon)]


@pytest.mark.slow
def test_a_node_of_a_later_version_is_not_started_over(version: str, tmp_path: Path) -> None:
    recorded.lay_out_node(version, tmp_path / "state", tmp_path / "base")
    node = tmp_path / "state/node.json"
    node.write_text(node.read_text().replace('"version":1', '"version":2'))
    before = node.read_bytes()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hypervisor", "run", "--simulate", "t4", "--http-port", "0"),
            *("--state-dir", str(tmp_path / "state"), "--base-dir", str(tmp_path / "base")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is of version 2, and this daemon knows 1" in done.stderr
    assert node.read_bytes() == before


@pytest.mark.slow
def test_a_daemon_is_replaced_by_a_newer_one_under_a_workload(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "machine", "h100-sxm-80gb")
    daemon = make_daemon(simulate=str(machine.path)).start().wait_ready()
    command = [
        *(sys.executable, "-m", "hypervisor", "exec", "--server", daemon.owner_address, "--name", "steady"),
        *("--gpu", "1", "--compute", "25%", "--vram", "4Gi", "--", str(LOAD), "--kernel-us=500", "--seconds=300"),
    ]
    workload = subprocess.Popen(
        command, env=machine.environment("steady"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: machine.used("steady", 1).busy_seconds > 0.5, "the workload to run")
        reach(machine, 0.25)
        (before,) = calls.list_allocations(daemon)
        files = contents(daemon.base_directory)
        epoch = calls.list_gpus(daemon)[0].revision.epoch
        daemon.kill()
        reach(machine, 0.25)
        newer = tmp_path / "newer"
        newer.mkdir()
        (newer / "sitecustomize.py").write_text("import hypervisor\nhypervisor.__version__ = '9.9.9'\n")
        daemon.environment["PYTHONPATH"] = str(newer)
        daemon.start().wait_ready()
        assert 'gpuhv_build_info{python="' in daemon.get("/metrics")[1]
        assert 'version="9.9.9"' in daemon.get("/metrics")[1]
        assert calls.list_gpus(daemon)[0].revision.epoch == epoch + 1
        (after,) = calls.list_allocations(daemon)
        assert (after.uid, after.directory, after.spec) == (before.uid, before.directory, before.spec)
        assert {path: inode for path, (inode, _) in contents(daemon.base_directory).items()} == {
            path: inode for path, (inode, _) in files.items()
        }
        assert workload.poll() is None
        reach(machine, 0.25)
        # The control: the newer daemon's word reaches the process that the older one has started.
        daemon.cli("set-limits", "steady", "--compute", "50%", admin=True)
        reach(machine, 0.5)
    finally:
        workload.kill()
        workload.wait(10)


def reach(machine: Machine, share: float) -> None:
    """The workload's share of GPU time comes to this, within 5 points, and is never above it, over three seconds by the
    ledger; on a machine that gives it no processor it may take several tries."""
    assert_share(lambda: machine.share("steady", gpu=1), share, attempts=8)
