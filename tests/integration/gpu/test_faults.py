"""Bad readings, missing symbols, lost and hanging GPUs: what is published, and that the others never notice."""

from __future__ import annotations

import pytest
import trio

from hypervisor.model import HealthCode, HealthState, Inventory
from tests.integration.gpu.conftest import (
    Simulated,
    by_index,
    condition,
    good_round,
    quick,
    reading,
    until,
)

LIES = ("return=zero", "return=sentinel", "return=garbage", "return=999", "return=10", "return=4", "return=3")


def others_are_well(inventory: Inventory, index: int) -> bool:
    return all(
        device.health is HealthState.HEALTHY and device.conditions == () and not device.readings.memory_used_bytes.stale
        for device in inventory.devices
        if device.identity.index != index
    )


@pytest.mark.parametrize(
    ("call", "lie"),
    [
        *(("nvmlDeviceGet*", lie) for lie in LIES),
        ("nvmlDeviceGetMemoryInfo*", "return=zero"),
        ("nvmlDeviceGetMemoryInfo*", "return=garbage"),
    ],
)
def test_a_lie_of_one_gpu_changes_no_capacity(h100: Simulated, call: str, lie: str) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            number = h100.fault(f"gpu=2,call={call},{lie}")
            # Longer than any count of agreeing readings.
            for _ in range(4):
                told = await good_round(reader)
                assert [each.identity for each in told.devices] == [each.identity for each in before.devices]
                assert [each.vram_bytes.value for each in told.devices] == [
                    each.vram_bytes.value for each in before.devices
                ]
                assert all(each.tflops.value == 989 for each in told.devices)
                assert others_are_well(told, 2)
            liar = by_index(told, 2)
            assert liar.vram_bytes.stale
            assert liar.health is not HealthState.LOST
            assert liar.conditions != ()
            assert liar.readings.memory_used_bytes.value == 0
            assert liar.readings.memory_used_bytes.stale
            h100.machine.clear_fault(number)
            well = await until(reader, lambda now: by_index(now, 2).conditions == ())
            assert not by_index(well, 2).vram_bytes.stale
            assert by_index(well, 2).health is HealthState.HEALTHY

    trio.run(main)


@pytest.mark.parametrize("lie", ["return=zero", "return=sentinel", "return=garbage"])
def test_a_lie_from_the_start_gives_no_figure_and_the_truth_comes_later(h100: Simulated, lie: str) -> None:
    number = h100.fault(f"gpu=2,call=nvmlDeviceGetMemoryInfo*,{lie}")

    async def main() -> None:
        async with reading(h100) as reader:
            told = await good_round(reader)
            liar = by_index(told, 2)
            assert liar.vram_bytes.value is None
            assert "could be believed" in liar.vram_bytes.absent_reason
            assert condition(liar, HealthCode.READING_REJECTED) is not None
            assert condition(liar, HealthCode.USE_UNKNOWN) is not None
            assert liar.tflops.value == 989
            assert others_are_well(told, 2)
            rejected = reader.statistics().rejected_readings
            reason = {"return=zero": "zero"}.get(lie, "range")
            assert rejected[liar.identity.uuid, "total_memory", reason] > 0
            h100.machine.clear_fault(number)
            well = await until(reader, lambda now: by_index(now, 2).conditions == ())
            assert by_index(well, 2).vram_bytes.value == by_index(well, 3).vram_bytes.value

    trio.run(main)


@pytest.mark.parametrize(
    ("call", "figure"),
    [
        ("nvmlDeviceGetTemperature*", "temperature_celsius"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetUtilizationRates", "utilization_ratio"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_joules_total"),
        ("nvmlDeviceGetClockInfo", "sm_clock_hertz"),
    ],
)
def test_one_absurd_reading_stands_as_the_last_good_one(h100: Simulated, call: str, figure: str) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = getattr(by_index(await good_round(reader), 5).readings, figure)
            h100.fault(f"gpu=5,call={call},return=garbage")
            told = await good_round(reader)
            after = getattr(by_index(told, 5).readings, figure)
            assert after.stale
            assert after.value >= before.value  # energy may have gone on before the fault
            assert by_index(told, 5).health is HealthState.HEALTHY
            assert not by_index(told, 5).vram_bytes.stale
            rejected = condition(by_index(told, 5), HealthCode.READING_REJECTED)
            assert rejected is not None
            assert others_are_well(told, 5)
            later = await good_round(reader)
            assert condition(by_index(later, 5), HealthCode.READING_REJECTED) == rejected

    trio.run(main)


@pytest.mark.parametrize(
    "missing",
    [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGet*RunningProcesses_v?",
        "nvmlDeviceGetTemperatureV",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ],
)
def test_an_older_driver_loses_nothing_that_has_an_older_call(t4: Simulated, missing: str) -> None:
    t4.fault(f"call={missing},missing")

    async def main() -> None:
        async with reading(t4) as reader:
            inventory = await good_round(reader)
            (device,) = inventory.devices
            assert device.conditions == ()
            assert device.vram_bytes.value is not None
            assert device.readings.memory_used_bytes.value is not None
            assert device.readings.processes == ()
            assert device.readings.temperature_celsius.value is not None
            assert inventory.system.cuda_version == "13.0"
            calls = reader.statistics().calls
            # What is missing is asked once and not in each round.
            assert all(count <= 3 for (_, code), count in calls.items() if code == 13)
            assert any(code == 13 for _, code in calls)

    trio.run(main)


def test_without_the_new_memory_call_reserved_is_absent_and_counted_as_used(t4: Simulated) -> None:
    t4.fault("call=nvmlDeviceGetMemoryInfo_v2,missing")
    reserved = t4.machine.show()["gpus"][0]["memory"]["reserved_bytes"]

    async def main() -> None:
        async with reading(t4) as reader:
            (device,) = (await good_round(reader)).devices
            assert device.readings.memory_reserved_bytes.value is None
            assert device.readings.memory_used_bytes.value == reserved

    trio.run(main)


def test_a_feature_that_a_gpu_lacks_is_absent_with_a_reason_and_no_condition(t4: Simulated) -> None:
    t4.fault("call=nvmlDeviceGetTotalEnergyConsumption,return=3")
    t4.fault("call=nvmlDeviceGetProcessUtilization,return=3")

    async def main() -> None:
        async with reading(t4) as reader:
            (device,) = (await good_round(reader)).devices
            assert device.readings.energy_joules_total.value is None
            assert "not supported" in device.readings.energy_joules_total.absent_reason
            assert device.conditions == ()
            await good_round(reader)
            assert reader.statistics().calls["nvmlDeviceGetTotalEnergyConsumption", 3] == 1

    trio.run(main)


def test_a_lost_gpu_is_lost_at_once_and_keeps_who_it_is(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            number = h100.fault("gpu=3,lost")
            told = await until(reader, lambda now: by_index(now, 3).health is HealthState.LOST)
            lost = by_index(told, 3)
            assert lost.identity == by_index(before, 3).identity
            assert lost.vram_bytes.value == by_index(before, 3).vram_bytes.value
            assert lost.readings.processes is None
            assert condition(lost, HealthCode.GPU_LOST) is not None
            assert others_are_well(told, 3)
            # The matrix of the others is whole, also when NVML starts anew.
            os_pid = reader.statistics().child_pid
            assert os_pid is not None
            await reader.detach(by_index(before, 7).identity.uuid)
            await reader.attach(by_index(before, 7).identity.uuid)
            again = await until(
                reader, lambda now: by_index(now, 7).health is HealthState.HEALTHY and now.conditions == ()
            )
            assert by_index(again, 3).health is HealthState.LOST
            for device in again.devices:
                assert device.topology is not None
                assert {link.tier for link in device.topology.links} == {0}
            h100.machine.clear_fault(number)
            well = await until(reader, lambda now: by_index(now, 3).health is HealthState.HEALTHY)
            assert by_index(well, 3).conditions == ()

    trio.run(main)


def test_a_gpu_lost_before_the_start_is_a_hole_that_the_node_tells_of(h100: Simulated) -> None:
    number = h100.fault("gpu=3,lost")

    async def main() -> None:
        async with reading(h100) as reader:
            told = await good_round(reader)
            assert [device.identity.index for device in told.devices] == [0, 1, 2, 4, 5, 6, 7]
            hole = condition(told, HealthCode.GPU_UNREADABLE)
            assert hole is not None
            assert "index 3" in hole.message
            assert all(device.health is HealthState.HEALTHY for device in told.devices)
            h100.machine.clear_fault(number)
            well = await until(reader, lambda now: len(now.devices) == 8 and now.conditions == ())
            assert by_index(well, 3).identity.index == 3

    trio.run(main)


def test_a_vanished_gpu_stays_listed_and_the_rest_keep_their_names(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            gone, last = before.devices[3].identity.uuid, before.devices[7].identity.uuid
            number = h100.fault("gpu=3,vanish")
            await until(reader, lambda now: any(each.health is HealthState.LOST for each in now.devices))
            await reader.detach(last)
            await reader.attach(last)
            told = await until(
                reader,
                lambda now: (
                    any(condition(each, HealthCode.GPU_MISSING) is not None for each in now.devices)
                    and sum(each.health is HealthState.HEALTHY for each in now.devices) == 7
                ),
            )
            missing = next(each for each in told.devices if condition(each, HealthCode.GPU_MISSING))
            assert missing.identity.uuid == gone
            assert missing.health is HealthState.LOST
            assert missing.vram_bytes.value == before.devices[3].vram_bytes.value
            assert {each.identity.uuid for each in told.devices} == {each.identity.uuid for each in before.devices}
            # The driver has numbered the rest anew; no two devices have one number.
            numbers = {each.identity.uuid: each.identity.index for each in told.devices}
            assert numbers.pop(gone) >= 7
            assert sorted(numbers.values()) == list(range(7))
            h100.machine.clear_fault(number)
            await reader.detach(last)
            await reader.attach(last)
            await until(
                reader,
                lambda now: (
                    all(each.health is HealthState.HEALTHY for each in now.devices)
                    and [each.identity for each in now.devices] == [each.identity for each in before.devices]
                ),
            )

    trio.run(main)


def test_a_count_that_fails_at_the_start_is_told(t4: Simulated) -> None:
    number = t4.fault("call=nvmlDeviceGetCount*,return=999")

    async def main() -> None:
        async with reading(t4) as reader:
            told = await until(reader, lambda now: condition(now, HealthCode.NVML_FAILED) is not None)
            assert told.devices == ()
            t4.machine.clear_fault(number)
            await until(reader, lambda now: len(now.devices) == 1 and now.conditions == ())

    trio.run(main)


@pytest.mark.parametrize("lie", ["return=zero", "value=2", "return=999"])
def test_a_wrong_count_at_a_new_start_loses_no_gpu(h100: Simulated, lie: str) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            h100.fault(f"call=nvmlDeviceGetCount*,{lie}")
            uuid = before.devices[0].identity.uuid
            await reader.detach(uuid)
            await reader.attach(uuid)
            told = await until(reader, lambda now: by_index(now, 0).health is HealthState.HEALTHY)
            told = await good_round(reader)
            assert [each.identity for each in told.devices] == [each.identity for each in before.devices]
            assert all(each.health is HealthState.HEALTHY and not each.vram_bytes.stale for each in told.devices)

    trio.run(main)


def test_a_gpu_that_hangs_is_left_out_and_the_others_go_on(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=1.0)) as reader:
            await good_round(reader)
            h100.fault("gpu=1,call=nvmlDeviceGetPowerUsage,hang=forever")
            told = await until(
                reader,
                lambda now: (
                    condition(by_index(now, 1), HealthCode.GPU_UNREADABLE) is not None
                    and others_are_well(now, 1)
                    and now.conditions == ()
                ),
            )
            assert by_index(told, 1).vram_bytes.value == by_index(told, 0).vram_bytes.value
            assert by_index(told, 1).vram_bytes.stale
            for _ in range(3):
                assert others_are_well(await good_round(reader), 1)

    trio.run(main)


def test_a_gpu_that_hangs_while_it_is_opened_costs_the_others_one_time_out(h100: Simulated) -> None:
    h100.fault("gpu=1,call=nvmlDeviceGetHandleBy*,hang=forever")

    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=2)) as reader:
            told = await until(reader, lambda now: len(now.devices) == 7 and now.conditions != ())
            assert reader.statistics().hangs == 0  # the first reader still waits for its answer
            hole = condition(told, HealthCode.GPU_UNREADABLE)
            assert hole is not None
            assert "index 1" in hole.message
            assert others_are_well(told, 1)

    trio.run(main)


def test_a_device_that_needs_power_is_unhealthy_and_listed(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            await good_round(reader)
            h100.fault("gpu=6,call=nvmlDeviceGetMemoryInfo*,return=8")
            told = await until(reader, lambda now: by_index(now, 6).health is HealthState.UNHEALTHY)
            unreadable = condition(by_index(told, 6), HealthCode.GPU_UNREADABLE)
            assert unreadable is not None
            assert "power" in unreadable.message
            assert others_are_well(told, 6)

    trio.run(main)


def test_a_gpu_that_needs_a_reset_is_unhealthy_at_once(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            await good_round(reader)
            h100.fault("gpu=6,call=nvmlDeviceGet*,return=16")
            told = await until(reader, lambda now: by_index(now, 6).health is HealthState.UNHEALTHY)
            assert others_are_well(told, 6)

    trio.run(main)


@pytest.mark.parametrize("lie", ["return=zero", "return=garbage", "return=sentinel"])
def test_facts_that_can_not_be_true_at_the_start_are_asked_again(h100: Simulated, lie: str) -> None:
    facts = ("Name", "MinorNumber", "CudaComputeCapability", "NumGpuCores", "MaxClockInfo", "PciInfo*")
    for fact in facts:
        h100.fault(f"gpu=4,call=nvmlDeviceGet{fact},{lie}")

    async def main() -> None:
        async with reading(h100) as reader:
            told = await until(reader, lambda now: len(now.devices) == 8)
            liar = by_index(told, 4)
            assert liar.identity.sm_count is None or liar.identity.sm_count < 1000
            assert liar.identity.minor in (None, 0)
            if lie != "return=sentinel":  # there is none for a name, and the name alone is enough
                assert liar.tflops.value is None
                assert condition(liar, HealthCode.MODEL_UNKNOWN) is not None
            assert liar.vram_bytes.value == by_index(told, 3).vram_bytes.value
            assert others_are_well(told, 4)
            h100.machine.clear_faults()
            well = await until(reader, lambda now: by_index(now, 4).identity.sm_count == 132)
            assert by_index(well, 4).tflops.value == 989
            assert by_index(well, 4).conditions == ()
            assert by_index(well, 4).identity.minor == 4 or lie == "return=zero"
            assert by_index(well, 4).identity.pci_device_id == "10de:2330"

    trio.run(main)


def test_a_driver_that_is_exchanged_underneath_is_taken_up(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            h100.fault("driver=590.44.01")
            told = await until(reader, lambda now: now.system.driver_version == "590.44.01" and now.conditions == ())
            assert [each.identity for each in told.devices] == [each.identity for each in before.devices]
            await until(reader, lambda now: all(each.health is HealthState.HEALTHY for each in now.devices))

    trio.run(main)
