"""Calls of NVML about GPM: how busy a GPU or a GPU instance was as a whole between two samples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml

from hypervisor.gpu import nvml_processes
from hypervisor.gpu.codes import NOT_FOUND, NOT_SUPPORTED
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.survey import Card
from hypervisor.gpu.wire import Answer, GpmReading, GpmTarget, GpmTold

# The driver makes nothing of two samples that are closer.
LEAST_SECONDS = 0.1


@dataclass(slots=True)
class _Chain:
    """The samples of one target: each window begins where the last one ended."""

    spare: list[Any] = field(default_factory=list)  # allocated and not in use
    last: Any = None
    at: float = 0.0
    pids: set[int] | None = None


class GpmWatch:
    """Remembers the last sample of each target."""

    def __init__(self) -> None:
        self._chains: dict[tuple[str, GpmTarget], _Chain] = {}

    def take(self, nvml: Nvml, card: Card, targets: Sequence[GpmTarget]) -> GpmTold:
        """What happened on these targets of a card since this was last asked."""
        for key in [key for key in self._chains if key[0] == card.slot and key[1] not in targets]:
            _free(nvml, self._chains.pop(key))
        found = []
        for target in targets:
            chain = self._chains.setdefault((card.slot, target), _Chain())
            if chain.last is None or time.monotonic() - chain.at >= LEAST_SECONDS:
                reading = _reading(nvml, card, target, chain)
                if reading is not None:
                    found.append(reading)
        return GpmTold(found)


def _reading(nvml: Nvml, card: Card, target: GpmTarget, chain: _Chain) -> GpmReading | None:
    taken = _sample(nvml, card.device, target, chain)
    if taken.value is None:
        _forget(chain)  # what comes next is no window that began there
        return GpmReading(target, Answer(None, taken.code))
    # Who comes to a target between this and the sample before stands in this list, who goes stood in the one before.
    ended_at, pids = time.monotonic(), _pids(nvml, card, target)
    first, begun_at, before = chain.last, chain.at, chain.pids
    chain.last, chain.at, chain.pids = taken.value, ended_at, pids
    if first is None:
        return None
    chain.spare.append(first)
    busy = _busy_percent(nvml, card.device, first, taken.value)
    both = sorted(before | pids) if before is not None and pids is not None else None
    return GpmReading(target, busy, begun_at, ended_at, both)


def _sample(nvml: Nvml, device: Device, target: GpmTarget, chain: _Chain) -> Answer[Any]:
    supported = nvml.ask(device, "nvmlGpmQueryDeviceSupport", _supported)
    if supported.value is None:
        return supported
    if not chain.spare:
        made: Answer[Any] = nvml.ask(nvml.system, "nvmlGpmSampleAlloc", lambda _: pynvml.nvmlGpmSampleAlloc())
        if made.value is None:
            return made
        chain.spare.append(made.value)
    sample, number = chain.spare[-1], target.gpu_instance
    if number is None:
        taken = nvml.ask(device, "nvmlGpmSampleGet", lambda handle: pynvml.nvmlGpmSampleGet(handle, sample))
    else:
        taken = nvml.ask(
            device,
            "nvmlGpmMigSampleGet",
            lambda handle: pynvml.nvmlGpmMigSampleGet(handle, number, sample),
            number,
        )
    if taken.value is not None:
        chain.spare.pop()
    return taken


def _supported(handle: Any) -> bool:
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return True


def _busy_percent(nvml: Nvml, device: Device, first: Any, second: Any) -> Answer[float]:
    def call(_: Any) -> float:
        get = pynvml.c_nvmlGpmMetricsGet_t()
        get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        get.numMetrics = 1
        get.sample1, get.sample2 = first, second
        get.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        pynvml.nvmlGpmMetricsGet(get)
        if get.metrics[0].nvmlReturn:
            raise pynvml.NVMLError(get.metrics[0].nvmlReturn)
        return float(get.metrics[0].value)

    return nvml.ask(device, "nvmlGpmMetricsGet", call)


def _pids(nvml: Nvml, card: Card, target: GpmTarget) -> set[int] | None:
    """All processes on the devices of a target; None unless each of them is known and tells."""
    devices = {card.uuid: card.device, **dict(card.instances)}
    found: set[int] = set()
    for uuid in target.uuids:
        device = devices.get(uuid)
        listed = nvml_processes.processes(nvml, device, None) if device else Answer(None, NOT_FOUND)
        if listed.value is None:
            return None
        found |= {process.pid for process in listed.value}
    return found


def _forget(chain: _Chain) -> None:
    if chain.last is not None:
        chain.spare.append(chain.last)
        chain.last = None


def _free(nvml: Nvml, chain: _Chain) -> None:
    _forget(chain)
    for sample in chain.spare:
        nvml.ask(nvml.system, "nvmlGpmSampleFree", partial(_free_one, sample))


def _free_one(sample: Any, _: Any) -> None:
    pynvml.nvmlGpmSampleFree(sample)
