"""What a healthy simulated machine is told as; expected values come from the machine's description, not from NVML."""

from __future__ import annotations

import trio

from hypervisor.model import FigureSource, HealthCode, HealthState
from hypervisor.model.topology import PcieLevel
from hypervisor.simulation.profiles import load_profile
from tests.integration.gpu.conftest import Simulated, by_index, condition, good_round, quick, reading, until


def test_eight_gpus_with_identity_capacity_and_links(h100: Simulated) -> None:
    spec = load_profile("h100-sxm-80gb")

    async def main() -> None:
        async with reading(h100) as reader:
            before = reader.inventory
            assert before.devices == ()
            assert condition(before, HealthCode.STARTING) is not None
            inventory = await good_round(reader)
        assert inventory.simulated
        assert inventory.conditions == ()
        assert inventory.system.driver_version == spec.system.driver_version
        assert [device.identity.index for device in inventory.devices] == list(range(8))
        for device, gpu in zip(inventory.devices, spec.gpus, strict=True):
            assert device.identity.uuid == gpu.uuid
            assert device.identity.simulated
            assert device.identity.minor == gpu.minor
            assert device.identity.sm_count == 132
            assert device.identity.architecture == "Hopper"
            assert device.identity.pci_device_id == "10de:2330"
            assert device.identity.pci_bus_id.startswith("0000:")
            assert device.health is HealthState.HEALTHY
            assert device.conditions == ()
            assert (device.tflops.value, device.tflops.source) == (989.0, FigureSource.CATALOGUE)
            assert device.vram_bytes.value == gpu.memory_total_bytes
            assert device.readings.memory_used_bytes.value == 0
            assert device.readings.memory_reserved_bytes.value == gpu.memory_reserved_bytes
            assert device.readings.processes == ()
            assert device.topology is not None
            assert device.topology.numa_node == gpu.numa_node
            assert len(device.topology.links) == 7
            for link in device.topology.links:
                assert (link.tier, link.nvlink_count, link.nvlink_switched) == (0, 18, True)
                assert link.bandwidth_bytes_per_second == 450_000_000_000
                assert link.peer_access is True
        far = next(
            link
            for link in by_index(inventory, 0).topology.links  # type: ignore[union-attr]
            if link.peer_uuid == spec.gpus[7].uuid
        )
        assert far.pcie_level is PcieLevel.SYS

    trio.run(main)


def test_a_card_alone(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4) as reader:
            inventory = await good_round(reader)
        (device,) = inventory.devices
        assert (device.identity.model, device.tflops.value, device.identity.sm_count) == ("Tesla T4", 65.0, 40)
        assert device.topology is not None
        assert device.topology.links == ()

    trio.run(main)


def test_sequences_grow_and_none_is_told_twice(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4) as reader:
            seen = [reader.inventory.sequence]
            for _ in range(5):
                seen.append((await reader.next_inventory(seen[-1])).sequence)
        assert seen == sorted(set(seen))

    trio.run(main)


def test_cancelling_a_wait_for_an_inventory_loses_nothing(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4, quick(reading_interval_seconds=30)) as reader:
            inventory = await until(reader, lambda inventory: bool(inventory.devices))
            with trio.move_on_after(0.05) as scope:
                await reader.next_inventory(inventory.sequence)
            assert scope.cancelled_caught
            assert reader.inventory is inventory

    trio.run(main)


def test_statistics_count_calls_by_code(t4: Simulated) -> None:
    async def main() -> None:
        async with reading(t4) as reader:
            await good_round(reader)
            statistics = reader.statistics()
        assert statistics.calls["nvmlDeviceGetMemoryInfo_v2", 0] >= 2
        assert statistics.call_seconds["nvmlDeviceGetMemoryInfo_v2"] > 0
        assert statistics.restarts == 0
        assert statistics.child_pid is not None

    trio.run(main)
