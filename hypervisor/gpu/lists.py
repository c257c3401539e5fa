"""NVML's lists, called without nvidia-ml-py's wrappers.

The wrappers fail when a list grows between the sizing call and the call, turn an empty list of samples into an error
without a code, and lack the oldest version. The layouts are those of the driver's binary interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, NOT_FOUND, SUCCESS, UNREADABLE
from hypervisor.gpu.wire import Answer, CardSample, Process, Sample

MEMORY_UNKNOWN = 2**64 - 1  # what NVML says where it can't attribute memory
ATTEMPTS = 5  # a list that grows faster than this is told as an error

GPU_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
CARD_SAMPLES = 256  # room for more than the driver keeps

# Newest first; a version is left for good only when the one below it makes sense of the same list.
PROCESS_LIST_VERSIONS = ("_v3", "_v2", "")


class _ProcessV1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))


class _ProcessV2(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class _CardSample(ctypes.Structure):
    _fields_ = (
        ("time_us", ctypes.c_ulonglong),
        ("value", ctypes.c_uint),  # the first half of a union, of which samples of utilisation have this member
        ("_", ctypes.c_uint),
    )


def read_processes(library: ctypes.CDLL, handle: Any, kind: str, version: str) -> Answer[list[Process]]:
    """One process list (kind: Compute, Graphics or MPSCompute) in one version ("_v3", "_v2" or "")."""
    function = getattr(library, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
    if function is None:
        return Answer(None, FUNCTION_NOT_FOUND)
    layout: Any = _ProcessV2 if version else _ProcessV1
    found = _grow(layout, lambda count, room: function(handle, count, room))
    if found.value is None:
        return Answer(None, found.code)
    return Answer(
        [Process(entry.pid, None if entry.memory == MEMORY_UNKNOWN else entry.memory) for entry in found.value]
    )


def read_samples(library: ctypes.CDLL, handle: Any, since_us: int) -> Answer[list[Sample]]:
    """Utilisation samples of processes after a time; empty when there is nothing new."""
    function = getattr(library, "nvmlDeviceGetProcessUtilization", None)
    if function is None:
        return Answer(None, FUNCTION_NOT_FOUND)
    since = ctypes.c_ulonglong(since_us)
    found = _grow(_Sample, lambda count, room: function(handle, room, count, since))
    if found.code == NOT_FOUND:
        return Answer([])
    if found.value is None:
        return Answer(None, found.code)
    return Answer([Sample(entry.pid, entry.time_us, entry.sm) for entry in found.value])


def read_card_samples(library: ctypes.CDLL, handle: Any, since_us: int) -> Answer[list[CardSample]]:
    """Utilisation samples of a card as a whole after a time: as many as fit, for what is asked for is the first of
    them. One call, which needs not ask for their number."""
    function = getattr(library, "nvmlDeviceGetSamples", None)
    if function is None:
        return Answer(None, FUNCTION_NOT_FOUND)
    kind, count = ctypes.c_uint(), ctypes.c_uint(CARD_SAMPLES)
    room = (_CardSample * CARD_SAMPLES)()
    since = ctypes.c_ulonglong(since_us)
    code = function(handle, ctypes.c_uint(GPU_UTILIZATION), since, ctypes.byref(kind), ctypes.byref(count), room)
    if code == NOT_FOUND:
        return Answer([])
    if code != SUCCESS:
        return Answer(None, code)
    if kind.value != UNSIGNED_INT or count.value > CARD_SAMPLES:
        return Answer(None, UNREADABLE)
    return Answer([CardSample(entry.time_us, entry.value) for entry in room[: count.value]])


def _grow(layout: Any, call: Callable[[Any, Any], int]) -> Answer[list[Any]]:
    """Ask with the room that the last answer wanted and some to spare, until the list fits."""
    room = 0
    for _ in range(ATTEMPTS):
        count = ctypes.c_uint(room)
        array = (layout * room)() if room else None
        code = call(ctypes.byref(count), array)
        if code == INSUFFICIENT_SIZE:
            if count.value > 2**16:
                return Answer(None, UNREADABLE)
            room = max(count.value, room) * 2 + 5
            continue
        if code != SUCCESS:
            return Answer(None, code)
        if count.value > room:
            # Room was asked for without the code for it; an empty list needs none.
            return Answer(None, UNREADABLE)
        return Answer(list(array[: count.value]) if array is not None else [])
    return Answer(None, INSUFFICIENT_SIZE)


def plausible(processes: list[Process], *, most_pid: int, most_bytes: int | None) -> bool:
    """False when fields are shuffled: what a driver gives that has another layout behind the same name."""
    bound = 2**48 if most_bytes is None else most_bytes
    return all(
        0 < entry.pid <= most_pid and (entry.memory_bytes is None or entry.memory_bytes <= bound) for entry in processes
    )


def merged(processes: list[Process]) -> list[Process]:
    """Each process once: lists overlap, and one of them may not know the memory."""
    found: dict[int, Process] = {}
    for entry in processes:
        known = found.get(entry.pid, entry)
        amounts = [each.memory_bytes for each in (known, entry) if each.memory_bytes is not None]
        found[entry.pid] = Process(entry.pid, max(amounts, default=None), known.mps or entry.mps)
    return [found[pid] for pid in sorted(found)]
