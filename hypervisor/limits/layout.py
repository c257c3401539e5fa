"""Where things lie in the limit files: makes headers, and reads those of others by their section table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypervisor.limits._abi import ffi, lib
from hypervisor.limits.findings import Finding, LimitFileError

PAGE_BYTES = 4096
# Not between the cffi markers of the header, because cffi has no UINT64_C: "HVLIMIT1" and "HVUSAGE1" in memory order.
_MAGIC = {"shm": b"HVLIMIT1", "usage": b"HVUSAGE1"}
MAGIC_BYTES = 8


class FileKind(Enum):
    """The two files of an allocation; the value is the name in its directory."""

    SHM = "shm"
    USAGE = "usage"

    @property
    def file_bytes(self) -> int:
        return int(lib.HV_SHM_FILE_BYTES if self is FileKind.SHM else lib.HV_USAGE_FILE_BYTES)

    @property
    def magic(self) -> bytes:
        return _MAGIC[self.value]


@dataclass(frozen=True, slots=True)
class Section:
    """One section: where it lies, how long it is and how far its elements are apart, in bytes."""

    offset: int
    length: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a header says of its file. allocation_id names the allocation, boot_id the boot that made the file."""

    allocation_id: str
    boot_id: str
    node_epoch: int
    created_at_ns: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was checked."""

    identity: Identity
    sections: Mapping[int, Section]


def _sections_of(kind: FileKind) -> dict[int, tuple[int, str, int]]:
    """By section type: offset, type of an element, number of elements. Offsets are those of ABI 1.1."""
    if kind is FileKind.SHM:
        return {
            lib.HV_SECTION_STATE: (4096, "struct hv_state", 1),
            lib.HV_SECTION_LIMITS: (8192, "struct hv_limits", 2),
            lib.HV_SECTION_CONTROL: (20480, "struct hv_device_control", lib.HV_MAX_DEVICES),
        }
    return {
        lib.HV_SECTION_DEVICES: (4096, "struct hv_device_usage", lib.HV_MAX_DEVICES),
        lib.HV_SECTION_OCCUPANCY: (8192, "struct hv_slot_occupancy", 1),
        lib.HV_SECTION_MESSAGES: (12288, "struct hv_message_ring", 1),
        lib.HV_SECTION_COSTS: (32768, "struct hv_learned_cost", lib.HV_LEARNED_COSTS),
        lib.HV_SECTION_SLOTS: (163840, "struct hv_process_slot", lib.HV_PROCESS_SLOTS),
        lib.HV_SECTION_COVERAGE: (720896, "struct hv_coverage", lib.HV_MAX_DEVICES),
        lib.HV_SECTION_CONTEXTS: (786432, "struct hv_slot_contexts", lib.HV_PROCESS_SLOTS),
    }


# Sections that files of earlier daemons do not have; processes do without them.
_SINCE_LATER = frozenset({lib.HV_SECTION_COVERAGE, lib.HV_SECTION_CONTEXTS})


def make_header(kind: FileKind, identity: Identity) -> bytes:
    """The header of a new file, complete with its magic."""
    header = ffi.new("struct hv_file_header *")
    header.magic = int.from_bytes(kind.magic, "little")
    header.abi_major = lib.HV_ABI_MAJOR
    header.abi_minor = lib.HV_ABI_MINOR
    header.header_bytes = ffi.sizeof("struct hv_file_header")
    header.file_bytes = kind.file_bytes
    header.created_at_ns = identity.created_at_ns
    header.node_epoch = identity.node_epoch
    header.allocation_id = identity.allocation_id.encode("ascii")
    header.boot_id = identity.boot_id.encode("ascii")
    sections = _sections_of(kind)
    header.section_count = len(sections)
    for entry, (number, (offset, element, count)) in zip(header.sections, sections.items(), strict=False):
        entry.type = number
        entry.stride = ffi.sizeof(element)
        entry.offset = offset
        entry.length = ffi.sizeof(element) * count
    return bytes(ffi.buffer(header))


HEADER_BYTES = int(ffi.sizeof("struct hv_file_header"))


def parse_header(kind: FileKind, data: bytes, *, boot_id: str, path: str) -> Header:
    """The header of a file, checked; sections of unknown type are left out.

    Raises LimitFileError when it is of another kind, major version or boot, or when a section does not fit.
    """
    if len(data) < HEADER_BYTES:
        raise LimitFileError(Finding.WRONG_SIZE, f"{path} ends inside its header, after {len(data)} bytes")
    header = ffi.from_buffer("struct hv_file_header *", data)
    if data[:MAGIC_BYTES] != kind.magic:
        what = "was never finished or has been zeroed" if not any(data[:MAGIC_BYTES]) else "is not a limit file"
        raise LimitFileError(Finding.WRONG_HEADER, f"{path} {what}: its first bytes are {data[:MAGIC_BYTES].hex()}")
    if header.abi_major != lib.HV_ABI_MAJOR:
        raise LimitFileError(
            Finding.OTHER_MAJOR,
            f"{path} has layout version {header.abi_major}.{header.abi_minor}; this daemon knows {lib.HV_ABI_MAJOR}.x",
        )
    if header.file_bytes != kind.file_bytes:
        raise LimitFileError(
            Finding.WRONG_SIZE, f"{path} says of itself that it has {header.file_bytes} bytes, not {kind.file_bytes}"
        )
    identity = Identity(
        allocation_id=_text(header.allocation_id),
        boot_id=_text(header.boot_id),
        node_epoch=int(header.node_epoch),
        created_at_ns=int(header.created_at_ns),
    )
    if identity.boot_id != boot_id:
        raise LimitFileError(Finding.OTHER_BOOT, f"{path} was made in another boot, {identity.boot_id or 'unnamed'}")
    return Header(identity, _checked_sections(kind, header, path))


def _checked_sections(kind: FileKind, header: Any, path: str) -> dict[int, Section]:
    if header.section_count > lib.HV_MAX_SECTIONS:
        raise LimitFileError(Finding.WRONG_LAYOUT, f"{path} claims {header.section_count} sections")
    found = {
        int(entry.type): Section(int(entry.offset), int(entry.length), int(entry.stride))
        for entry in header.sections[0 : header.section_count]
    }
    known: dict[int, Section] = {}
    for number, (_, element, count) in _sections_of(kind).items():
        section = found.get(number)
        if section is None and number in _SINCE_LATER:
            continue
        size = int(ffi.sizeof(element))
        if (
            section is None
            or section.stride < size
            or section.stride % 8
            or section.stride > kind.file_bytes
            or section.offset % PAGE_BYTES
            or section.offset < HEADER_BYTES
            or section.length < section.stride * count
            or section.offset + section.length > kind.file_bytes
        ):
            raise LimitFileError(Finding.WRONG_LAYOUT, f"{path} has no usable section {number}: {section}")
        known[number] = section
    return known


def _text(field: Any) -> str:
    """A NUL-terminated text of a header; what is not ASCII is shown escaped."""
    return bytes(ffi.buffer(field)).split(b"\0", 1)[0].decode("ascii", "backslashreplace")


def shm_view(header: Header, base: Any) -> Any:
    """A struct hv_shm_view for a mapping at `base`."""
    view = ffi.new("struct hv_shm_view *")
    limits, control = header.sections[lib.HV_SECTION_LIMITS], header.sections[lib.HV_SECTION_CONTROL]
    view.base = base
    view.file_bytes = FileKind.SHM.file_bytes
    view.state_offset = header.sections[lib.HV_SECTION_STATE].offset
    view.limits_offset, view.limits_stride = limits.offset, limits.stride
    view.control_offset, view.control_stride = control.offset, control.stride
    return view


def usage_view(header: Header) -> Any:
    """A struct hv_usage_view."""
    view = ffi.new("struct hv_usage_view *")
    devices, slots = header.sections[lib.HV_SECTION_DEVICES], header.sections[lib.HV_SECTION_SLOTS]
    view.file_bytes = FileKind.USAGE.file_bytes
    view.devices_offset, view.device_stride = devices.offset, devices.stride
    view.occupancy_offset = header.sections[lib.HV_SECTION_OCCUPANCY].offset
    view.slots_offset, view.slot_stride = slots.offset, slots.stride
    contexts = header.sections.get(lib.HV_SECTION_CONTEXTS)
    if contexts is not None:
        view.contexts_offset, view.contexts_stride = contexts.offset, contexts.stride
    return view
