"""Programs on the GPUs: who is told, with how much memory and how busy. Truth is the simulator's own ledger."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import hypervisor
from hypervisor.model import DeviceObservation
from tests.integration.gpu.conftest import Simulated, by_index, good_round, reading, until

LOAD = Path(hypervisor.__file__).parent / "native" / "clients" / "load"


@contextmanager
def load(simulated: Simulated, *arguments: str) -> Iterator[int]:
    with subprocess.Popen(
        [str(LOAD), "--seconds=120", *arguments], env=dict(simulated.environment), stdout=subprocess.DEVNULL
    ) as client:
        try:
            yield client.pid
        finally:
            client.kill()


def busy_of(device: DeviceObservation, pid: int) -> float | None:
    return next((each.busy_ratio for each in device.readings.processes or () if each.pid == pid), None)


def test_a_busy_program_and_an_idle_one(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            await good_round(reader)
            with load(h100, "--device=2", "--kernel-us=1000") as busy, load(h100, "--device=2", "--idle") as idle:
                told = await until(
                    reader,
                    lambda now: (
                        (busy_of(by_index(now, 2), busy) or 0) > 0.9 and busy_of(by_index(now, 2), idle) is not None
                    ),
                )
                device = by_index(told, 2)
                ledger = {process["pid"]: process["gpus"] for process in h100.machine.show()["processes"]}
                assert busy_of(device, idle) == 0.0
                assert {process.pid for process in device.readings.processes or ()} == set(ledger) == {busy, idle}
                held = sum(process.memory_bytes or 0 for process in device.readings.processes or ())
                assert held == device.readings.memory_used_bytes.value
                assert (device.readings.utilization_ratio.value or 0) > 0.9
                assert by_index(told, 1).readings.processes == ()
            after = await until(reader, lambda now: by_index(now, 2).readings.processes == ())
            assert by_index(after, 2).readings.memory_used_bytes.value == 0

    trio.run(main)


def test_busy_ends_when_the_program_rests(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4) as reader:
            with load(t4, "--kernel-us=1000") as pid:
                await until(reader, lambda now: bool(now.devices) and (busy_of(now.devices[0], pid) or 0) > 0.9)
                subprocess.run(["kill", "-STOP", str(pid)], check=True)  # noqa: ASYNC221
                await until(reader, lambda now: busy_of(now.devices[0], pid) == 0.0)

    trio.run(main)


@pytest.mark.parametrize("lie", ["return=sentinel", "return=garbage"])
def test_absurd_memory_of_a_process_is_unknown_and_not_summed(t4: Simulated, lie: str) -> None:
    t4.fault(f"call=nvmlDeviceGet*RunningProcesses*,{lie}")

    async def main() -> None:
        async with reading(t4) as reader:
            with load(t4, "--idle") as pid:
                told = await until(reader, lambda now: bool(now.devices) and bool(now.devices[0].readings.processes))
                (process,) = told.devices[0].readings.processes or ()
                assert (process.pid, process.memory_bytes) == (pid, None)

    trio.run(main)
