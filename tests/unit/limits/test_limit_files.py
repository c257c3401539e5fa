"""Both files of an allocation: made in full, published by the flip of a word, adopted without a touch."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.limits import (
    Access,
    DeviceFlags,
    DeviceLimits,
    FileIsolation,
    FilePolicy,
    Finding,
    LimitDirectory,
    LimitFileError,
    LimitFiles,
    LimitSet,
    ShmFile,
)

BOOT = "0a0b0c0d-1111-2222-3333-444455556666"
GIB = 2**30
DEVICE = DeviceLimits(
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    host_index=3,
    vram_limit_bytes=8 * GIB,
    vram_request_bytes=4 * GIB,
    limit_share_ppm=400_000,
    request_share_ppm=250_000,
    weight=2,
    policy=FilePolicy.HARD_CAP,
    burst_ns=10_000_000,
    debt_limit_ns=10_000_000_000,
)
LIMITS = LimitSet(isolation=FileIsolation.SOFT, devices=(DEVICE,), host_memory_limit_bytes=None, revision=7)


@pytest.fixture
def directory(tmp_path: Path) -> LimitDirectory:
    made = LimitDirectory(tmp_path / "shm", boot_id=BOOT, node_epoch=5)
    made.prepare()
    return made


def create(directory: LimitDirectory, uid: str = "uid-1", limits: LimitSet = LIMITS) -> LimitFiles:
    return directory.create(uid, "job", limits, access=Access(), context_bytes=[300 * 2**20] * len(limits.devices))


def word(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return int(struct.unpack("<Q", os.pread(file.fileno(), 8, offset))[0])


def test_the_files_say_what_the_header_lays_down(directory: LimitDirectory) -> None:
    files = create(directory)
    shm, usage = files.directory / "shm", files.directory / "usage"
    assert (shm.stat().st_size, usage.stat().st_size) == (262144, 1048576)
    assert shm.read_bytes()[:8] == b"HVLIMIT1"
    assert usage.read_bytes()[:8] == b"HVUSAGE1"
    data = shm.read_bytes()
    # Offsets written out: they are what other programs were built with.
    assert struct.unpack_from("<HHIQ", data, 8) == (1, 1, 536, 262144)
    assert data[48:52] == b"job\0"
    assert data[112 : 112 + 37] == BOOT.encode() + b"\0"
    assert struct.unpack_from("<Q", data, 32) == (5,)
    assert struct.unpack_from("<IIQQ", data, 152) == (1, 128, 4096, 128)
    assert struct.unpack_from("<IIQQ", data, 176) == (2, 4160, 8192, 8320)
    generation = struct.unpack_from("<Q", data, 4096)[0]
    slot = 8192 + 4160 * (generation & 1)
    assert struct.unpack_from("<IIQ", data, slot) == (1, 2, 2**64 - 1)
    assert data[slot + 64 : slot + 64 + 41] == DEVICE.uuid.encode() + b"\0"
    assert struct.unpack_from("<QQIIII", data, slot + 64 + 96) == (8 * GIB, 4 * GIB, 400_000, 250_000, 2, 0)
    assert struct.unpack_from("<Q", data, 20480 + 32) == (300 * 2**20,)


def test_the_files_are_sparse(directory: LimitDirectory) -> None:
    files = create(directory)
    assert (files.directory / "usage").stat().st_blocks * 512 < 200_000
    assert (files.directory / "shm").stat().st_blocks * 512 < 100_000


@pytest.mark.parametrize(("access", "mode"), [(Access(), 0o666), (Access(owner_uid=os.geteuid()), 0o600)])
def test_the_usage_file_may_be_written_by_whom_it_is_for(directory: LimitDirectory, access: Access, mode: int) -> None:
    before = os.umask(0o077)
    try:
        files = directory.create("uid-1", "job", LIMITS, access=access, context_bytes=(0,))
    finally:
        os.umask(before)
    assert (files.directory / "usage").stat().st_mode & 0o777 == mode
    assert (files.directory / "shm").stat().st_mode & 0o777 == 0o644
    assert files.directory.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_the_usage_file_of_a_process_belongs_to_its_user(directory: LimitDirectory) -> None:
    files = directory.create("uid-1", "job", LIMITS, access=Access(owner_uid=12345), context_bytes=(0,))
    assert ((files.directory / "usage").stat().st_uid, (files.directory / "shm").stat().st_uid) == (12345, 0)


@pytest.mark.parametrize(
    ("daemon", "access", "mode"),
    [
        (0, Access(owner_uid=55), 0o600),
        (55, Access(owner_uid=55), 0o600),
        (900, Access(owner_uid=55), 0o660),
        (900, Access(), 0o666),
        (900, Access(ours=True), 0o660),
    ],
)
def test_a_daemon_that_is_not_root_keeps_a_way_into_what_it_gives_away(
    monkeypatch: pytest.MonkeyPatch, daemon: int, access: Access, mode: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: daemon)
    assert access.mode == mode


def test_what_is_published_is_what_is_read(directory: LimitDirectory) -> None:
    many = tuple(
        replace(
            DEVICE,
            uuid=f"MIG-{index}",
            host_index=index,
            vram_limit_bytes=None if index % 2 else index * GIB,
            flags=DeviceFlags.MIG,
            policy=FilePolicy.WORK_CONSERVING,
        )
        for index in range(16)
    )
    limits = LimitSet(isolation=FileIsolation.PARTITIONED, devices=many, host_memory_limit_bytes=GIB, revision=2**40)
    files = create(directory, limits=limits)
    assert files.shm.limits == limits
    assert directory.open("uid-1").shm.limits == limits


def test_publishing_flips_the_generation_and_leaves_the_old_slot(directory: LimitDirectory) -> None:
    files = create(directory)
    path = files.directory / "shm"
    before = word(path, 4096)
    old_slot = path.read_bytes()[8192 + 4160 * (before & 1) :][:4160]
    lower = replace(LIMITS, devices=(replace(DEVICE, limit_share_ppm=100_000),), revision=8)
    assert files.shm.publish(lower)
    assert word(path, 4096) == before + 1
    assert path.read_bytes()[8192 + 4160 * (before & 1) :][:4160] == old_slot
    assert files.shm.limits == lower


def test_publishing_what_is_in_force_writes_nothing(directory: LimitDirectory) -> None:
    files = create(directory)
    before = (files.directory / "shm").read_bytes()
    assert not files.shm.publish(LIMITS)
    assert (files.directory / "shm").read_bytes() == before


def test_control_words_lie_where_the_header_says(directory: LimitDirectory) -> None:
    files = create(directory)
    path, record = files.directory / "shm", 20480 + 2 * 128
    files.shm.set_correction(2, 1_100_000, 11, settled_ppm=1_200_000)
    files.shm.lend(2, 250_000, until_ms=123_456)
    files.shm.set_overhead(2, 400 * 2**20)
    files.shm.set_overhead_time(2, 22)
    files.shm.set_measured_busy(2, 33, 44)
    files.shm.freeze(2, True)
    assert [word(path, record + 8 * place) for place in range(8)] == [
        1_100_000,
        11,
        123_456 << 20 | 250_000,
        400 * 2**20,
        0,
        22,
        33,
        44,
    ]
    assert word(path, record + 64) & 0xFFFFFFFF == 1
    assert word(path, record + 104) == 1_200_000
    control = files.shm.control(2)
    assert (control.correction_ppm, control.settled_ppm) == (1_100_000, 1_200_000)
    assert (control.borrowed_ppm, control.borrowed_until_ms, control.frozen) == (250_000, 123_456, True)


def test_armed_revoked_and_heartbeat(directory: LimitDirectory) -> None:
    files = create(directory)
    assert (files.shm.state.armed, files.shm.state.revoked, files.shm.state.heartbeat_ns) == (False, False, 0)
    files.shm.arm()
    files.shm.set_revoked(True)
    files.shm.beat(99)
    state = directory.open("uid-1").shm.state
    assert (state.armed, state.revoked, state.heartbeat_ns, state.daemon_pid) == (True, True, 99, os.getpid())


def test_opening_writes_nothing(directory: LimitDirectory) -> None:
    made = create(directory).directory
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(made.iterdir())]
    directory.open("uid-1").shm.publish(LIMITS)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(made.iterdir())] == before


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


DAMAGE = {
    "truncated to nothing": (lambda path: os.truncate(path, 0), Finding.WRONG_SIZE),
    "truncated in the middle": (lambda path: os.truncate(path, 5000), Finding.WRONG_SIZE),
    "grown": (lambda path: os.truncate(path, 2**21), Finding.WRONG_SIZE),
    "no magic": (lambda path: overwrite(path, 0, bytes(8)), Finding.WRONG_HEADER),
    "other file": (lambda path: overwrite(path, 0, b"\x7fELF\2\1\1\0"), Finding.WRONG_HEADER),
    "other major": (lambda path: overwrite(path, 8, struct.pack("<H", 2)), Finding.OTHER_MAJOR),
    "other boot": (lambda path: overwrite(path, 112, b"ffffffff"), Finding.OTHER_BOOT),
    "size in header": (lambda path: overwrite(path, 16, struct.pack("<Q", 4096)), Finding.WRONG_SIZE),
    "too many sections": (lambda path: overwrite(path, 40, struct.pack("<I", 17)), Finding.WRONG_LAYOUT),
    "section outside": (lambda path: overwrite(path, 160, struct.pack("<Q", 2**62)), Finding.WRONG_LAYOUT),
    "section unaligned": (lambda path: overwrite(path, 160, struct.pack("<Q", 4097)), Finding.WRONG_LAYOUT),
    "section over header": (lambda path: overwrite(path, 160, struct.pack("<Q", 0)), Finding.WRONG_LAYOUT),
    "small stride": (lambda path: overwrite(path, 156, struct.pack("<I", 8)), Finding.WRONG_LAYOUT),
    "huge stride": (lambda path: overwrite(path, 156, struct.pack("<I", 2**32 - 8)), Finding.WRONG_LAYOUT),
    "deleted": (lambda path: path.unlink(), Finding.MISSING),
    "second name": (lambda path: os.link(path, path.with_name("other")), Finding.LINKED),
    "directory": (lambda path: (path.unlink(), path.mkdir()), Finding.NOT_REGULAR),
    "symlink": (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), Finding.NOT_REGULAR),
    "FIFO": (lambda path: (path.unlink(), os.mkfifo(path)), Finding.NOT_REGULAR),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_limit_file_is_refused_with_a_finding(directory: LimitDirectory, name: str) -> None:
    path = create(directory).directory / "shm"
    damage, finding = DAMAGE[name]
    damage(path)
    with pytest.raises(LimitFileError) as caught:
        directory.open("uid-1")
    assert caught.value.finding is finding
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_usage_file_is_a_finding_and_the_limits_stay(directory: LimitDirectory, name: str) -> None:
    path = create(directory).directory / "usage"
    damage, finding = DAMAGE[name]
    damage(path)
    files = directory.open("uid-1")
    assert files.usage is None
    assert files.finding is not None
    assert files.finding.finding is finding
    assert files.shm.limits == LIMITS


def test_a_later_minor_version_is_read_by_its_section_table(directory: LimitDirectory) -> None:
    """A file of 1.9 with its limits elsewhere, larger elements and a section that we don't know."""
    files = create(directory)
    path = files.directory / "shm"
    limits = path.read_bytes()[8192 : 8192 + 8320]
    overwrite(path, 10, struct.pack("<H", 9))
    overwrite(path, 176, struct.pack("<IIQQ", 2, 8192, 131072, 16384))
    overwrite(path, 131072, limits[:4160] + bytes(4032) + limits[4160:])
    overwrite(path, 40, struct.pack("<I", 4))
    overwrite(path, 152 + 3 * 24, struct.pack("<IIQQ", 77, 8, 65536, 8))
    overwrite(path, 8192, b"\xff" * 8320)
    adopted = directory.open("uid-1")
    assert adopted.shm.limits == LIMITS
    lower = replace(LIMITS, revision=9)
    adopted.shm.publish(lower)
    assert directory.open("uid-1").shm.limits == lower


def test_impossible_limits_are_a_finding(directory: LimitDirectory) -> None:
    path = create(directory).directory / "shm"
    for slot in (8192, 8192 + 4160):
        overwrite(path, slot, struct.pack("<I", 17))
    with pytest.raises(LimitFileError) as caught:
        _ = directory.open("uid-1").shm.limits
    assert caught.value.finding is Finding.IMPOSSIBLE


def test_a_limit_file_truncated_under_the_daemon_is_an_error_and_no_signal(directory: LimitDirectory) -> None:
    files = create(directory)
    os.truncate(files.directory / "shm", 0)
    for touch in (
        lambda: files.shm.beat(1),
        lambda: files.shm.arm(),
        lambda: files.shm.publish(LIMITS),
        lambda: files.shm.set_overhead(0, 1),
        lambda: files.shm.freeze(0, True),
        lambda: files.shm.state,
        lambda: files.shm.limits,
        lambda: files.shm.control(0),
    ):
        with pytest.raises(LimitFileError) as caught:
            touch()
        assert caught.value.finding is Finding.PAGE_LOST


def test_a_closed_file_is_an_error_and_no_crash(directory: LimitDirectory) -> None:
    files = create(directory)
    files.close()
    files.close()
    with pytest.raises(LimitFileError):
        files.shm.beat(1)


def test_creating_twice_is_refused_and_the_first_stays(directory: LimitDirectory) -> None:
    files = create(directory)
    before = (files.directory / "shm").read_bytes()
    with pytest.raises(LimitFileError) as caught:
        create(directory)
    assert caught.value.finding is Finding.EXISTS
    assert (files.directory / "shm").read_bytes() == before


@pytest.mark.parametrize("call", ["ftruncate", "posix_fallocate", "pwrite", "fchmod"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_at_any_call_leaves_nothing(
    directory: LimitDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, after: int
) -> None:
    real, calls = getattr(os, call), iter(range(100))

    def failing(*arguments: object) -> object:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, call, failing)
    if after == 2 and call in ("ftruncate", "fchmod"):
        create(directory)  # two files, so two calls; the third never comes
        return
    with pytest.raises(LimitFileError) as caught:
        create(directory)
    assert caught.value.finding is Finding.NO_SPACE
    assert list((tmp_path / "shm" / "by-uid").iterdir()) == []


def test_a_base_without_room_for_all_files_in_full_takes_no_more(
    directory: LimitDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse files that could not all grow would give tenants a SIGBUS."""
    create(directory)
    real = os.statvfs

    def small(path: Path) -> os.statvfs_result:
        values = list(real(path)[:10])
        values[0] = values[1] = 4096
        values[4] = 2 * 2**20 // 4096  # available: enough for one more, and not for what the first may still need
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", small)
    with pytest.raises(LimitFileError) as caught:
        create(directory, "uid-2")
    assert caught.value.finding is Finding.NO_SPACE
    assert directory.uids() == ("uid-1",)


def test_a_base_that_is_a_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shm").write_text("")
    with pytest.raises(LimitFileError) as caught:
        LimitDirectory(tmp_path / "shm", boot_id=BOOT, node_epoch=1).prepare()
    assert str(tmp_path / "shm") in str(caught.value)


def test_links_are_replaced_in_one_step_and_removed_by_their_owner_only(
    directory: LimitDirectory, tmp_path: Path
) -> None:
    create(directory, "uid-1")
    create(directory, "uid-2")
    place = tmp_path / "shm" / "team" / "pod"
    directory.link("team", "pod", "uid-1")
    assert (place / "shm").samefile(directory.path("uid-1") / "shm")
    directory.link("team", "pod", "uid-2")
    assert (place / "shm").samefile(directory.path("uid-2") / "shm")
    directory.unlink("team", "pod", "uid-1")  # a late release of the Pod's earlier self
    assert place.is_symlink()
    directory.unlink("team", "pod", "uid-2")
    assert not place.parent.exists()


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/etc", ".x", "a\0", "a\n", "x" * 254, "-rf"])
def test_names_that_leave_the_base_are_refused(directory: LimitDirectory, name: str) -> None:
    with pytest.raises(ValueError, match="not a usable name"):
        directory.path(name)
    with pytest.raises(ValueError, match="not a usable name"):
        directory.link(name, "pod", "uid")
    with pytest.raises(ValueError, match="not a usable name"):
        directory.link("team", name, "uid")


def test_removing_leaves_what_is_not_ours(directory: LimitDirectory) -> None:
    files = create(directory)
    (files.directory / "notes").write_text("mine")
    with pytest.raises(LimitFileError):
        directory.remove("uid-1")
    assert (files.directory / "notes").read_text() == "mine"
    directory.remove("uid-9")


def test_a_shm_file_is_never_taken_for_a_usage_file(directory: LimitDirectory) -> None:
    path = create(directory).directory
    (path / "usage").rename(path / "shm")
    with pytest.raises(LimitFileError) as caught:
        ShmFile.open(path / "shm", boot_id=BOOT)
    assert caught.value.finding is Finding.WRONG_SIZE
