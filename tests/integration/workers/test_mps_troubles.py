"""Cards under MPS whose disk or whose past is in the way: withheld with the reason, and nobody else is held up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import trio

from hypervisor.model import Refusal, RefusalReason
from hypervisor.workers.mps import MpsCards
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
