"""A hang of each function of NVML that the reader calls about a card, in turn: the other cards never wait for it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import trio

from hypervisor.gpu import GpuReader
from hypervisor.gpu.codes import FUNCTION_NOT_FOUND
from hypervisor.gpu.health.occurrence import OccurrenceKind
from hypervisor.model import Inventory
from tests.integration.gpu.conftest import DEADLINE_SECONDS, Simulated, good_round, quick, reading, until

INTERVAL_SECONDS = 0.2
HUNG = 3
# What a hang may add to the age of the others' figures, as the issue has it.
MOST_SECONDS = 1.0
# All that the reader calls about a card; that it is all is what the first test shows.
CALLS = (
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceRegisterEvents",
)
# Only a first reader opens cards by their number; who comes later knows their addresses.
FIRST_ONLY = {"nvmlDeviceGetHandleByIndex_v2"}
# What is called instead of one of them, or besides, on other machines.
ELSEWHERE = (
    ("older", "nvmlDeviceGetGpuFabricInfo"),
    ("older", "nvmlDeviceGetTemperature"),
    ("divided", "nvmlDeviceGetAttributes_v2"),
    ("divided", "nvmlDeviceGetComputeInstanceId"),
    ("divided", "nvmlDeviceGetGpuInstanceId"),
    ("divided", "nvmlDeviceGetMaxMigDeviceCount"),
    ("divided", "nvmlDeviceGetMigDeviceHandleByIndex"),
)
# And all that is about no card: with it no reader can start, or take events, while one reads on.
OF_THE_NODE = (
    "nvmlDeviceGetCount_v2",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlInitWithFlags",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
)


def test_the_table_has_all_that_the_reader_calls(newest: Simulated) -> None:
    """On a driver that has all of them: a hang of what is not there would never come, and show nothing."""

    async def main() -> None:
        async with reading(newest) as reader:
            await until(reader, lambda _: reader.statistics().stands_by)
            first = (await good_round(reader)).devices[0].identity.uuid
            await reader.detach(first)
            await reader.attach(first)
            await good_round(reader)
            called = {name for name, code in reader.statistics().calls if code != FUNCTION_NOT_FOUND}
            assert called == {*CALLS, *OF_THE_NODE}

    trio.run(main)


def oldest(inventory: Inventory) -> float:
    """Age of the oldest figure of the cards that don't hang, in seconds."""
    now = time.monotonic()
    return max(
        now - device.readings.memory_used_bytes.observed_at
        for device in inventory.devices
        if device.identity.index != HUNG
    )


async def worst(reader: GpuReader, seconds: float) -> tuple[float, float]:
    """For so long, the greatest age that anybody could have seen, and the longest time that anybody had to wait."""
    age = lag = 0.0
    last = begun = time.monotonic()
    while last - begun < seconds:
        age = max(age, oldest(reader.inventory))
        await trio.sleep(0.01)
        lag, last = max(lag, time.monotonic() - last), time.monotonic()
    return age, lag


async def added(simulated: Simulated, fault: str, *, seconds: float) -> float:
    """What a fault adds to the greatest age; what is called only at first, the next spare calls."""
    settings = quick(reading_interval_seconds=INTERVAL_SECONDS, reading_timeout_seconds=5.0)
    async with reading(simulated, settings) as reader:
        await good_round(reader)
        await until(reader, lambda _: reader.statistics().stands_by)
        calm, _ = await worst(reader, min(seconds / 2, 10.0))
        number = simulated.fault(fault)

        def hits() -> int:
            return next(each["hits"] for each in simulated.machine.show()["faults"] if each["id"] == number)

        reader._known.fleet.survey_due_at = 0.0
        hung, _ = await worst(reader, seconds)
        if not hits():
            reader._spare.drop()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not hits():
            assert time.monotonic() < deadline, f"{fault} never struck: is it called on this machine?"
            hung = max(hung, (await worst(reader, 0.5))[0])
        return hung - calm


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetProcessUtilization"])
def test_a_hang_takes_no_second_from_the_others(h100: Simulated, call: str) -> None:
    assert trio.run(lambda: added(h100, f"gpu={HUNG},call={call},hang=forever", seconds=1.5)) <= MOST_SECONDS


@pytest.mark.slow
def test_a_driver_that_hangs_as_a_whole_blocks_nobody_who_asks(h100: Simulated) -> None:
    """With the driver's own lock held no card can be read by anybody; what is known is told all the same."""

    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=2.0)) as reader:
            before = await good_round(reader)
            h100.fault(f"gpu={HUNG},call=nvmlDeviceGetMemoryInfo*,hang_lock=forever")
            _, lag = await worst(reader, 15.0)
            assert lag <= MOST_SECONDS
            assert [each.vram_bytes.value for each in reader.inventory.devices] == [
                each.vram_bytes.value for each in before.devices
            ]

    trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("call", sorted(set(CALLS) - FIRST_ONLY))
def test_a_hang_of_each_call_takes_no_second_from_the_others(newest: Simulated, call: str) -> None:
    fault = f"gpu={HUNG},call={call},hang=forever"
    assert trio.run(lambda: added(newest, fault, seconds=3.0)) <= MOST_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "call"), ELSEWHERE)
def test_a_hang_of_what_other_machines_are_asked_takes_no_second(
    request: pytest.FixtureRequest, machine: str, call: str
) -> None:
    simulated: Simulated = request.getfixturevalue(machine)
    # A divided card is attached anew every ten seconds, and not by the reader that stands by.
    fault = f"gpu={HUNG},call={call},hang=forever"
    assert trio.run(lambda: added(simulated, fault, seconds=12.0 if machine == "divided" else 3.0)) <= MOST_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("call", OF_THE_NODE)
def test_a_hang_of_each_call_about_no_card_takes_no_second_from_any(newest: Simulated, call: str) -> None:
    assert trio.run(lambda: added(newest, f"call={call},hang=forever", seconds=3.0)) <= MOST_SECONDS


async def added_beside(hung: Simulated, well: Simulated, fault: str, *, seconds: float) -> float:
    """What a fault adds to the greatest age of the others' figures, in each ten seconds, over what a machine without it
    has in the same ten seconds: in so long a time the machine that runs the test has its own bad moments."""
    settings = quick(reading_interval_seconds=INTERVAL_SECONDS, reading_timeout_seconds=5.0)
    most = 0.0
    async with reading(hung, settings) as struck, reading(well, settings) as spared:
        for each in (struck, spared):
            await good_round(each)
            await until(each, lambda _, each=each: each.statistics().stands_by)
        hung.fault(fault)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            ages = {struck: 0.0, spared: 0.0}
            window = time.monotonic() + 10.0
            while time.monotonic() < window:
                ages = {each: max(age, oldest(each.inventory)) for each, age in ages.items()}
                await trio.sleep(0.01)
            most = max(most, ages[struck] - ages[spared])
        assert struck.statistics().hangs
    return most


@pytest.mark.slow
def test_a_hang_of_ten_minutes_takes_no_second_from_the_others(h100: Simulated, older: Simulated) -> None:
    fault = f"gpu={HUNG},call=nvmlDeviceGetMemoryInfo*,hang=600s"
    assert trio.run(lambda: added_beside(h100, older, fault, seconds=600.0)) <= MOST_SECONDS


def test_what_happened_while_one_reader_hung_is_told_by_the_next(h100: Simulated) -> None:
    """Events that lie in the set of a reader end with it: another one must have them too. And none is told twice."""

    async def main() -> None:
        settings = quick(reading_timeout_seconds=10.0)
        async with reading(h100, settings) as reader:
            await good_round(reader)
            await until(reader, lambda _: reader.statistics().stands_by)
            first = reader.statistics().child_pid
            assert first is not None
            h100.fault("gpu=1,xid=109")
            uuid = next(each.identity.uuid for each in reader.inventory.devices if each.identity.index == 1)
            await until(reader, lambda _: reader.statistics().health.xids.get((uuid, 109), 0) == 1)
            os.kill(first, signal.SIGSTOP)  # as if it hung, with what happens now still to be taken
            h100.fault("gpu=5,xid=109")
            other = next(each.identity.uuid for each in reader.inventory.devices if each.identity.index == 5)
            await until(reader, lambda _: reader.statistics().child_pid not in (None, first))
            await until(reader, lambda _: (other, 109) in reader.statistics().health.xids)
            for _ in range(3):
                await good_round(reader)
            xids = reader.statistics().health.xids
            assert {key: count for key, count in xids.items() if count} == {(uuid, 109): 1, (other, 109): 1}
            told = [each for each in await reader.next_occurrences() if each.kind is OccurrenceKind.XID]
            assert sorted(each.gpu_uuid for each in told) == sorted((uuid, other))
            os.kill(first, signal.SIGCONT)

    trio.run(main)
