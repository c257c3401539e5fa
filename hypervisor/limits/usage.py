"""The file `usage` of one allocation: what its processes account. They write it, so nothing in it is trusted.

It is opened once and then read with pread, for which a hole or an end is an answer. The two things that the daemon
changes in it, a dead process's slot and a total that is wrong, go through accessors that survive a lost page.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from hypervisor.limits._abi import ffi, lib
from hypervisor.limits.costs import CostEntry, read_costs
from hypervisor.limits.coverage import covered_ns
from hypervisor.limits.findings import Finding, LimitFileError
from hypervisor.limits.layout import HEADER_BYTES, FileKind, Header, parse_header, usage_view
from hypervisor.limits.messages import Message, newest_message, read_messages
from hypervisor.limits.shm import check_shape, open_regular

TOTAL_BYTES_BITS = 44
TOTAL_BYTES_MASK = 2**TOTAL_BYTES_BITS - 1
TOTAL_EPOCHS = 2**20
FULL_SURVEY_SECONDS = 10.0
_CHARGED_OFFSET = ffi.offsetof("struct hv_device_usage", "charged_ns")
_BRIEF_OFFSET = ffi.offsetof("struct hv_device_usage", "brief_ns")
_BRIEF_BYTES = 56  # brief_ns, laid_ns, crowd_ns, relearned_at_ns, two others, turns_ns


class SlotPhase(IntEnum):
    """enum hv_slot_phase, as far as a survey shows it."""

    CLAIMING = 1
    LIVE = 2


class RecountResult(Enum):
    """What came of a recount."""

    RIGHT = "right"
    CHANGED = "changed"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """What one process accounts on one device: bytes, and counters since it attached. Of held_bytes, context_bytes
    stand for contexts, of which given_up_bytes count no more, because the contexts are measured."""

    held_bytes: int
    in_flight_bytes: int
    context_bytes: int
    launches: int
    blocked_ns: int
    denials: int
    charged_ns: int
    unfinished_ns: int = 0  # charged work that was not seen to end
    given_up_bytes: int = 0
    contexts_word: int | None = None  # by which context_bytes can be given up; None: not now

    @property
    def counted_bytes(self) -> int:
        """What is in the total for this process."""
        return max(0, self.held_bytes - self.given_up_bytes)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that is not free. pid is as the process sees itself, in its PID namespace (an inode number)."""

    number: int
    state: int
    owner: int
    phase: SlotPhase
    pid_namespace: int
    pid: int
    start_time_ticks: int
    host_bytes: int
    devices: tuple[SlotDevice, ...]
    told_host_pid: int = 0  # as the daemon told it; 0 before


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """The words of one device that all processes share. total_word holds the bytes and a count of their changes;
    bucket_ns is the time (CLOCK_MONOTONIC) up to which GPU time is used up, debt_ns what was used beyond charges."""

    total_word: int
    total_bytes: int
    peak_bytes: int
    charged_ns: int
    bucket_ns: int = 0
    debt_ns: int = 0

    def changes_since(self, total_word: int) -> int:
        """How often the total has changed since it was this word."""
        return ((self.total_word >> TOTAL_BYTES_BITS) - (total_word >> TOTAL_BYTES_BITS)) % TOTAL_EPOCHS


@dataclass(frozen=True, slots=True)
class WorkAccount:
    """GPU time since the file was made: of brief launches, as charged; of long ones, as laid on the line of moments;
    and of these each moment times the processes that had work then. relearned_at_ns: when work was last found to
    be other than it was charged for; the limiter's word. turns_ns: of long launches what others' turns, as they were
    told, left to each process, over all processes."""

    brief_ns: int
    laid_ns: int
    crowd_ns: int
    relearned_at_ns: int = 0
    turns_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSurvey:
    """What the file said at one moment (CLOCK_MONOTONIC in seconds); slots ordered by number."""

    at: float
    devices: tuple[DeviceAccount, ...]
    host_bytes: int
    slots: tuple[Slot, ...]


def new_survey_buffer() -> Any:
    """Room for one survey of any file; half a MiB, so callers keep one and lend it."""
    return ffi.new("struct hv_usage_survey *")


class UsageFile:
    """An open file of usage. LimitFileError from any method means that it was tampered with or can't be read."""

    def __init__(self, path: Path, descriptor: int, header: Header, header_bytes: bytes) -> None:
        self._path = path
        self._name = str(path)  # asked about each second, and a Path takes its time
        self._descriptor = descriptor
        self._view = usage_view(header)
        self._header_bytes = header_bytes
        found = os.fstat(descriptor)
        self._inode = (found.st_dev, found.st_ino)
        self._states = ffi.new("uint64_t[512]")
        self._touched: set[int] = set()  # devices whose record was seen to hold something
        self._accounts: dict[int, tuple[bytes, DeviceAccount]] = {}  # as last read, with the bytes of the record
        self._full_survey_at = float("-inf")
        self._messages_offset = header.sections[lib.HV_SECTION_MESSAGES].offset
        self._costs_offset = header.sections[lib.HV_SECTION_COSTS].offset
        coverage = header.sections.get(lib.HV_SECTION_COVERAGE)
        self._coverage_offset = coverage.offset if coverage is not None else None
        self._next_message = 0
        self._last_message = 0
        self.identity = header.identity

    @classmethod
    def open(cls, path: Path, *, boot_id: str) -> UsageFile:
        """Open an existing file. Raises LimitFileError that says why it can't be used."""
        descriptor = open_regular(path, FileKind.USAGE)
        try:
            data = os.pread(descriptor, HEADER_BYTES, 0)
            return cls(path, descriptor, parse_header(FileKind.USAGE, data, boot_id=boot_id, path=str(path)), data)
        except OSError as error:
            os.close(descriptor)
            raise LimitFileError(Finding.UNREADABLE, f"{path} can't be read: {error.strerror}") from error
        except LimitFileError:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Close the descriptor; the object is of no use afterwards."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def inode(self) -> tuple[int, int]:
        """(device, inode) of the file that was opened, wherever its name leads by now."""
        return self._inode

    def survey(self, buffer: Any, *, device_count: int) -> UsageSurvey:
        """Check the file and read what it says of the first device_count devices.

        Raises LimitFileError when it was truncated, grown, punched, replaced, deleted, or holds what no limiter
        writes. Never blocks, whatever the file holds.
        """
        self._check_shape()
        now = time.monotonic()
        full = now - self._full_survey_at >= FULL_SURVEY_SECONDS
        if full:
            self._full_survey_at = now
        result = lib.hv_usage_survey(self._descriptor, self._view, int(full), self._states, buffer)
        if result == 1:
            raise LimitFileError(Finding.WRONG_SIZE, f"{self._path} was truncated while it was read")
        if result != 0:
            raise LimitFileError(Finding.UNREADABLE, f"{self._path} can't be read: {os.strerror(ffi.errno)}")
        if buffer.backward_count:
            raise LimitFileError(
                Finding.PUNCHED, f"{self._path} was punched or overwritten: process slots went back in their life"
            )
        if buffer.hidden_count:
            raise LimitFileError(
                Finding.IMPOSSIBLE, f"{self._path} hides {buffer.hidden_count} used process slots from the recount"
            )
        return UsageSurvey(
            at=now,
            devices=tuple(self._device(buffer, index) for index in range(device_count)),
            host_bytes=int(buffer.devices[0].host_bytes) & TOTAL_BYTES_MASK,
            slots=tuple(self._slot(buffer, index, device_count) for index in range(buffer.slot_count)),
        )

    def charged_ns(self, device: int) -> int:
        """GPU time charged on a device since the file was made; one small read, for every control step."""
        return self._word(self._view.devices_offset + device * self._view.device_stride + _CHARGED_OFFSET)

    def work(self, device: int) -> WorkAccount | None:
        """What was done on a device since the file was made; None where the limiter does not tell it so."""
        if self._coverage_offset is None:
            return None
        data = self._bytes(self._view.devices_offset + device * self._view.device_stride + _BRIEF_OFFSET, _BRIEF_BYTES)
        brief, laid, crowd, relearned_at, turns = struct.unpack("<4Q16xQ", data)
        # Where all launches are long, none may be left; less than none was not counted by a limiter.
        return WorkAccount(brief, laid, crowd, relearned_at, turns) if (brief or laid) and brief < 2**63 else None

    def covered_ns(self, device: int, begin_ns: int, end_ns: int) -> int:
        """How long of this time (CLOCK_MONOTONIC) a long launch was under way, as far as it was told by now."""
        if self._descriptor < 0 or self._coverage_offset is None:
            return 0
        try:
            return covered_ns(self._descriptor, self._coverage_offset, device, begin_ns, end_ns)
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{self._path} can't be read: {error.strerror}") from error

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._bytes(offset, 8), "little")

    def _bytes(self, offset: int, count: int) -> bytes:
        if self._descriptor < 0:
            raise LimitFileError(Finding.MISSING, f"{self._path} is closed")
        try:
            data = os.pread(self._descriptor, count, offset)
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{self._path} can't be read: {error.strerror}") from error
        if len(data) != count:
            raise LimitFileError(Finding.WRONG_SIZE, f"{self._path} was truncated")
        return data

    def top_costs(self, device: int, most: int) -> tuple[CostEntry, ...]:
        """The functions that were charged most on a device, largest first."""
        return read_costs(self._descriptor, self._costs_offset, device=device, most=most)

    def new_messages(self) -> tuple[Message, ...]:
        """What the limiter has said since the last call, in order; after the first open of a file that others have
        read before, see skip_messages."""
        if self._descriptor < 0 or newest_message(self._descriptor, self._messages_offset) == self._next_message:
            return ()
        self._next_message = newest_message(self._descriptor, self._messages_offset)
        found = read_messages(self._descriptor, self._messages_offset, after=self._last_message)
        self._last_message = max((message.sequence for message in found), default=self._last_message)
        return found

    def skip_messages(self) -> None:
        """What is in the ring by now was told by an earlier daemon."""
        self._next_message = newest_message(self._descriptor, self._messages_offset)
        self._last_message = max(self._next_message - 1, 0)

    def return_slot(self, slot: Slot, *, own_identity: int) -> bool:
        """Return the slot of a process that is dead; False when somebody else was faster.

        own_identity is the daemon's own owner word (PID namespace and pid), for a slot that was being claimed.
        """
        with self._mapped() as base:
            result = lib.hv_usage_return_slot(base, self._view, slot.number, slot.state, slot.owner, own_identity)
        return bool(self._whole(result))

    def tell_host_pid(self, slot: Slot, host_pid: int) -> None:
        """Let the Pod know which pid of the host a process of another PID namespace has; for its view only."""
        with self._mapped() as base:
            self._whole(lib.hv_usage_tell_host_pid(base, self._view, slot.number, slot.state, host_pid))

    def give_up_context(self, slot: Slot, device: int) -> bool:
        """Let what stands for the contexts of a process on a device count no more: they are measured, and entered as
        overhead. False when the process has changed it since the survey that `slot` is of; else a recount is due."""
        found = slot.devices[device]
        if found.contexts_word is None:
            return False
        with self._mapped() as base:
            return bool(
                self._whole(
                    lib.hv_usage_give_up(
                        base, self._view, slot.number, device, found.contexts_word, found.context_bytes
                    )
                )
            )

    def recount(self, account: int) -> tuple[RecountResult, int, int]:
        """Make the total of a device what its live slots hold; the outcome, bytes before and after.

        An account of HV_MAX_DEVICES is pinned host memory.
        """
        before, after = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        with self._mapped() as base:
            result = self._whole(lib.hv_usage_recount(base, self._view, account, before, after))
        outcome = {
            lib.HV_RECOUNT_WAS_RIGHT: RecountResult.RIGHT,
            lib.HV_RECOUNT_CHANGED: RecountResult.CHANGED,
            lib.HV_RECOUNT_BUSY: RecountResult.BUSY,
        }[result]
        return outcome, int(before[0]), int(after[0])

    def _check_shape(self) -> None:
        """Is the file behind the descriptor still whole, and still the one at the path?"""
        if self._descriptor < 0:
            raise LimitFileError(Finding.MISSING, f"{self._path} is closed")
        try:
            found = os.lstat(self._name)
        except OSError as error:
            raise LimitFileError(Finding.MISSING, f"{self._path} was deleted or renamed: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._inode:
            raise LimitFileError(Finding.REPLACED, f"{self._path} was replaced by another file")
        check_shape(os.fstat(self._descriptor), FileKind.USAGE, str(self._path))
        try:
            header = os.pread(self._descriptor, HEADER_BYTES, 0)
        except OSError as error:
            raise LimitFileError(Finding.UNREADABLE, f"{self._path} can't be read: {error.strerror}") from error
        if header != self._header_bytes:
            what = "was punched: its header is gone" if not any(header) else "had its header overwritten"
            raise LimitFileError(Finding.WRONG_HEADER, f"{self._path} {what}")

    def _device(self, buffer: Any, index: int) -> DeviceAccount:
        found = buffer.devices[index]
        # Most records are, most of the time, what they were: then the account is the one from before.
        raw = bytes(ffi.buffer(ffi.addressof(found)))
        before = self._accounts.get(index)
        if before is not None and before[0] == raw:
            return before[1]
        account = self._account(found, index)
        self._accounts[index] = (raw, account)
        return account

    def _account(self, found: Any, index: int) -> DeviceAccount:
        # Once used, a record is never all zero again: its peak and the count of changes in its total stay.
        if found.total or found.peak_bytes or found.bucket_ns or found.charged_ns:
            self._touched.add(index)
        elif index in self._touched:
            raise LimitFileError(Finding.PUNCHED, f"{self._path} was punched: the account of device {index} is gone")
        return DeviceAccount(
            int(found.total),
            int(found.total) & TOTAL_BYTES_MASK,
            int(found.peak_bytes),
            int(found.charged_ns),
            int(found.bucket_ns),
            int(found.debt_ns),
        )

    def _slot(self, buffer: Any, index: int, device_count: int) -> Slot:
        number, found = int(buffer.slot_numbers[index]), buffer.slots[index]
        phase = int(found.state) & 0xFF
        if phase > SlotPhase.LIVE:
            raise LimitFileError(Finding.IMPOSSIBLE, f"{self._path} has a process slot {number} in phase {phase}")
        live = phase == SlotPhase.LIVE
        if live and not int(found.owner) & 0xFFFFFFFF:
            raise LimitFileError(Finding.IMPOSSIBLE, f"{self._path} has a live process slot {number} without a pid")
        state, words = int(found.state), buffer.contexts[index].words
        devices = (
            tuple(
                self._slot_device(found.devices[device], number, state, words[device]) for device in range(device_count)
            )
            if live
            else ()
        )
        return Slot(
            number=number,
            state=state,
            owner=int(found.owner),
            phase=SlotPhase(phase),
            pid_namespace=int(found.owner) >> 32,
            pid=int(found.owner) & 0xFFFFFFFF,
            # While a slot is being claimed this word may still be the one of the owner before.
            start_time_ticks=int(found.start_time) if live else 0,
            host_bytes=int(found.host_bytes) if live else 0,
            told_host_pid=int(found.host_pid) if live else 0,
            devices=devices,
        )

    def _slot_device(self, found: Any, number: int, state: int, word: int) -> SlotDevice:
        if max(found.bytes, found.in_flight_bytes, found.context_bytes) > TOTAL_BYTES_MASK:
            raise LimitFileError(
                Finding.IMPOSSIBLE, f"{self._path} has a process slot {number} that holds more than any device has"
            )
        return SlotDevice(
            held_bytes=int(found.bytes),
            in_flight_bytes=int(found.in_flight_bytes),
            context_bytes=int(found.context_bytes),
            launches=int(found.launches),
            blocked_ns=int(found.blocked_ns),
            denials=int(found.denials),
            charged_ns=int(found.charged_ns),
            unfinished_ns=int(found.unfinished_ns),
            given_up_bytes=int(lib.hv_usage_given_up(word, state)),
            contexts_word=word if lib.hv_usage_can_give_up(word, state) else None,
        )

    def _mapped(self) -> _Mapping:
        self._check_shape()
        return _Mapping(self._descriptor, self._path)

    def _whole(self, result: int) -> int:
        if result < 0:
            raise LimitFileError(Finding.PAGE_LOST, f"{self._path} was truncated while a total was set right")
        return result


class _Mapping:
    """The file as shared memory, for the time of one change: it is rare, and a mapping costs address space."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._base = lib.hv_map_file(descriptor, FileKind.USAGE.file_bytes)
        if self._base == ffi.NULL:
            raise LimitFileError(Finding.UNREADABLE, f"{path} can't be mapped: {os.strerror(ffi.errno)}")

    def __enter__(self) -> Any:
        return self._base

    def __exit__(self, *_: object) -> None:
        lib.hv_unmap_file(self._base, FileKind.USAGE.file_bytes)
