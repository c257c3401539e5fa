"""What a card as a whole did in the windows of its processes: told beside them, and what a bad answer does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from hypervisor.gpu import GpuReader
from hypervisor.model import BusyWindow, HealthState
from hypervisor.simulation.description import parse_machine
from tests.integration.gpu.conftest import Simulated, by_index, good_round, made, quick, reading, until
from tests.integration.gpu.test_gpm import TWO, load, until_window


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Simulated]:
    yield from made(tmp_path / "machine", parse_machine(TWO, "two", profile="two"))


async def window_of(reader: GpuReader, uuid: str, *, processes: int, card: bool, after: float = 0.0) -> BusyWindow:
    found = await until_window(
        reader,
        uuid,
        lambda each: (
            isinstance(each, BusyWindow)
            and each.ended_at > after
            and len(each.ratios) == processes
            and (each.card is not None) == card
        ),
    )
    assert isinstance(found, BusyWindow)
    return found


async def both_listed(reader: GpuReader, stack: ExitStack, machine: Simulated) -> str:
    uuid = by_index(await good_round(reader), 0).identity.uuid
    pids = {stack.enter_context(load(machine)) for _ in range(2)}
    await until(reader, lambda now: {each.pid for each in by_index(now, 0).readings.processes or ()} == pids)
    reader.sample(frozenset({uuid}))
    return uuid


def test_the_card_s_own_figure_is_of_the_window_of_its_processes(two: Simulated) -> None:
    """They have turns, so their times add up to the card's, but for what each figure is rounded by."""

    async def main() -> None:
        async with reading(two) as reader:
            with ExitStack() as stack:
                uuid = await both_listed(reader, stack, two)
                at = 0.0
                for _ in range(4):
                    window = await window_of(reader, uuid, processes=2, card=True, after=at)
                    assert window.card is not None
                    assert abs(sum(window.ratios.values()) - window.card) <= 0.015 + 1e-9
                    at = window.ended_at

    trio.run(main)


def test_one_process_alone_is_not_held_against_the_card(two: Simulated) -> None:
    async def main() -> None:
        async with reading(two) as reader:
            uuid = by_index(await good_round(reader), 0).identity.uuid
            with load(two):
                reader.sample(frozenset({uuid}))
                await window_of(reader, uuid, processes=1, card=False)
                await good_round(reader)
            assert not [name for name, _ in reader.statistics().calls if name == "nvmlDeviceGetSamples"]

    trio.run(main)


@pytest.mark.parametrize(
    "lie",
    [
        "value=1000000000000000000",
        pytest.param("return=3", marks=pytest.mark.slow),
        pytest.param("return=999", marks=pytest.mark.slow),
    ],
)
def test_a_bad_answer_costs_nothing_but_itself(two: Simulated, lie: str) -> None:
    two.fault(f"call=nvmlDeviceGetSamples,{lie}")

    async def main() -> None:
        async with reading(two) as reader:
            with ExitStack() as stack:
                uuid = await both_listed(reader, stack, two)
                first = await window_of(reader, uuid, processes=2, card=False)
                await window_of(reader, uuid, processes=2, card=False, after=first.ended_at)
                told = await good_round(reader)
                assert {device.health for device in told.devices} == {HealthState.HEALTHY}
                assert [name for name, _ in reader.statistics().calls if name == "nvmlDeviceGetSamples"]

    trio.run(main)


@pytest.mark.slow
def test_a_hang_takes_neither_the_card_nor_the_samples_of_its_processes_along(two: Simulated) -> None:
    async def main() -> None:
        settings = quick(reading_interval_seconds=0.2, reading_timeout_seconds=20.0)  # the answer comes before it
        async with reading(two, settings) as reader:
            with ExitStack() as stack:
                uuid = await both_listed(reader, stack, two)
                await window_of(reader, uuid, processes=2, card=True)
                two.fault("call=nvmlDeviceGetSamples,gpu=0,hang=forever")
                hung_at, restarts = time.monotonic(), reader.statistics().restarts
                await window_of(reader, uuid, processes=2, card=False, after=hung_at)
                assert reader.statistics().restarts > restarts, "it has hung, and the reader is another one"
                told = await good_round(reader)
                assert {device.health for device in told.devices} == {HealthState.HEALTHY}
                two.machine.clear_faults()
                await window_of(reader, uuid, processes=2, card=True, after=time.monotonic())

    trio.run(main)
