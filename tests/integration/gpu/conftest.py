"""A simulated machine, and a reader on it that looks often."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from hypervisor.config import Settings
from hypervisor.gpu import GpuReader, open_gpu_reader
from hypervisor.model import Condition, DeviceObservation, Inventory
from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.environment import environment
from hypervisor.simulation.faults import parse_fault_text
from hypervisor.simulation.machine import Machine, create
from hypervisor.simulation.profiles import load_profile
from hypervisor.simulation.spec import MachineSpec

DEADLINE_SECONDS = 20.0
NEWEST_DRIVER = "595.71.05"
OLDER_DRIVER = "535.104.05"
DIVIDED = """
version: 1
driver: {version: "535.104.05", cuda: 12020}
gpus:
  - {count: 4, profile: a100-sxm-80gb}
mig: {gpu3: {mode: on, instances: [3g.40gb, 2g.20gb]}}
"""


@dataclass
class Simulated:
    """A machine, its spec, and what a process needs to run on it."""

    path: Path
    machine: Machine

    @property
    def environment(self) -> Mapping[str, str]:
        return environment(self.path, dict(os.environ))

    def fault(self, text: str) -> int:
        return self.machine.add_fault(parse_fault_text(text, self.machine.gpu_count))


def make_machine(path: Path, profile: str, *, driver: str = "") -> Iterator[Simulated]:
    """A machine of a profile; on another driver than the profile's, where one is named."""
    spec = load_profile(profile)
    yield from made(path, replace(spec, system=replace(spec.system, driver_version=driver)) if driver else spec)


def made(path: Path, spec: MachineSpec) -> Iterator[Simulated]:
    create(path, spec)
    machine = Machine.open(path)
    try:
        yield Simulated(path, machine)
    finally:
        machine.close()


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Simulated]:
    yield from make_machine(tmp_path / "machine", "h100-sxm-80gb")


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Simulated]:
    """On a driver that has every call which the reader knows."""
    yield from make_machine(tmp_path / "machine", "h100-sxm-80gb", driver=NEWEST_DRIVER)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Simulated]:
    """On a driver that is asked in the ways of before."""
    yield from make_machine(tmp_path / "older", "h100-sxm-80gb", driver=OLDER_DRIVER)


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[Simulated]:
    """Four cards, the last of which is divided."""
    yield from made(tmp_path / "machine", parse_machine(DIVIDED, "divided", profile="divided"))


@pytest.fixture
def t4(tmp_path: Path) -> Iterator[Simulated]:
    yield from make_machine(tmp_path / "machine", "t4")


def quick(**changes: object) -> Settings:
    """Settings under which a test sees many rounds in little time."""
    return Settings(**{"reading_interval_seconds": 0.05, "reading_timeout_seconds": 1.0, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def reading(simulated: Simulated, settings: Settings | None = None) -> AsyncIterator[GpuReader]:
    async with open_gpu_reader(settings or quick(), environment=simulated.environment) as reader:
        yield reader


async def until(reader: GpuReader, holds: Callable[[Inventory], bool]) -> Inventory:
    """The first inventory, from the present one on, of which something holds; fails after a deadline."""
    inventory = reader.inventory
    with trio.move_on_after(DEADLINE_SECONDS):
        while not holds(inventory):
            inventory = await reader.next_inventory(inventory.sequence)
        return inventory
    raise AssertionError(f"not within {DEADLINE_SECONDS} s; the last inventory is {inventory}")


async def good_round(reader: GpuReader) -> Inventory:
    """An inventory of a round that went well and began after now."""
    rounds = reader.statistics().rounds
    return await until(reader, lambda inventory: reader.statistics().rounds >= rounds + 2)


def by_index(inventory: Inventory, index: int) -> DeviceObservation:
    return next(device for device in inventory.devices if device.identity.index == index)


def condition(owner: Inventory | DeviceObservation, code: object) -> Condition | None:
    return next((each for each in owner.conditions if each.code is code), None)


PYTHON = sys.executable
