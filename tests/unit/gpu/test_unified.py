"""GPUs that share the host's memory, and those that only fail to tell of theirs."""

from __future__ import annotations

import pytest

from hypervisor.gpu import device, wire
from hypervisor.gpu.device import DeviceRecord
from hypervisor.gpu.wire import Answer, Process
from hypervisor.model import FigureSource
from tests.unit.gpu.test_fleet import facts, told

GIB = 2**30


def read(name: str, processes: list[Process], *, code: int = 3) -> DeviceRecord:
    own = facts("GPU-0", name)
    identity = device.identify(own, index=0, parent=None, simulated=False, last=None)
    record = DeviceRecord(identity=identity, facts=own)
    readings = replace_processes(told("GPU-0", 0, code=code), processes)
    return device.update(record, readings, bounds=(1, 2**44), now=1.0, wall_offset=0.0, unified_bytes=96 * GIB)


def replace_processes(readings: wire.DeviceReadings, processes: list[Process]) -> wire.DeviceReadings:
    values = {name: getattr(readings, name) for name in readings.__struct_fields__}
    return wire.DeviceReadings(**{**values, "processes": Answer(processes)})


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Thor"])
def test_an_integrated_gpu_has_a_share_of_the_host_and_says_so(name: str) -> None:
    """KAI-Scheduler 1967: a GPU without memory of its own."""
    record = read(name, [Process(10, 3 * GIB), Process(11, GIB)])
    assert (record.capacity.figure.value, record.capacity.figure.source) == (96 * GIB, FigureSource.SYSTEM)
    assert record.memory.used.value == 4 * GIB
    assert record.memory.free.value == 92 * GIB
    assert record.memory.reserved.value is None
    assert record.problems == ()


def test_what_its_processes_do_not_tell_is_not_known() -> None:
    record = read("NVIDIA GB10", [Process(10, None)])
    assert record.capacity.figure.value == 96 * GIB
    assert record.memory.used.value is None


@pytest.mark.parametrize(("name", "code"), [("NVIDIA H100 80GB HBM3", 3), ("NVIDIA GB10", 999), ("NVIDIA GB100", 3)])
def test_a_card_that_fails_to_tell_its_memory_gets_none_of_the_host(name: str, code: int) -> None:
    record = read(name, [], code=code)
    assert record.capacity.figure.value is None
