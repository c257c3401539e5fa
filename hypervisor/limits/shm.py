"""The file `shm` of one allocation: what its processes may have. Only the daemon writes it."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypervisor.limits._abi import ffi, lib
from hypervisor.limits.findings import Finding, LimitFileError
from hypervisor.limits.layout import HEADER_BYTES, FileKind, Identity, parse_header, shm_view
from hypervisor.limits.limitset import LimitSet, decode, encode

MAX_BORROWED_PPM = 2**20 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmState:
    """The words of the file that change."""

    generation: int
    heartbeat_ns: int
    daemon_pid: int
    armed: bool
    revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceControl:
    """The control record of one device. Times are CLOCK_MONOTONIC in nanoseconds, 0 for never."""

    correction_ppm: int
    correction_at_ns: int
    settled_ppm: int
    others_ppm: int
    left_ppm: int
    neighbours: int
    neighbours_until_ms: int
    borrowed_ppm: int
    borrowed_until_ms: int
    contracted_ppm: int
    contracted_until_ms: int
    overhead_bytes: int
    overhead_at_ns: int
    context_bytes: int
    measured_busy_ns: int
    measured_at_ns: int
    frozen: bool


class ShmFile:
    """An open file of limits. Every method raises LimitFileError (PAGE_LOST) when the file was truncated under us."""

    def __init__(self, path: Path, view: Any, identity: Identity, inode: tuple[int, int]) -> None:
        self._path = path
        self._view = view
        self.identity = identity
        self.inode = inode  # (device, inode)

    @classmethod
    def open(cls, path: Path, *, boot_id: str) -> ShmFile:
        """Map an existing file; writes nothing. Raises LimitFileError that says why it can't be used."""
        descriptor = open_regular(path, FileKind.SHM)
        try:
            header = parse_header(FileKind.SHM, os.pread(descriptor, HEADER_BYTES, 0), boot_id=boot_id, path=str(path))
            found = os.fstat(descriptor)
            base = lib.hv_map_file(descriptor, FileKind.SHM.file_bytes)
            if base == ffi.NULL:
                raise LimitFileError(Finding.UNREADABLE, f"{path} can't be mapped: {os.strerror(ffi.errno)}")
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{path} can't be read: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return cls(path, shm_view(header, base), header.identity, (found.st_dev, found.st_ino))

    def close(self) -> None:
        """Unmap the file; the object is of no use afterwards."""
        if self._view.base != ffi.NULL:
            lib.hv_unmap_file(self._view.base, self._view.file_bytes)
            self._view.base = ffi.NULL

    @property
    def state(self) -> ShmState:
        state = ffi.new("struct hv_state *")
        self._done(lib.hv_shm_read_state(self._mapped, state))
        return ShmState(
            generation=int(state.generation),
            heartbeat_ns=int(state.heartbeat_ns),
            daemon_pid=int(state.daemon_pid),
            armed=bool(state.armed),
            revoked=bool(state.revoked),
        )

    @property
    def limits(self) -> LimitSet:
        """The limits in force. Raises LimitFileError (IMPOSSIBLE) when the slot in force holds no limits."""
        try:
            return decode(self._limits())
        except (ValueError, UnicodeDecodeError) as error:
            raise LimitFileError(Finding.IMPOSSIBLE, f"{self._path} holds no limits: {error}") from error

    def publish(self, limits: LimitSet) -> bool:
        """Put limits in force; False when the very same ones are in force already, and then nothing is written."""
        now = self._limits()
        # The time of the last change is no part of the comparison: it is taken over.
        wanted = encode(limits, updated_at_ns=int(now.updated_at_ns))
        if bytes(ffi.buffer(wanted)) == bytes(ffi.buffer(now)):
            return False
        wanted.updated_at_ns = time.monotonic_ns()
        generation = ffi.new("uint64_t *")
        self._done(lib.hv_shm_publish(self._mapped, wanted, generation))
        return True

    def arm(self) -> None:
        """Say that the limits are complete; until then processes wait at their first call."""
        self._done(lib.hv_shm_arm(self._mapped))

    def set_revoked(self, revoked: bool) -> None:  # noqa: FBT001 - it is the value of a flag
        """Refuse new memory while the last limits hold, or take that back."""
        self._done(lib.hv_shm_set_revoked(self._mapped, int(revoked)))

    def beat(self, now_ns: int) -> None:
        """Leave a sign of life."""
        self._done(lib.hv_shm_beat(self._mapped, now_ns, os.getpid()))

    def control(self, device: int) -> DeviceControl:
        """The control record of the device at this place of the limits."""
        found = ffi.new("struct hv_device_control *")
        self._done(lib.hv_shm_read_control(self._mapped, _checked(device), found))
        return DeviceControl(
            correction_ppm=int(found.correction_ppm),
            correction_at_ns=int(found.correction_at_ns),
            settled_ppm=int(found.settled_ppm),
            others_ppm=int(found.others_ppm),
            left_ppm=int(found.left_ppm),
            neighbours=int(found.neighbours) & MAX_BORROWED_PPM,
            neighbours_until_ms=int(found.neighbours) >> lib.HV_BORROWED_SHARE_BITS,
            borrowed_ppm=int(found.borrowed) & MAX_BORROWED_PPM,
            borrowed_until_ms=int(found.borrowed) >> lib.HV_BORROWED_SHARE_BITS,
            contracted_ppm=int(found.contracted) & MAX_BORROWED_PPM,
            contracted_until_ms=int(found.contracted) >> lib.HV_BORROWED_SHARE_BITS,
            overhead_bytes=int(found.overhead_bytes),
            overhead_at_ns=int(found.overhead_at_ns),
            context_bytes=int(found.context_bytes),
            measured_busy_ns=int(found.measured_busy_ns),
            measured_at_ns=int(found.measured_at_ns),
            frozen=bool(found.freeze),
        )

    def set_correction(self, device: int, ppm: int, now_ns: int, *, settled_ppm: int = 0) -> None:
        """Multiply learned costs by ppm / 1 000 000 from now on, and by settled_ppm / 1 000 000 once nothing more is
        said (0: by the same)."""
        self._store(device, lib.HV_CONTROL_SETTLED_PPM, settled_ppm)
        self._store(device, lib.HV_CONTROL_CORRECTION_PPM, ppm)
        self._store(device, lib.HV_CONTROL_CORRECTION_AT, now_ns)

    def set_others(self, device: int, turns: float) -> None:
        """How many turns others have on the device for one of a process of this allocation."""
        self._store(device, lib.HV_CONTROL_OTHERS_PPM, round(turns * 1_000_000))

    def set_left(self, device: int, ratio: float) -> None:
        """What turns left of long launches, as they were told, has to be multiplied by this to be what they had."""
        self._store(device, lib.HV_CONTROL_LEFT_PPM, round(ratio * 1_000_000))

    def set_neighbours(self, device: int, count: int, until_ms: int) -> None:
        """How many processes of others are at work on the device; holds until this time, as of lend()."""
        self._store(device, lib.HV_CONTROL_NEIGHBOURS, until_ms << lib.HV_BORROWED_SHARE_BITS | count)

    def lend(self, device: int, share_ppm: int, until_ms: int) -> None:
        """Lend a share on top of the limit until this time of CLOCK_MONOTONIC in milliseconds; one store."""
        share = min(max(share_ppm, 0), MAX_BORROWED_PPM)
        self._store(device, lib.HV_CONTROL_BORROWED, until_ms << lib.HV_BORROWED_SHARE_BITS | share)

    def contract(self, device: int, share_ppm: int, until_ms: int) -> None:
        """Put this share in force instead of a higher limit until this time of CLOCK_MONOTONIC in milliseconds."""
        share = min(max(share_ppm, 1), MAX_BORROWED_PPM)
        self._store(device, lib.HV_CONTROL_CONTRACTED, until_ms << lib.HV_BORROWED_SHARE_BITS | share)

    def announce(self) -> None:
        """Make every process look at its limits anew with its next launch, also one that is not limited."""
        generation = ffi.new("uint64_t *")
        self._done(lib.hv_shm_publish(self._mapped, self._limits(), generation))

    def set_overhead(self, device: int, overhead_bytes: int) -> None:
        """What contexts and modules of all processes hold; it counts against the limit."""
        self._store(device, lib.HV_CONTROL_OVERHEAD_BYTES, overhead_bytes)

    def set_overhead_time(self, device: int, now_ns: int) -> None:
        """Contexts made before this time are in the overhead, so what processes hold in their stead is given up."""
        self._store(device, lib.HV_CONTROL_OVERHEAD_AT, now_ns)

    def set_context(self, device: int, context_bytes: int) -> None:
        """What a new context is taken to need until it is measured."""
        self._store(device, lib.HV_CONTROL_CONTEXT_BYTES, context_bytes)

    def set_measured_busy(self, device: int, busy_ns: int, now_ns: int) -> None:
        """GPU time that the driver attributes to the allocation, ever increasing."""
        self._store(device, lib.HV_CONTROL_MEASURED_BUSY, busy_ns)
        self._store(device, lib.HV_CONTROL_MEASURED_AT, now_ns)

    def freeze(self, device: int, frozen: bool) -> None:  # noqa: FBT001 - it is the value of a flag
        """Hold all launches on a device, or let them go."""
        self._done(lib.hv_shm_freeze(self._mapped, _checked(device), int(frozen)))

    @property
    def _mapped(self) -> Any:
        if self._view.base == ffi.NULL:
            raise LimitFileError(Finding.MISSING, f"{self._path} is closed")
        return self._view

    def _limits(self) -> Any:
        found, generation = ffi.new("struct hv_limits *"), ffi.new("uint64_t *")
        self._done(lib.hv_shm_read_limits(self._mapped, found, generation))
        return found

    def _store(self, device: int, word: int, value: int) -> None:
        self._done(lib.hv_shm_control(self._mapped, _checked(device), word, value))

    def _done(self, result: int) -> None:
        if result != 0:
            raise LimitFileError(Finding.PAGE_LOST, f"{self._path} was truncated or punched")


def _checked(device: int) -> int:
    if not 0 <= device < lib.HV_MAX_DEVICES:
        raise ValueError(f"device {device} is not one of {lib.HV_MAX_DEVICES}")
    return device


def open_regular(path: Path, kind: FileKind) -> int:
    """A descriptor for reading and writing; raises LimitFileError unless it is a regular file of one link and the
    right size. No symlink is followed, and a FIFO in its place does not block."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise LimitFileError(Finding.MISSING, f"{path} is not there") from error
    except OSError as error:
        finding = Finding.NOT_REGULAR if path.is_symlink() or path.exists() else Finding.UNREADABLE
        raise LimitFileError(finding, f"{path} can't be opened as a file: {error.strerror}") from error
    try:
        check_shape(os.fstat(descriptor), kind, str(path))
    except LimitFileError:
        os.close(descriptor)
        raise
    return descriptor


def check_shape(found: os.stat_result, kind: FileKind, path: str) -> None:
    """Raises LimitFileError unless this is a regular file of one link and the right size."""
    if not stat.S_ISREG(found.st_mode):
        raise LimitFileError(Finding.NOT_REGULAR, f"{path} is not a regular file")
    if found.st_nlink != 1:
        what = "was deleted" if found.st_nlink == 0 else f"has {found.st_nlink} names"
        raise LimitFileError(Finding.LINKED if found.st_nlink else Finding.MISSING, f"{path} {what}")
    if found.st_size != kind.file_bytes:
        what = "truncated" if found.st_size < kind.file_bytes else "grown"
        raise LimitFileError(
            Finding.WRONG_SIZE, f"{path} was {what}: it has {found.st_size} bytes and must have {kind.file_bytes}"
        )
