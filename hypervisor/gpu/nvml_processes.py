"""Calls of NVML about the processes on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pynvml

from hypervisor.gpu import lists
from hypervisor.gpu.codes import FUNCTION_NOT_FOUND, UNREADABLE, ErrorClass, classify
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.wire import SAME_MOMENT_US, Answer, CardSample, Process, Sample

Value = TypeVar("Value")


def processes(nvml: Nvml, device: Device, most_bytes: int | None) -> Answer[list[Process]]:
    """Processes of all lists, each once, with the most that a list attributes to it."""
    found: list[Process] = []
    for kind in ("Compute", "Graphics", "MPSCompute"):
        answer = _process_list(nvml, device, kind, most_bytes)
        if answer.value is None and (kind == "Compute" or classify(answer.code) is not ErrorClass.ABSENT):
            return answer  # an incomplete list would make what it leaves out look free
        found += [Process(entry.pid, entry.memory_bytes, kind == "MPSCompute") for entry in answer.value or ()]
    return Answer(lists.merged(found))


def _process_list(nvml: Nvml, device: Device, kind: str, most_bytes: int | None) -> Answer[list[Process]]:
    versions = lists.PROCESS_LIST_VERSIONS[lists.PROCESS_LIST_VERSIONS.index(device.process_version) :]
    doubtful: Answer[list[Process]] | None = None
    answer: Answer[list[Process]] = Answer(None, FUNCTION_NOT_FOUND)
    for version in versions:
        answer = _ask_list(
            nvml,
            device,
            f"nvmlDeviceGet{kind}RunningProcesses{version}",
            partial(_read_processes, nvml, kind, version),
        )
        if answer.value is None:
            if classify(answer.code) is not ErrorClass.ABSENT:
                return answer
            continue
        if lists.plausible(answer.value, most_pid=nvml.most_pid, most_bytes=most_bytes):
            if doubtful is not None and answer.value:
                device.process_version = version
            return answer
        doubtful = doubtful or answer
    if doubtful is None or doubtful.value is None:
        return answer
    if any(not 0 < entry.pid <= nvml.most_pid for entry in doubtful.value):
        return Answer(None, UNREADABLE)
    # The pids make sense and only the amounts do not: who is there is known, how much is not.
    return Answer([Process(entry.pid, None) for entry in doubtful.value])


def _read_processes(nvml: Nvml, kind: str, version: str, handle: Any) -> Answer[list[Process]]:
    return lists.read_processes(nvml.native, handle, kind, version)


def samples(nvml: Nvml, device: Device) -> Answer[list[Sample]]:
    """Utilisation samples of processes that were not given before."""
    since_us = device.stamps.since(wall_us=time.time_ns() // 1000, now=time.monotonic())
    answer = _ask_list(
        nvml,
        device,
        "nvmlDeviceGetProcessUtilization",
        lambda handle: lists.read_samples(nvml.native, handle, since_us),
    )
    if answer.value is None:
        return answer
    found = [sample for sample in answer.value if 0 < sample.pid <= nvml.most_pid]
    return Answer(device.stamps.news(found, wall_us=time.time_ns() // 1000, now=time.monotonic()))


def card_samples(nvml: Nvml, device: Device, beside: list[Sample]) -> Answer[list[CardSample]]:
    """Utilisation samples of the card as a whole at the time of the newest of these of its processes, and later."""
    offset_us = device.stamps.offset_us
    since_us = max(sample.time_us for sample in beside) + offset_us - SAME_MOMENT_US - 1
    answer = _ask_list(
        nvml,
        device,
        "nvmlDeviceGetSamples",
        lambda handle: lists.read_card_samples(nvml.native, handle, max(since_us, 0)),
    )
    if answer.value is None or not offset_us:
        return answer
    return Answer([CardSample(each.time_us - offset_us, each.busy_percent) for each in answer.value])


def _ask_list(nvml: Nvml, device: Device, name: str, call: Callable[[Any], Answer[list[Value]]]) -> Answer[list[Value]]:
    def raising(handle: Any) -> list[Value]:
        answer = call(handle)
        if answer.value is None:
            raise pynvml.NVMLError(answer.code)
        return answer.value

    return nvml.ask(device, name, raising)
