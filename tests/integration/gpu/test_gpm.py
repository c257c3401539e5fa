"""GPM where the driver has no samples of processes: what is asked, what is told of it, and what a bad answer does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from hypervisor.gpu import GpuReader
from hypervisor.model import BusyWindow, DeviceWindow, HealthState
from hypervisor.simulation.description import parse_machine
from tests.integration.gpu.conftest import (
    DEADLINE_SECONDS,
    Simulated,
    by_index,
    good_round,
    made,
    quick,
    reading,
    until,
)
from tests.integration.gpu.test_load import LOAD

TWO = """
version: 1
driver: {version: "580.65.06", cuda: 13000}
gpus: [{count: 2, profile: h100-sxm-80gb}]
"""
DIVIDED = TWO + "mig: {gpu1: {mode: on, instances: [3g.40gb, 1g.10gb]}}\n"
MOST_SECONDS = 2.0  # of age, beside a load on a busy machine
NO_SAMPLES = "call=nvmlDeviceGetProcessUtilization,return=3"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Simulated]:
    yield from made(tmp_path / "machine", parse_machine(TWO, "two", profile="two"))


@pytest.fixture
def divided_h100(tmp_path: Path) -> Iterator[Simulated]:
    yield from made(tmp_path / "machine", parse_machine(DIVIDED, "divided", profile="divided"))


@contextmanager
def load(simulated: Simulated, device: str = "", *arguments: str) -> Iterator[int]:
    environment = dict(simulated.environment) | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
    command = [str(LOAD), "--seconds=120", "--kernel-us=1000", *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as client:
        try:
            yield client.pid
        finally:
            client.kill()


async def until_window(
    reader: GpuReader, uuid: str, holds: Callable[[BusyWindow | DeviceWindow], bool] = lambda _: True
) -> BusyWindow | DeviceWindow:
    with trio.move_on_after(DEADLINE_SECONDS):
        while True:
            window = reader.windows.get(uuid)
            if window is not None and holds(window):
                return window
            await trio.sleep(0.02)
    raise AssertionError(f"no such window of {uuid}: {reader.windows}")


def gpm_calls(reader: GpuReader) -> set[str]:
    return {name for name, _ in reader.statistics().calls if name.startswith("nvmlGpm")}


def test_an_instance_is_told_with_who_was_on_it_and_only_when_it_is_asked_for(divided_h100: Simulated) -> None:
    async def main() -> None:
        async with reading(divided_h100) as reader:
            uuid = (await good_round(reader)).devices[1].identity.uuid
            assert uuid.startswith("MIG-")
            with load(divided_h100, uuid) as pid:
                await until(reader, lambda now: bool(now.devices[1].readings.processes))
                await good_round(reader)
                assert gpm_calls(reader) == set()
                reader.sample(frozenset({uuid}))
                window = await until_window(
                    reader, uuid, lambda each: isinstance(each, DeviceWindow) and each.ratio > 0.9
                )
                assert isinstance(window, DeviceWindow)
                assert (window.pids, window.uuids) == (frozenset({pid}), frozenset({uuid}))
                assert 0.05 <= window.ended_at - window.begun_at < 2
                after = await until_window(reader, uuid, lambda each: each.ended_at > window.ended_at)
                assert isinstance(after, DeviceWindow)
                assert set(reader.windows) == {uuid}
            idle = await until_window(
                reader, uuid, lambda each: isinstance(each, DeviceWindow) and not each.pids and each.ratio == 0
            )
            assert idle.ended_at > after.ended_at
            reader.sample(frozenset())

    trio.run(main)


@pytest.mark.slow
def test_parts_of_one_gpu_instance_are_told_together(tmp_path: Path) -> None:
    """GPM knows GPU instances; who computes in another part of the same one is among those that were there."""
    parts = TWO + "mig: {gpu1: {mode: on, instances: [{profile: 2g.20gb, compute: [1, 1]}, 1g.10gb]}}\n"
    machines = made(tmp_path / "machine", parse_machine(parts, "parts", profile="parts"))
    machine = next(machines)

    async def main() -> None:
        async with reading(machine) as reader:
            inventory = await good_round(reader)
            _, first, second, other = (each.identity.uuid for each in inventory.devices)
            with load(machine, second) as pid, load(machine, other):
                reader.sample(frozenset({first}))
                window = await until_window(
                    reader, first, lambda each: isinstance(each, DeviceWindow) and each.ratio > 0.9
                )
                assert isinstance(window, DeviceWindow)
                assert (window.pids, window.uuids) == (frozenset({pid}), frozenset({first, second}))

    try:
        trio.run(main)
    finally:
        machines.close()


def test_where_processes_have_samples_gpm_is_not_read(two: Simulated) -> None:
    async def main() -> None:
        async with reading(two) as reader:
            uuid = by_index(await good_round(reader), 0).identity.uuid
            with load(two) as pid:
                reader.sample(frozenset({uuid}))
                window = await until_window(
                    reader, uuid, lambda each: isinstance(each, BusyWindow) and bool(each.ratios)
                )
                assert isinstance(window, BusyWindow)
                assert set(window.ratios) == {pid}
                assert window.card is None  # of one process alone it says nothing more
                await good_round(reader)
            assert gpm_calls(reader) == set()

    trio.run(main)


@pytest.mark.parametrize(
    "silence",
    [NO_SAMPLES, pytest.param("call=nvmlDeviceGetProcessUtilization,return=zero", marks=pytest.mark.slow)],
)
def test_a_driver_without_samples_of_processes(two: Simulated, silence: str) -> None:
    """HAMi 403, 601, 2015: some say so, some say for ever that all are idle."""
    two.fault(silence)

    async def main() -> None:
        async with reading(two) as reader:
            uuid = by_index(await good_round(reader), 0).identity.uuid
            with load(two) as pid:
                reader.sample(frozenset({uuid}))
                window = await until_window(
                    reader, uuid, lambda each: isinstance(each, DeviceWindow) and each.ratio > 0.9
                )
                assert isinstance(window, DeviceWindow)
                assert window.pids == frozenset({pid})
                told = await good_round(reader)
                (process,) = by_index(told, 0).readings.processes or ()
                assert (process.pid, process.busy_ratio) == (pid, None)

    trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["call=nvmlGpmMetricsGet,value=1000000000000000000", "call=nvmlGpmSampleGet,return=10"])
def test_a_bad_answer_changes_nothing_and_costs_nobody_else(two: Simulated, lie: str) -> None:
    two.fault(NO_SAMPLES)

    async def main() -> None:
        async with reading(two) as reader:
            uuid = by_index(await good_round(reader), 0).identity.uuid
            with load(two):
                reader.sample(frozenset({uuid}))
                await until_window(reader, uuid, lambda each: isinstance(each, DeviceWindow) and each.ratio > 0.9)
                two.fault(lie)
                await trio.sleep(0.5)
                last = reader.windows[uuid]
                told = await good_round(reader)
                await trio.sleep(0.5)
                assert reader.windows[uuid] is last
                assert {name for who, name, _ in reader.statistics().rejected_readings if who == uuid} == {"gpm"}
                assert {device.health for device in told.devices} == {HealthState.HEALTHY}

    trio.run(main)


@pytest.mark.slow
def test_a_hang_of_gpm_takes_neither_its_card_nor_the_others_along(two: Simulated) -> None:
    two.fault(NO_SAMPLES)

    async def main() -> None:
        settings = quick(reading_interval_seconds=0.2, reading_timeout_seconds=8.0)  # the answer comes before it
        async with reading(two, settings) as reader:
            inventory = await good_round(reader)
            first, second = (by_index(inventory, index).identity.uuid for index in (0, 1))
            with load(two), load(two, "", "--device=1"):
                reader.sample(frozenset({first, second}))
                for uuid in (first, second):
                    await until_window(reader, uuid, lambda each: isinstance(each, DeviceWindow) and each.ratio > 0.9)
                two.fault("call=nvmlGpmSampleGet,gpu=0,hang=forever,for=3s")
                hung_at, restarts = time.monotonic(), reader.statistics().restarts
                oldest, told = 0.0, reader.inventory
                while time.monotonic() < hung_at + 2.5:
                    told = await reader.next_inventory(told.sequence)
                    assert {device.health for device in told.devices} == {HealthState.HEALTHY}
                    read_at = [device.readings.memory_used_bytes.observed_at for device in told.devices]
                    oldest = max(oldest, time.monotonic() - min(read_at))
                assert oldest < MOST_SECONDS
                assert reader.statistics().restarts > restarts, "it has hung, and the reader is another one"
                assert reader.windows[first].ended_at < hung_at + 1
                before = time.monotonic()
                await until_window(reader, second, lambda each: each.ended_at > before)
                await until_window(reader, first, lambda each: each.ended_at > hung_at + 3)

    trio.run(main)
