"""Cards under MPS whose disk or whose past is in the way: withheld with the reason, and nobody else is held up."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from dataclasses import replace
from typing import Any

import pytest
import trio

from hypervisor.model import Refusal, RefusalReason, WorkerPhase
from hypervisor.workers.mps import MpsCards
from hypervisor.workers.mps.control import Control, ControlError
from hypervisor.workers.shim_files import read_status
from tests.integration.workers.conftest import until
from tests.integration.workers.test_mps import OWNER, Modes, Mps, mps

__all__ = ["mps"]


def impatient(cards: MpsCards) -> None:
    cards._settings = replace(cards._settings, prepare_seconds=0.3)


async def refused(mps: Mps, cards: MpsCards) -> str:
    impatient(cards)
    with pytest.raises(Refusal) as caught:
        await cards.prepare(mps.grant(), OWNER)
    assert caught.value.reason is RefusalReason.NOT_READY
    return str(caught.value)


@pytest.mark.slow
def test_a_card_that_never_began_is_given_back(mps: Mps, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no control daemon to stop, and nothing to end for it."""
    monkeypatch.setattr("hypervisor.workers.mps.cards.IDLE_SECONDS", 0.1)
    mps.modes.refusal = "NVML says: Insufficient Permissions"

    async def body() -> None:
        async with mps.cards() as (cards, _):
            assert "Insufficient Permissions" in await refused(mps, cards)
            await until(lambda: not cards.withheld(), "the card to be given back")

    trio.run(body)


def test_a_directory_that_can_not_be_written_withholds_the_card(mps: Mps) -> None:
    async def body() -> None:
        (mps.rig.directory / "mps").write_text("a file where the directory is to be")
        async with mps.cards() as (cards, _):
            assert "its control daemon can't be kept: [Errno 20] Not a directory" in await refused(mps, cards)

    trio.run(body)


@pytest.mark.parametrize(
    "damage",
    [
        {"uuid": "../../x y"},
        {"uuid": "GPU-\0"},
        {"uuid": "GPU-of-another-folder"},
        {"percent": 0},
        {"percent": 2**70},
        {"memory_mebibytes": -1},
        {"uid": -1},
    ],
)
def test_a_damaged_memory_of_a_card_is_not_believed(mps: Mps, damage: dict[str, Any]) -> None:
    folder = mps.rig.directory / "mps/GPU-a"
    folder.mkdir(parents=True)
    whole = {"uuid": "GPU-a", "percent": 25, "memory_mebibytes": 100, "uid": 0}
    (folder / "card.json").write_text(json.dumps(whole | damage))

    async def body() -> None:
        async with mps.cards() as (cards, supervisor):
            await trio.sleep(0.02)
            assert cards.withheld() == {}
            assert supervisor.workers == ()

    trio.run(body)


class SlowToRestore(Modes):
    """Takes its time to give a card back, as a driver does."""

    async def restore(self, uuid: str, mode: str) -> str:
        await trio.sleep(0.5)
        return await super().restore(uuid, mode)


@pytest.mark.slow
def test_a_card_that_is_asked_for_while_it_is_given_back_is_exclusive(
    mps: Mps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the end of the old cut would take its daemon and its exclusive mode from the new one."""
    monkeypatch.setattr("hypervisor.workers.mps.cards.IDLE_SECONDS", 0.5)
    mps.modes = SlowToRestore()

    async def body() -> None:
        async with mps.cards() as (cards, supervisor):
            await cards.prepare(mps.allocation(mps.grant()).grants[0], OWNER)
            mps.hard.clear()
            await until(lambda: mps.uuid not in cards._cards, "the card to be given back", 60)
            allocation = mps.allocation(mps.grant(50), "b")
            await cards.prepare(allocation.grants[0], OWNER)
            await trio.sleep(1)
            assert mps.modes.mode == {mps.uuid: "exclusive-process"}
            assert (mps.folder / "card.json").exists()
            assert [worker.effective_sm_percent for worker in supervisor.workers] == [50]
            mps.hard.clear()
            await until(lambda: mps.modes.mode == {mps.uuid: "default"}, "the mode of before, and not ours", 60)

    trio.run(body)


class Killed(BaseException):
    """The daemon ends here, as by kill -9."""


class KilledAtExclusive(Modes):
    """The mode is set, and then the daemon is no more."""

    async def make_exclusive(self, uuid: str) -> tuple[str, str]:
        await super().make_exclusive(uuid)
        raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the daemon when the mode is set", "what was remembered"])
def test_a_card_is_given_back_in_its_mode_of_before(mps: Mps, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setattr("hypervisor.workers.mps.cards.IDLE_SECONDS", 0.5)

    async def first() -> None:
        async with mps.cards() as (cards, _):
            await cards.prepare(mps.allocation(mps.grant()).grants[0], OWNER)

    async def second() -> None:
        async with mps.cards() as (cards, _):
            await cards.prepare(mps.hard[0].grants[0], OWNER)
            mps.hard.clear()
            await until(lambda: mps.modes.mode == {mps.uuid: "default"}, "its mode of before", 60)

    if lost == "what was remembered":
        trio.run(first)
        (mps.folder / "card.json").write_text("{")
    else:
        mps.modes = KilledAtExclusive()
        with pytest.raises(BaseExceptionGroup) as caught:
            trio.run(first)
        assert caught.value.subgroup(Killed) is not None
        modes, mps.modes = mps.modes, Modes()
        mps.modes.mode = modes.mode
    assert mps.modes.mode == {mps.uuid: "exclusive-process"}
    trio.run(second)


HOSTILE = """#!/usr/bin/env python3
import sys
while True:
    sys.stdout.write({words!r})
"""


@pytest.mark.parametrize("words", ["1 " * 4000, "9" * 5000 + "\n", "\u00b2" * 99])
def test_a_control_daemon_that_says_anything_costs_no_memory_and_ends_nobody(mps: Mps, words: str) -> None:
    """As one that a client has put in the place of ours, in the pipe directory."""
    program = mps.rig.directory / "control"
    program.write_text(HOSTILE.format(words=words))
    program.chmod(0o755)
    control = Control(
        program=str(program),
        pipe_directory=mps.rig.directory,
        log_directory=mps.rig.directory,
        environment={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"},
        answer_seconds=1,
    )

    async def body() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for question in (control.servers(), control.server(1), control.limits("a", "b")):
            with pytest.raises(ControlError):
                await question
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024

    trio.run(body)


@pytest.mark.parametrize("answer", ["9" * 5000, "nan", "x", "25.0\n" + "9" * 5000 + "G"])
def test_an_answer_that_no_control_daemon_gives_is_an_error_or_no_limit(mps: Mps, answer: str) -> None:
    program = mps.rig.directory / "control"
    (mps.rig.directory / "answer").write_text(answer)
    program.write_text(f"#!/bin/sh\nexec cat {mps.rig.directory}/answer\n")
    program.chmod(0o755)
    control = Control(
        program=str(program),
        pipe_directory=mps.rig.directory,
        log_directory=mps.rig.directory,
        environment={"PATH": "/usr/bin:/bin"},
        answer_seconds=5,
    )

    async def body() -> None:
        assert await control.servers() in ((), (25,))
        try:
            percent, amount = await control.limits("a", "b")
        except ControlError:
            return
        assert amount is None
        assert not abs(percent - 50) <= 0.5

    trio.run(body)


@pytest.mark.slow
def test_what_a_client_puts_into_the_pipe_directory_does_not_keep_the_daemon_from_starting(mps: Mps) -> None:
    """Who may write there may put directories, links and pipes where sockets are to be."""
    outside = mps.rig.directory / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")

    def hostile() -> None:
        pipe = mps.folder / "pipe"
        for name in ("control", "nvidia-cuda-mps-control.pid"):
            (pipe / name).unlink(missing_ok=True)
        (pipe / "control/sub").mkdir(parents=True)
        (pipe / "control/sub/link").symlink_to(outside)
        (pipe / "nvidia-cuda-mps-control.pid").symlink_to(outside / "kept")
        (pipe / "outside").symlink_to(outside)
        os.mkfifo(pipe / "log")

    async def body() -> None:
        async with mps.cards() as (cards, supervisor):
            await cards.prepare(mps.allocation(mps.grant()).grants[0], OWNER)
            pid = supervisor.workers[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            hostile()
            await until(lambda: mps.uuid in cards.withheld(), "the card to be withheld", 60)
            await until(lambda: not cards.withheld(), "the card to be offered again", 60)
            assert (outside / "kept").read_text() == "kept"

    trio.run(body)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["all at once", "its record"])
def test_what_ends_with_our_daemon_is_known_to_the_next_one(mps: Mps, lost: str) -> None:
    """Our daemon, the control daemon and its server end together, and the client lives on: it is named, and the card
    waits for it. Or only the control daemon's record is lost: then nothing ends."""
    client = []

    async def first() -> None:
        async with mps.cards() as (cards, supervisor):
            allocation = mps.allocation(mps.grant())
            await cards.prepare(allocation.grants[0], OWNER)
            client.append(mps.client(cards, allocation, "--idle", "--seconds", "600"))
            await until(lambda: cards._cards[mps.uuid].state.clients == (client[0].pid,), "the client", 60)
            pids.extend([supervisor.workers[0].pid or 0, cards._cards[mps.uuid].state.server])

    async def second() -> None:
        async with mps.cards() as (cards, supervisor):
            if lost == "its record":
                await until(lambda: cards.withheld() == {}, "the card to be offered", 60)
                assert supervisor.workers[0].pid == pids[0]
                assert cards._cards[mps.uuid].state.server == pids[1]
                assert supervisor.workers[0].phase is WorkerPhase.RUNNING
                return
            await until(lambda: cards.orphans() == {mps.uuid: (client[0].pid,)}, "the orphan", 60)
            await until(lambda: "MpsClientsOrphaned" in mps.rig.reasons(mps.uuid.lower()), "the orphan to be told", 60)
            await until(
                lambda: "were clients of a server that has ended" in cards.withheld().get(mps.uuid, ""), "why", 60
            )
            client[0].kill()
            client[0].wait()
            await until(lambda: not cards.withheld(), "the card to be offered again", 60)

    pids: list[int] = []
    try:
        trio.run(first)
        if lost == "its record":
            (record,) = (mps.rig.directory / "workers").glob("*/worker.json")
            record.write_text("{")
        else:
            status = read_status(next((mps.rig.directory / "workers").iterdir()))
            assert status is not None
            for pid in (status.shim.pid, *pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        trio.run(second)
    finally:
        client[0].kill()
        with client[0]:  # closes its output, and waits for it
            pass
