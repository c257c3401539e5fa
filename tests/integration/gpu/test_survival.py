"""The child dies, hangs or loses its driver: the last inventory stands, and the child comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import trio

from hypervisor.config import Settings
from hypervisor.gpu import open_gpu_reader
from hypervisor.gpu.pipe import COMMAND
from hypervisor.model import HealthCode, HealthState, Inventory, Refusal
from tests.integration.gpu.conftest import Simulated, condition, good_round, quick, reading, until


def alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_kill_9_of_the_child(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            first = reader.statistics().child_pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            down = await until(reader, lambda now: condition(now, HealthCode.READER_RESTARTING) is not None)
            assert [each.identity for each in down.devices] == [each.identity for each in before.devices]
            for old, new in zip(before.devices, down.devices, strict=True):
                assert new.vram_bytes.value == old.vram_bytes.value
                assert new.vram_bytes.stale
                assert new.health is HealthState.HEALTHY
            after = await until(reader, lambda now: now.conditions == () and not now.devices[0].vram_bytes.stale)
            assert len(after.devices) == 8
            assert reader.statistics().child_pid not in (None, first)
            assert reader.statistics().restarts == 1

    trio.run(main)


@pytest.mark.slow
def test_kill_9_amid_a_slow_call_is_no_cards_fault(h100: Simulated) -> None:  # field report 68
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=5.0)) as reader:
            await good_round(reader)
            number = h100.fault("gpu=4,call=nvmlDeviceGetPowerUsage,delay=2s,count=1")

            def is_in_the_call(_: Inventory) -> bool:
                return bool(next(each["hits"] for each in h100.machine.show()["faults"] if each["id"] == number))

            struck_at = time.monotonic()
            await until(reader, is_in_the_call)
            first = reader.statistics().child_pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            killed_at = time.monotonic()
            assert killed_at - struck_at < 1.9, "the call was over"
            after = await until(
                reader,
                lambda now: all(each.readings.power_watts.observed_at > killed_at for each in now.devices),
            )
            assert not alive(first)
            assert [each.health for each in after.devices] == [HealthState.HEALTHY] * 8
            assert reader.statistics().child_pid != first

    trio.run(main)


def test_a_child_that_dies_while_nothing_is_asked_of_it_is_no_cards_fault(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_interval_seconds=0.3)) as reader:
            await good_round(reader)
            first, rounds = reader.statistics().child_pid, reader.statistics().rounds
            assert first is not None
            os.kill(first, signal.SIGKILL)  # a round was told just now, so it is idle
            after = await until(reader, lambda now: reader.statistics().rounds > rounds)
            assert reader.statistics().child_pid != first
            assert [each.vram_bytes.stale for each in after.devices] == [False] * 8
            assert [each.conditions for each in after.devices] == [()] * 8

    trio.run(main)


def test_a_stopped_child_is_replaced(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=3)) as reader:
            before = await good_round(reader)
            first = reader.statistics().child_pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            # All but the one that was just asked about are read by another child, long before the time-out.
            others = await until(
                reader,
                lambda now: (
                    reader.statistics().child_pid not in (None, first)
                    and sum(not each.vram_bytes.stale for each in now.devices) == 7
                ),
            )
            assert alive(first)
            assert reader.statistics().hangs == 0
            (asked,) = [each for each in others.devices if each.vram_bytes.stale]
            assert condition(asked, HealthCode.GPU_UNREADABLE) is not None
            assert [each.vram_bytes.value for each in others.devices] == [
                each.vram_bytes.value for each in before.devices
            ]
            await until(reader, lambda now: all(not each.vram_bytes.stale for each in now.devices))
            after = await good_round(reader)
            assert after.conditions == ()
            assert all(each.health is HealthState.HEALTHY and each.conditions == () for each in after.devices)
            assert reader.statistics().hangs == 1
            assert reader.statistics().lingering_children == 0
            assert not alive(first)

    trio.run(main)


@pytest.mark.slow
def test_a_child_that_is_stopped_as_it_starts_is_replaced_after_one_patience(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=2)) as reader:
            uuid = (await good_round(reader)).devices[3].identity.uuid
            await reader.detach(uuid)
            await trio.sleep(0.05)  # the next one starts its interpreter
            for pid in children():
                os.kill(pid, signal.SIGSTOP)
            begun = time.monotonic()
            await good_round(reader)
            assert time.monotonic() - begun < 5  # three would be six

    trio.run(main)


def test_a_late_answer_is_no_hang(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=30)) as reader:
            await good_round(reader)
            h100.fault("gpu=4,call=nvmlDeviceGetPowerUsage,delay=2s,count=1")
            told = await until(reader, lambda now: condition(now.devices[4], HealthCode.GPU_UNREADABLE) is not None)
            assert all(not each.vram_bytes.stale for each in told.devices if each is not told.devices[4])
            await until(reader, lambda now: now.devices[4].conditions == () and not now.devices[4].vram_bytes.stale)
            assert reader.statistics().hangs == 0
            assert reader.statistics().restarts == 1

    trio.run(main)


def test_a_hang_of_the_whole_library_is_told_and_ends_with_it(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            number = h100.fault("call=nvmlInitWithFlags,hang=forever")
            uuid = before.devices[0].identity.uuid
            await reader.detach(uuid)
            await reader.attach(uuid)
            down = await until(reader, lambda now: condition(now, HealthCode.READER_HUNG) is not None)
            assert [each.vram_bytes.value for each in down.devices] == [
                each.vram_bytes.value for each in before.devices
            ]
            h100.machine.clear_fault(number)
            await until(reader, lambda now: now.conditions == () and not now.devices[0].vram_bytes.stale)

    trio.run(main)


def test_a_child_ends_with_its_daemon_even_when_it_hangs(t4: Simulated) -> None:
    t4.fault("call=nvmlInitWithFlags,hang=forever")
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(t4.environment)) as child:
        from hypervisor.gpu import wire

        assert child.stdin is not None
        child.stdin.write(wire.frame(wire.Open()))
        child.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.stdin.close()
        assert child.wait(10) == 0


def children() -> set[int]:
    """Processes of this one that run."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_reader_that_waits_takes_over_from_one_that_hangs(h100: Simulated) -> None:
    before = children()

    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=20)) as reader:
            await until(reader, lambda _: reader.statistics().stands_by)
            first = reader.statistics().child_pid
            spares = children() - before - {first}
            h100.fault("gpu=0,call=nvmlDeviceGetPowerUsage,hang=forever")
            await until(reader, lambda _: reader.statistics().child_pid not in (first, None))
            assert reader.statistics().child_pid in spares

    trio.run(main)
    assert children() - before == set()


@pytest.mark.slow
def test_a_card_that_comes_back_makes_no_other_wait(h100: Simulated) -> None:
    """The reader that stands by starts NVML anew, while the other one reads on."""

    async def main() -> None:
        async with reading(h100) as reader:
            uuid = (await good_round(reader)).devices[3].identity.uuid
            await reader.detach(uuid)
            await until(reader, lambda _: reader.statistics().stands_by)
            first, spares = reader.statistics().child_pid, children()
            h100.fault("gpu=3,reset=true")
            await reader.attach(uuid)
            stale, told = 0, reader.inventory
            while told.devices[3].health is not HealthState.HEALTHY:
                told = await reader.next_inventory(told.sequence)
                stale += sum(each.vram_bytes.stale for each in told.devices if each.identity.uuid != uuid)
            assert stale == 0
            assert reader.statistics().child_pid in spares - {first}
            assert not told.devices[3].vram_bytes.stale

    trio.run(main)


@pytest.mark.slow
def test_a_card_that_comes_back_and_hangs_holds_up_no_other(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100, quick(reading_timeout_seconds=20)) as reader:
            uuid = (await good_round(reader)).devices[3].identity.uuid
            await reader.detach(uuid)
            await until(reader, lambda _: reader.statistics().stands_by)
            h100.fault("gpu=3,call=*,hang=forever")
            begun = time.monotonic()
            await reader.attach(uuid)
            oldest = 0.0
            while time.monotonic() - begun < 12:
                told = await reader.next_inventory(reader.inventory.sequence)
                now = time.monotonic()
                figures = [each.vram_bytes for each in told.devices if each.identity.uuid != uuid]
                oldest = max(oldest, *(now - each.observed_at for each in figures))
            assert told.devices[3].health is HealthState.BLIND
            assert oldest < 5

    trio.run(main)


def test_no_library(tmp_path: Path) -> None:
    async def main() -> None:
        environment = {**os.environ, "TF_NVML_LIB_PATH": str(tmp_path / "nowhere.so")}
        async with open_gpu_reader(quick(), environment=environment) as reader:
            inventory = await until(reader, lambda now: condition(now, HealthCode.NVML_NOT_FOUND) is not None)
            found = condition(inventory, HealthCode.NVML_NOT_FOUND)
            assert found is not None
            assert "failed to load accelerator library" in found.message
            assert str(tmp_path / "nowhere.so") in found.message
            assert "TF_NVML_LIB_PATH" in found.message
            assert inventory.devices == ()

    trio.run(main)


def test_a_driver_that_is_not_ready_at_first_is_asked_for_all_it_has_later(t4: Simulated) -> None:
    """nvidia_gpu_exporter#65: what a driver can do is found out anew with each start of NVML."""
    t4.fault("call=nvmlInit*,return=9,count=2")
    missing = t4.fault("call=nvmlDeviceGetMemoryInfo_v2,return=13")

    async def main() -> None:
        async with open_gpu_reader(quick(), environment=t4.environment) as reader:
            await until(reader, lambda now: condition(now, HealthCode.DRIVER_NOT_LOADED) is not None)
            (device,) = (await until(reader, lambda now: len(now.devices) == 1)).devices
            assert device.readings.memory_reserved_bytes.value is None
            t4.machine.clear_fault(missing)
            pid = reader.statistics().child_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(
                reader,
                lambda now: bool(now.devices) and now.devices[0].readings.memory_reserved_bytes.value is not None,
            )

    trio.run(main)


def test_a_machine_that_comes_later(tmp_path: Path, t4: Simulated) -> None:
    link = tmp_path / "later"

    async def main() -> None:
        environment = {**t4.environment, "SIM_MACHINE": str(link)}
        async with open_gpu_reader(quick(), environment=environment) as reader:
            inventory = await until(reader, lambda now: condition(now, HealthCode.DRIVER_NOT_LOADED) is not None)
            found = condition(inventory, HealthCode.DRIVER_NOT_LOADED)
            assert found is not None
            assert str(link) in found.message
            os.link(t4.path, link)
            inventory = await until(reader, lambda now: len(now.devices) == 1 and now.conditions == ())
            assert inventory.simulated

    trio.run(main)


def test_the_reader_ends_quickly_beside_a_child_that_hangs(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4, quick(reading_timeout_seconds=60)) as reader:
            await good_round(reader)
            t4.fault("call=nvmlDeviceGetMemoryInfo_v2,hang=forever")
            await until(reader, lambda now: condition(now.devices[0], HealthCode.GPU_UNREADABLE) is not None)
            begun = time.monotonic()
        assert time.monotonic() - begun < 5

    trio.run(main)


def test_detach_ends_every_handle_and_leaves_the_others(h100: Simulated) -> None:
    async def main() -> None:
        async with reading(h100) as reader:
            before = await good_round(reader)
            uuid = before.devices[3].identity.uuid
            first = reader.statistics().child_pid
            await reader.detach(uuid)
            assert not alive(first)
            told = await good_round(reader)
            assert len(told.devices) == 8
            away = told.devices[3]
            assert away.health is HealthState.DRAINING
            assert condition(away, HealthCode.GPU_DETACHED) is not None
            assert away.vram_bytes.stale
            assert away.vram_bytes.value == before.devices[3].vram_bytes.value
            assert all(
                each.health is HealthState.HEALTHY and not each.vram_bytes.stale
                for each in told.devices
                if each is not away
            )
            touched = {index: h100.fault(f"gpu={index},call=*,delay=1ns") for index in (2, 3)}
            await good_round(reader)
            hits = {fault["id"]: fault["hits"] for fault in h100.machine.show()["faults"]}
            assert hits[touched[3]] == 0
            assert hits[touched[2]] > 0
            await reader.attach(uuid.lower())
            back = await until(reader, lambda now: now.devices[3].health is HealthState.HEALTHY)
            assert not back.devices[3].vram_bytes.stale
            with pytest.raises(Refusal, match="no GPU GPU-none"):
                await reader.detach("GPU-none")

    trio.run(main)


def test_reload_keeps_the_old_catalogue_when_the_new_one_is_wrong(t4: Simulated, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    settings = quick(catalogue=str(site))

    async def main() -> None:
        site.write_text('[[model]]\nnames = ["Tesla T4"]\ntflops = 50\n', encoding="utf-8")
        async with reading(t4, settings) as reader:
            inventory = await good_round(reader)
            assert inventory.devices[0].tflops.value == 50
            site.write_text('[[model]]\nnames = ["Tesla T4"]\ntflops = "many"\n', encoding="utf-8")
            with pytest.raises(ValueError, match=r"tflops"):
                reader.reload(settings)
            assert (await good_round(reader)).devices[0].tflops.value == 50
            reader.reload(Settings(reading_interval_seconds=0.05))
            assert (await good_round(reader)).devices[0].tflops.value == 65

    trio.run(main)
