"""What is different on other platforms: GPUs that share the host's memory, WSL, guests with a vGPU."""

from __future__ import annotations

from unittest import mock

import msgspec
import pynvml
import pytest

from hypervisor.gpu import device, nvml_state, wire
from hypervisor.gpu.device import DeviceRecord
from hypervisor.gpu.nvml import Device, Nvml
from hypervisor.gpu.wire import Answer, Process
from hypervisor.model import FigureSource, HealthState
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


def test_wsl_has_no_minor_numbers_no_events_and_no_memory_of_processes() -> None:
    """nvidia-stack.md 1.11 and 9.2/29: the card is used all the same, and what is not told is not known."""
    own = msgspec.structs.replace(facts("GPU-0", "NVIDIA GeForce RTX 4090"), minor=Answer(None, 3))
    identity = device.identify(own, index=0, parent=None, simulated=False, last=None)
    assert identity.minor is None
    assert not device.incomplete(own)  # asked once, and not again and again
    readings = replace_processes(told("GPU-0", 24 * GIB, used=2 * GIB), [Process(10, None)])
    record = device.update(
        DeviceRecord(identity=identity, facts=own), readings, bounds=(1, 2**44), now=1.0, wall_offset=0.0
    )
    assert record.health is HealthState.HEALTHY
    assert record.problems == ()
    assert record.memory.used.value == 2 * GIB
    (process,) = device.readings(record).processes or ()
    assert process.memory_bytes is None


@pytest.mark.parametrize("licensed", [True, False])
def test_a_vgpu_guest_tells_its_licence(licensed: bool) -> None:
    """nvidia-stack.md 1.11: without one its clocks are throttled. The structure is the wrapper's own."""
    structure = pynvml.c_nvmlGridLicensableFeatures_v4_t()
    structure.isGridLicenseSupported, structure.licensableFeaturesCount = 1, 1
    structure.gridLicensableFeatures[0].featureState = int(licensed)
    nvml = Nvml("", None)  # type: ignore[arg-type] - no list of processes is asked for
    with mock.patch.object(pynvml, "nvmlDeviceGetGridLicensableFeatures", return_value=structure):
        assert nvml_state.licensed(nvml, Device(None)) == Answer(licensed)
        structure.isGridLicenseSupported = 0
        assert nvml_state.licensed(nvml, Device(None)).value is None


def test_wrong_kinds_of_answers_about_a_licence_are_no_licence_and_no_fault() -> None:
    nvml = Nvml("", None)  # type: ignore[arg-type]
    refused = mock.Mock(side_effect=pynvml.NVMLError(3))
    with mock.patch.object(pynvml, "nvmlDeviceGetGridLicensableFeatures", refused):
        asked = Device(None)
        assert nvml_state.licensed(nvml, asked) == Answer(None, 3)
        assert nvml_state.licensed(nvml, asked) == Answer(None, 3)
    assert refused.call_count == 1
