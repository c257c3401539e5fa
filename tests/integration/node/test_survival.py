"""What runs stays limited, and what was granted stays granted, whatever happens to the daemon."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls

GIB = 2**30


def grants(daemon: DaemonProcess) -> list[tuple]:
    """All that a restart must not change."""
    return [
        (
            each.spec.allocation_id,
            each.uid,
            each.directory,
            each.created_at.seconds,
            [(device.gpu_uuid, device.limit_share_ppm, device.limit_vram_bytes) for device in each.devices],
        )
        for each in calls.list_allocations(daemon)
    ]


def files(daemon: DaemonProcess) -> dict[str, tuple[int, int]]:
    """Inode and size of every limit file."""
    return {
        str(path.relative_to(daemon.base_directory)): (path.stat().st_ino, path.stat().st_size)
        for path in sorted((daemon.base_directory / "by-uid").rglob("*"))
        if path.is_file()
    }


def usage_digests(daemon: DaemonProcess) -> dict[str, str]:
    """Content of the usage files, which no idle daemon writes to."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in daemon.base_directory.rglob("usage")}


def records(daemon: DaemonProcess) -> dict[str, tuple[int, int]]:
    """Inode and time of change of the records of the allocations: a record that is written anew has another inode."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (daemon.state_directory / "allocations").iterdir()
    }


def is_reader(pid: int) -> bool:
    try:
        return b"gpu-reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def readers(daemon: DaemonProcess) -> list[int]:
    """The daemon's gpu-reader processes; any thread may have started them."""
    children = [
        int(pid)
        for task in Path(f"/proc/{daemon.pid}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    return [pid for pid in children if is_reader(pid)]


def fill(daemon: DaemonProcess, count: int = 5) -> None:
    for number in range(count):
        calls.allocate(daemon, f"a{number}", vram_bytes=(number + 1) * GIB, percent="10")


def test_kill_and_restart_keep_everything_and_write_nothing(daemon: DaemonProcess) -> None:
    fill(daemon)
    before = grants(daemon), files(daemon), usage_digests(daemon), records(daemon)
    gpus = [gpu.uuid for gpu in calls.list_gpus(daemon)]
    revision = max((each.revision.epoch, each.revision.revision) for each in calls.list_gpus(daemon))
    assert len(before[0]) == 5
    for _ in range(2):
        daemon.kill()
        assert (files(daemon), usage_digests(daemon), records(daemon)) == before[1:]
        daemon.start().wait_ready()
        assert (grants(daemon), files(daemon), usage_digests(daemon), records(daemon)) == before
        assert [gpu.uuid for gpu in calls.list_gpus(daemon)] == gpus
        newest = min((each.revision.epoch, each.revision.revision) for each in calls.list_gpus(daemon))
        assert newest > revision
        revision = newest
    calls.release(daemon, "a0")
    assert len(grants(daemon)) == 4
    daemon.kill()
    daemon.start().wait_ready()
    assert len(grants(daemon)) == 4


def test_orderly_stop_and_restart_keep_everything(daemon: DaemonProcess) -> None:
    fill(daemon, 3)
    before = grants(daemon), files(daemon), usage_digests(daemon), records(daemon)
    assert daemon.stop() == 0
    daemon.start().wait_ready()
    assert (grants(daemon), files(daemon), usage_digests(daemon), records(daemon)) == before


def test_events_survive_and_are_named_apart(daemon: DaemonProcess) -> None:
    fill(daemon, 2)
    daemon.kill()
    daemon.start().wait_ready()
    events = calls.list_events(daemon)
    names = [(event.epoch, event.sequence) for event in events]
    assert len(set(names)) == len(names)
    assert sorted(names) == names
    reasons = [event.reason for event in events]
    assert reasons.count("HypervisorStarted") == 2
    assert reasons.count("AllocationGranted") == 2
    assert "GPUDiscovered" not in reasons


def test_a_stopped_daemon_goes_on_where_it_was(daemon: DaemonProcess) -> None:
    fill(daemon, 2)
    before = grants(daemon), files(daemon), usage_digests(daemon)
    daemon.signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
    stopped_at = time.monotonic()
    # Longer than several control and reading intervals; what is waited for is the clock itself.
    wait_until(lambda: time.monotonic() - stopped_at > 3, "time to pass")
    assert (files(daemon), usage_digests(daemon)) == before[1:]
    daemon.signal(signal.SIGCONT)
    wait_until(lambda: daemon.get("/readyz")[0] == 200, "readiness")
    assert (grants(daemon), files(daemon), usage_digests(daemon)) == before
    calls.allocate(daemon, "afterwards", vram_bytes=GIB, percent="10")
    assert daemon.stop() == 0


def test_a_damaged_usage_file_does_not_end_the_daemon(daemon: DaemonProcess) -> None:
    fill(daemon, 2)
    for path in sorted(daemon.base_directory.rglob("usage")):
        if path.is_file() and not path.is_symlink():
            os.truncate(path, 0)
    calls.allocate(daemon, "afterwards", vram_bytes=GIB, percent="10")
    steps = "gpuhv_control_steps_total"

    def count() -> float:
        lines = daemon.get("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith(steps)).split()[1])

    first = count()
    wait_until(lambda: count() > first + 15, "control steps after the damage")
    wait_until(
        lambda: [event for event in calls.list_events(daemon) if "tamper" in event.reason.lower()], "the finding"
    )
    assert daemon.process is not None
    assert daemon.process.poll() is None
    assert len(grants(daemon)) == 3


def test_a_killed_reader_is_started_again(daemon: DaemonProcess) -> None:
    (reader,) = readers(daemon)
    os.kill(reader, signal.SIGKILL)
    wait_until(lambda: "gpuhv_nvml_reinits_total 1.0" in daemon.get("/metrics")[1], "the restart of the reader")
    wait_until(lambda: daemon.get("/readyz")[0] == 200, "readiness")
    assert len(calls.list_gpus(daemon)) == 8


def test_a_reader_does_not_outlive_a_killed_daemon(daemon: DaemonProcess) -> None:
    (reader,) = readers(daemon)
    daemon.kill()
    wait_until(lambda: not is_reader(reader), "the reader to end")


def test_the_log_tells_of_damage_and_of_a_reader_that_was_killed(make_daemon) -> None:
    daemon = make_daemon().start().wait_ready()
    for name in ("hurt", "lost"):
        calls.allocate(daemon, name, vram_bytes=2**30, percent="10")
    hurt, lost = calls.list_allocations(daemon)
    daemon.kill()
    (daemon.state_directory / "allocations" / f"{lost.uid}.json").write_text("{")
    daemon.start().wait_ready()

    def logged(event: str, **fields: str) -> bool:
        return any(
            line.get("event") == event and all(line.get(name) == value for name, value in fields.items())
            for line in daemon.log()
        )

    assert logged("event", level="warning", reason="RecordSetAside", object="lost")
    (Path(hurt.directory) / "usage").write_bytes(b"")
    wait_until(lambda: logged("event", level="warning", reason="UsageTampered", object="hurt"), "the tampering")
    (reader,) = readers(daemon)
    os.kill(reader, signal.SIGKILL)
    wait_until(lambda: logged("the gpu-reader failed", level="warning", code="ReaderRestarting"), "the reader's end")
    wait_until(lambda: logged("the gpu-reader answers again", level="info"), "the next reader")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of our own; skips where it can't be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def on_small_disk(daemon: DaemonProcess, disk: Path) -> DaemonProcess:
    """The daemon with its state on the disk, and its machine beside it: that one's memory is no part of the state."""
    daemon.state_directory = disk
    machine = daemon.directory / "machine"
    subprocess.run(
        [sys.executable, "-m", "hypervisor", "sim", "create", "h100-sxm-80gb", "--machine", str(machine)],
        check=True,
        capture_output=True,
    )
    daemon.flags = ("--simulate", str(machine))
    return daemon.start().wait_ready()


def test_a_full_state_directory_refuses_and_loses_nothing(make_daemon, small_disk: Path) -> None:
    daemon = on_small_disk(make_daemon(), small_disk)
    fill(daemon, 2)
    before = grants(daemon)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(8 * 2**20))
    with pytest.raises(calls.Refused) as refused:
        calls.allocate(daemon, "no-room", vram_bytes=GIB, percent="10")
    assert refused.value.reason == "STORAGE_FAILED"
    assert grants(daemon) == before
    assert daemon.get("/metrics")[0] == 200
    journal_failed = 'gpuhv_node_condition{condition="JournalFailed",reason="JournalFailed"} 1.0'
    wait_until(lambda: journal_failed in daemon.get("/metrics")[1], "the condition")
    assert daemon.get("/readyz")[0] == 200
    ballast.unlink()
    wait_until(lambda: journal_failed not in daemon.get("/metrics")[1], "the condition to go")
    calls.allocate(daemon, "room-again", vram_bytes=GIB, percent="10")
    names = [grant[0] for grant in grants(daemon)]
    assert names == ["a0", "a1", "room-again"]
    daemon.kill()
    daemon.start().wait_ready()
    assert [grant[0] for grant in grants(daemon)] == names


def test_a_daemon_killed_on_a_full_disk_starts_again(make_daemon, small_disk: Path) -> None:
    daemon = on_small_disk(make_daemon(), small_disk)
    fill(daemon, 2)
    before, limit_files = grants(daemon), files(daemon)
    epochs = [calls.list_gpus(daemon)[0].revision.epoch]
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(8 * 2**20))
    disk_full = 'gpuhv_node_condition{condition="DiskFull",reason="DiskFull"} 1.0'
    for _ in range(2):
        daemon.kill()
        daemon.start().wait_serving()
        assert (grants(daemon), files(daemon)) == (before, limit_files)
        wait_until(lambda: calls.list_gpus(daemon), "the GPUs")
        epochs.append(calls.list_gpus(daemon)[0].revision.epoch)
        assert disk_full in daemon.get("/metrics")[1]
    assert epochs == sorted(set(epochs))
    ballast.unlink()
    daemon.wait_ready()
    wait_until(lambda: disk_full not in daemon.get("/metrics")[1], "the condition to go")


def test_a_start_on_a_full_disk_is_refused_in_one_line(make_daemon) -> None:
    """The limit on the size of files stands for the disk; it works for everybody."""
    daemon = make_daemon()
    daemon.state_directory.mkdir()

    def no_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [
            *(sys.executable, "-m", "hypervisor", "run", "--state-dir", str(daemon.state_directory)),
            *("--base-dir", str(daemon.base_directory), "--http-port", "0"),
        ],
        preexec_fn=no_space,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(daemon.state_directory) in line
    assert "free some space" in line


def test_a_new_boot_keeps_what_is_named_and_forgets_no_event(make_daemon, tmp_path: Path) -> None:
    """Another boot id, as after a reboot; the limit files of a tmpfs are gone then."""
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("11111111-2222-3333-4444-555555555555\n")
    probe = ["unshare", "--mount", "mount", "--bind", str(other_boot), "/proc/sys/kernel/random/boot_id"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    daemon = make_daemon().start().wait_ready()
    fill(daemon, 2)
    before = grants(daemon)
    epoch = calls.list_gpus(daemon)[0].revision.epoch
    uuids = [gpu.uuid for gpu in calls.list_gpus(daemon)]
    daemon.kill()
    shutil.rmtree(daemon.base_directory)
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    daemon.prefix = ("unshare", "--mount", "sh", "-c", script, str(other_boot))
    daemon.start().wait_ready()
    assert [(grant[0], grant[4]) for grant in grants(daemon)] == [(grant[0], grant[4]) for grant in before]
    assert len(files(daemon)) == 4
    assert [gpu.uuid for gpu in calls.list_gpus(daemon)] == uuids
    assert calls.list_gpus(daemon)[0].revision.epoch == epoch + 1
    assert [event.reason for event in calls.list_events(daemon)].count("AllocationGranted") == 2
