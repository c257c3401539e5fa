"""One round of the gpu-reader, for a node on which no daemon answers."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import trio

from hypervisor.config import Settings
from hypervisor.doctor.facts import NodeFacts, inventory_facts
from hypervisor.gpu import open_gpu_reader
from hypervisor.model import HealthCode, Inventory

DEADLINE_SECONDS = 1.5


def read_once(environment: Mapping[str, str], *, deadline_seconds: float = DEADLINE_SECONDS) -> NodeFacts:
    """What the driver says now, or by a condition why it says nothing. The child is gone when this returns.

    environment is the child's, as for open_gpu_reader.
    """
    return trio.run(_read, environment, deadline_seconds)


async def _read(environment: Mapping[str, str], deadline_seconds: float) -> NodeFacts:
    async with open_gpu_reader(Settings(), environment=environment) as reader:
        inventory = reader.inventory
        with trio.move_on_after(deadline_seconds):
            while _starting(inventory):
                inventory = await reader.next_inventory(inventory.sequence)
        return inventory_facts(inventory, name=socket.gethostname())


def _starting(inventory: Inventory) -> bool:
    return any(condition.code is HealthCode.STARTING for condition in inventory.conditions)
