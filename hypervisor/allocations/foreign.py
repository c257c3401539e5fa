"""Whose memory is it? What processes of no allocation hold on each GPU, for admission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypervisor.model import DeviceObservation, Inventory


def foreign_bytes(
    inventory: Inventory, ours: Mapping[str, set[int]], reserved: Mapping[str, int]
) -> dict[str, int | None]:
    """By GPU UUID, the VRAM that processes of no allocation hold; None where that can't be said.

    ours: by GPU UUID, the host pids of our allocations; reserved: by GPU UUID, the bytes that they account, for
    drivers that don't say what each process holds.
    """
    return {
        device.identity.uuid: _of_device(
            device, ours.get(device.identity.uuid, set()), reserved.get(device.identity.uuid, 0)
        )
        for device in inventory.devices
    }


def _of_device(device: DeviceObservation, ours: set[int], reserved: int) -> int | None:
    listed = device.readings.processes
    if listed is not None:
        held = [process.memory_bytes for process in listed if process.pid not in ours]
        if None not in held:
            return sum(value for value in held if value is not None)
    used = device.readings.memory_used_bytes.value
    if used is None:
        return None
    # All that is used and that we can't account for: contexts of ours count as foreign here, which errs on the safe
    # side. What the driver keeps for itself is no part of what is used (gpu/judge.py).
    return max(0, used - reserved)


def unattributed_pids(inventory: Inventory, ours: Iterable[int]) -> set[int]:
    """Host pids that the driver lists and that no allocation is known to have."""
    listed = {process.pid for device in inventory.devices for process in device.readings.processes or ()}
    return listed - set(ours)


def foreign_busy(inventory: Inventory, ours: set[int]) -> dict[str, float]:
    """By GPU UUID, the share of its time that processes of no allocation use, as far as the driver tells."""
    return {
        device.identity.uuid: sum(
            (process.busy_ratio or 0.0 for process in device.readings.processes or () if process.pid not in ours), 0.0
        )
        for device in inventory.devices
    }
