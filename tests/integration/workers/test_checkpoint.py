"""Freezing and thawing by the driver's checkpoint interface, judged by the simulated machine's ledger."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from hypervisor.simulation.environment import environment as simulated_environment
from hypervisor.simulation.machine import opened, prepared
from hypervisor.workers.checkpoint import FreezeError, Freezer
from tests.integration.workers.conftest import until

GIB = 2**30
NATIVE = Path("hypervisor/native").resolve()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return prepared("h100-sxm-80gb", tmp_path)


def freezer(machine: Path, **more: str) -> Freezer:
    return Freezer({**os.environ, **simulated_environment(machine, {}), **more})


def client(machine: Path, *flags: str, name: str = "one") -> subprocess.Popen[str]:
    environment = simulated_environment(machine, {}) | {"SIM_GROUP": name}
    made = subprocess.Popen([NATIVE / "clients/load", *flags], env=environment, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    while json.loads(made.stdout.readline()).get("memory") != "held":
        continue
    return made


def used(machine: Path, name: str = "one") -> dict[str, Any]:
    with opened(machine) as found:
        return next(dict(group["gpus"]["0"]) for group in found.show()["groups"] if group["name"] == name)


def test_vram_goes_to_the_host_and_comes_back(machine: Path) -> None:
    worker = client(machine, "--hold", str(3 * GIB), "--seconds", "600", "--kernel-us", "1000", "--depth", "1")
    before = used(machine)["bytes"]
    assert before > 3 * GIB

    async def body() -> None:
        tool = freezer(machine)
        await tool.freeze([worker.pid])
        assert used(machine)["bytes"] == 0
        launches = used(machine)["launches"]
        with pytest.raises(FreezeError, match="CUDA error 401"):
            await tool.freeze([worker.pid])  # it is frozen already
        assert used(machine)["launches"] <= launches + 1  # it waits in its next call
        await tool.thaw([worker.pid])
        assert used(machine)["bytes"] == before
        await until(lambda: used(machine)["launches"] > launches + 1, "launches again", 20)

    try:
        trio.run(body)
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.slow
def test_all_or_none(machine: Path) -> None:
    one = client(machine, "--hold", str(GIB), "--idle", "--seconds", "600")
    held = used(machine)["bytes"]

    async def body() -> None:
        with pytest.raises(FreezeError, match="cuCheckpointProcessLock of process 1"):
            await freezer(machine).freeze([one.pid, 1])  # the second is no process of the driver's
        assert used(machine)["bytes"] == held

    try:
        trio.run(body)
    finally:
        one.kill()
        one.communicate()


@pytest.mark.slow
def test_it_stays_frozen_when_its_place_was_taken(machine: Path) -> None:
    one = client(machine, "--hold", str(50 * GIB), "--idle", "--seconds", "600")
    others: list[subprocess.Popen[str]] = []

    async def body() -> None:
        tool = freezer(machine)
        await tool.freeze([one.pid])
        others.append(client(machine, "--hold", str(40 * GIB), "--idle", "--seconds", "600", name="other"))
        with pytest.raises(FreezeError, match="there is no room for it on its GPU"):
            await tool.thaw([one.pid])
        others[0].kill()
        others[0].wait()
        await tool.thaw([one.pid])
        assert used(machine)["bytes"] > 50 * GIB

    try:
        trio.run(body)
    finally:
        for each in (one, *others):
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def test_an_older_driver_is_refused_with_the_reason(machine: Path) -> None:
    async def body() -> None:
        old = freezer(machine, LD_LIBRARY_PATH=str(NATIVE / "simulator-r550"))
        with pytest.raises(FreezeError, match=r"older than CUDA 12\.8"):
            await old.freeze([1])

    trio.run(body)
