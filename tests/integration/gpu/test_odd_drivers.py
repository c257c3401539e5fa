"""Drivers with oddities, as a small library in C that the test compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from hypervisor.gpu import open_gpu_reader
from hypervisor.model import FigureSource
from tests.integration.gpu.conftest import Simulated, good_round, quick

GIB = 2**30


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("stub_nvml.c")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(source)]
    subprocess.run(
        [*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(folder / "libnvidia-ml.so.1")], check=True, timeout=60
    )
    return {**os.environ, "TF_NVML_LIB_PATH": str(folder)}


def test_a_divided_card_beside_a_whole_one(odd: Mapping[str, str]) -> None:
    async def main() -> None:
        async with open_gpu_reader(quick(), environment=odd) as reader:
            inventory = await good_round(reader)
        first, second, whole = inventory.devices
        assert [each.identity.uuid for each in inventory.devices] == ["MIG-first", "MIG-second", "GPU-whole"]
        assert first.identity.partition is not None
        assert first.identity.partition.parent_uuid == "GPU-divided"
        assert first.identity.partition.gpu_instance_id == 2
        assert first.identity.partition.profile == "3g.40gb"
        assert first.identity.pci_bus_id == "0000:10:00.0"
        assert first.tflops.value == pytest.approx(312 * 42 / 108)
        assert second.tflops.value == pytest.approx(312 * 14 / 108)
        assert (first.vram_bytes.value, second.vram_bytes.value) == (40 * GIB, 10 * GIB)
        assert (whole.tflops.value, whole.tflops.source) == (312, FigureSource.CATALOGUE)
        assert inventory.conditions == ()

    trio.run(main)


def test_reserved_memory_is_taken_out_of_used(odd: Mapping[str, str]) -> None:
    async def main() -> None:
        async with open_gpu_reader(quick(), environment=odd) as reader:
            whole = (await good_round(reader)).devices[2]
        assert whole.readings.memory_used_bytes.value == 3 * GIB
        assert whole.readings.memory_reserved_bytes.value == GIB // 2
        assert whole.readings.memory_free_bytes.value == 80 * GIB - 3 * GIB - GIB // 2

    trio.run(main)


def test_a_list_with_shuffled_fields_is_read_in_the_version_below(odd: Mapping[str, str]) -> None:
    async def main() -> None:
        async with open_gpu_reader(quick(), environment=odd) as reader:
            whole = (await good_round(reader)).devices[2]
            calls = reader.statistics().calls
            again = (await good_round(reader)).devices[2]
            later = reader.statistics().calls
        assert whole.readings.processes is not None
        told = [(process.pid, process.memory_bytes) for process in whole.readings.processes]
        assert told == [(4001, GIB), (4002, 2 * GIB), (4003, None)]
        assert again.readings.processes == whole.readings.processes
        # The version that was found out is not asked again.
        shuffled = ("nvmlDeviceGetComputeRunningProcesses_v3", 0)
        assert later[shuffled] == calls[shuffled]

    trio.run(main)


def test_missing_functions_are_absent_figures_and_no_conditions(odd: Mapping[str, str]) -> None:
    async def main() -> None:
        async with open_gpu_reader(quick(), environment=odd) as reader:
            inventory = await good_round(reader)
        whole = inventory.devices[2]
        assert whole.conditions == ()
        assert whole.readings.temperature_celsius.value is None
        assert "no such function" in whole.readings.temperature_celsius.absent_reason
        assert whole.readings.utilization_ratio.value is None
        assert whole.identity.serial == ""
        assert whole.identity.minor is None
        assert inventory.system.cuda_version == ""

    trio.run(main)


# What decides it, with a kernel that looks as if a real driver were there.
WHO = """
from hypervisor.gpu import library
import pynvml
library.DRIVER_TRACES = ("/",)
before = library.is_simulated()
pynvml.nvmlInit()
print(before, library.is_simulated())
"""


def test_a_simulated_machine_can_not_pass_as_real(t4: Simulated) -> None:
    told = subprocess.run(
        [sys.executable, "-c", WHO], env=dict(t4.environment), capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["False", "True"]


def test_a_library_without_any_driver_is_simulated(odd: Mapping[str, str]) -> None:
    if any(Path(trace).exists() for trace in ("/proc/driver/nvidia/version", "/dev/dxg")):
        pytest.skip("this machine has a driver")

    async def main() -> None:
        async with open_gpu_reader(quick(), environment=odd) as reader:
            inventory = await good_round(reader)
        assert inventory.simulated
        assert all(device.identity.simulated for device in inventory.devices)

    trio.run(main)
