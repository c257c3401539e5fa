"""Instances for allocations, the wished geometry, and what is left after the daemon was killed at any step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import trio

from hypervisor.gpu import codes, wire
from hypervisor.model import Refusal, RefusalReason
from hypervisor.workers.mig.journal import Journal, Stage
from hypervisor.workers.mig.matching import Wanted
from hypervisor.workers.mig.partitions import Needs, Partitions
from hypervisor.workers.mig.steps import Steps
from tests.unit.workers.mig.cards import FakeCards, Killed, a_card

CARD = a_card()


class Node:
    """One state directory and the cards of one machine, over several starts of the daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cards = FakeCards(enabled={"bus0"})
        self.boot_id = "boot-1"
        self.events: list[tuple[str, str]] = []

    def start(self, wishes: dict[str, tuple[str, ...]] | None = None) -> Partitions:
        journal, damaged = Journal.open(self.directory / "mig")
        assert damaged == ()
        steps = Steps(self.cards, journal, boot_id=self.boot_id)
        return Partitions(
            steps, wishes=wishes or {}, emit=lambda _t, reason, _c, text: self.events.append((reason, text))
        )

    def settle(self, partitions: Partitions, *, allocations: Collection[str] = (), busy: Collection[str] = ()) -> None:
        trio.run(partitions.settle, [CARD], lambda: Needs(allocations=allocations, busy=busy))

    def there(self) -> list[tuple[int, int]]:
        return sorted((each.profile_id, each.start) for each in self.cards.instances.get("bus0", []))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def provide(partitions: Partitions, name: str, template: str = "1g.10gb", busy: Collection[str] = ()) -> str:
    wanted = Wanted(template=template)
    uuid = trio.run(lambda: partitions.provide(wanted, [CARD], allocation_id=name, busy=busy))
    partitions.provided(name)
    return uuid


def test_an_instance_lives_as_long_as_its_allocation(node: Node) -> None:
    partitions = node.start()
    uuid = provide(partitions, "a")
    node.settle(partitions, allocations={"a"}, busy={uuid})
    assert len(node.there()) == 1
    assert not partitions.needs_settling([CARD], present={uuid}, needs=Needs(allocations={"a"}))
    assert partitions.needs_settling([CARD], present={uuid}, needs=Needs())
    node.settle(partitions)
    assert node.there() == []


def test_row_87_instances_of_others_are_counted_and_never_touched(node: Node) -> None:
    foreign = node.cards.add("bus0", 14, 0)
    partitions = node.start({"all": ("1g.10gb", "1g.10gb")})
    provide(partitions, "a", "3g.40gb")
    node.settle(partitions)
    assert foreign in node.cards.instances["bus0"]
    assert [profile for profile, _ in node.there()] == [14, 19, 19]
    assert partitions.statistics().foreign_instances == 1
    node.settle(node.start())
    assert foreign in node.cards.instances["bus0"]


@pytest.mark.parametrize(
    "trouble",
    [
        wire.MigTold(wire.Answer(None, codes.UNKNOWN), [], [], codes.UNKNOWN),
        wire.MigTold(wire.Answer(None, codes.NO_PERMISSION), [], [], codes.NO_PERMISSION),
        wire.MigTold(wire.Answer((1, 1)), [], []),  # its profiles could not be read
    ],
)
def test_a_driver_in_trouble_does_not_make_a_card_one_without_mig(node: Node, trouble: wire.MigTold) -> None:
    partitions = node.start()
    node.cards.trouble = trouble
    with pytest.raises(Refusal, match="how it is divided now could not be read"):
        provide(partitions, "a")
    node.cards.trouble = None
    assert provide(partitions, "a")


def test_a_card_without_mig_is_not_asked_again(node: Node) -> None:
    partitions = node.start()
    node.cards.trouble = wire.MigTold(wire.Answer(None, codes.NOT_SUPPORTED), [], [], codes.NOT_SUPPORTED)
    for _ in range(2):
        with pytest.raises(Refusal, match="no GPU of this node can be divided by MIG"):
            provide(partitions, "a")
        node.cards.trouble = None


def test_row_86_what_could_not_be_finished_is_undone(node: Node) -> None:
    node.cards.failing["create"] = wire.MigDone(23, "nvmlGpuInstanceCreateComputeInstance", undone=True)
    partitions = node.start()
    with pytest.raises(Refusal) as caught:
        provide(partitions, "a")
    assert caught.value.reason is RefusalReason.PARTITION_FAILED
    assert "nvmlGpuInstanceCreateComputeInstance" in str(caught.value)
    node.settle(partitions)
    assert node.there() == []
    assert Journal.open(node.directory / "mig")[0].records("GPU-0") == ()


def test_row_86_what_could_not_be_undone_either_is_ended_at_the_next_look(node: Node) -> None:
    """Nobody else would end it: it stays in the journal as ours."""
    node.cards.failing["create"] = wire.MigDone(23, "nvmlGpuInstanceCreateComputeInstance", undone=False)
    node.cards.leaving = True
    partitions = node.start()
    with pytest.raises(Refusal):
        provide(partitions, "a")
    assert len(node.there()) == 1
    node.settle(partitions)
    assert node.there() == []
    assert Journal.open(node.directory / "mig")[0].records("GPU-0") == ()


def test_row_88_an_allocation_that_went_unseen_is_cleaned_up_at_the_next_look(node: Node) -> None:
    provide(node.start(), "gone-while-we-were-down")
    restarted = node.start()
    assert restarted.needs_settling([CARD], present=(), needs=Needs())
    node.settle(restarted)
    assert node.there() == []


def test_row_89_success_without_effect_is_found_by_reading_back(node: Node) -> None:
    node.cards.idle_success = True
    with pytest.raises(Refusal, match="is not there"):
        provide(node.start(), "a")


def test_row_90_a_mode_that_waits_for_a_reset_is_told_and_not_waited_for(node: Node) -> None:
    node.cards.enabled.clear()
    node.cards.failing["enable"] = wire.MigDone(0, "done", activation=16)
    partitions = node.start({"0": ("1g.10gb",)})
    node.settle(partitions)
    assert [reason for reason, _ in node.events] == ["PartitionFailed"]
    assert "reset" in node.events[0][1]
    node.settle(partitions)
    assert len(node.events) == 1


@pytest.mark.parametrize(("architecture", "calls"), [("Ampere", 0), ("Hopper", 1), ("Blackwell", 1)])
def test_row_91_the_mode_is_switched_on_only_where_that_needs_no_reset(
    node: Node, architecture: str, calls: int
) -> None:
    node.cards.enabled.clear()
    partitions = node.start({"0": ("1g.10gb",)})
    card = a_card(architecture=architecture)
    trio.run(partitions.settle, [card], Needs)
    assert node.cards.calls.count("enable") == calls
    assert len(node.there()) == calls
    if not calls:
        assert node.events[0][0] == "MigModeOff"
        assert "takes a reset" in node.events[0][1]


@pytest.mark.parametrize("parts", [{"processes": True}, {"usable": False}])
def test_a_card_in_use_is_not_switched(node: Node, parts: dict[str, Any]) -> None:
    node.cards.enabled.clear()
    partitions = node.start({"0": ("1g.10gb",)})
    trio.run(partitions.settle, [a_card(**parts)], Needs)
    assert "enable" not in node.cards.calls


def test_wishes_are_fulfilled_large_ones_first_and_ended_when_wished_no_more(node: Node) -> None:
    partitions = node.start({"all": ("1g.10gb", "3g.40gb", "2g.20gb")})
    node.settle(partitions)
    assert [each.profile_id for each in node.cards.instances["bus0"]] == [9, 14, 19]
    assert not partitions.needs_settling(
        [CARD], present={each.uuid for each in node.cards.instances["bus0"]}, needs=Needs()
    )
    node.settle(node.start({"all": ("3g.40gb",)}))
    assert [profile for profile, _ in node.there()] == [9]


def test_a_wish_that_is_granted_now_is_not_ended(node: Node) -> None:
    partitions = node.start({"all": ("1g.10gb",)})
    node.settle(partitions)
    uuid = provide(partitions, "a")
    node.settle(node.start({"all": ()}), allocations={"a"}, busy={uuid})
    assert len(node.there()) == 1


def test_wishes_that_can_not_all_be_made_are_all_undone(node: Node) -> None:
    def second_fails(call: str) -> None:
        if call == "create" and node.cards.calls.count("create") == 1:
            node.cards.failing["create"] = wire.MigDone(999, "nvmlDeviceCreateGpuInstanceWithPlacement")

    node.cards.before = second_fails
    node.settle(node.start({"all": ("3g.40gb", "1g.10gb")}))
    assert node.there() == []
    assert node.events[0][0] == "PartitionFailed"


def test_idle_instances_of_the_wished_geometry_serve_allocations_first(node: Node) -> None:
    partitions = node.start({"all": ("1g.10gb", "1g.10gb")})
    node.settle(partitions)
    first = provide(partitions, "a")
    second = provide(partitions, "b", busy={first})
    third = provide(partitions, "c", busy={first, second})
    assert len({first, second, third}) == 3
    assert len(node.there()) == 3


def test_after_a_reboot_what_was_granted_and_wished_is_made_again_in_its_place(node: Node) -> None:
    partitions = node.start({"all": ("2g.20gb",)})
    node.settle(partitions)
    provide(partitions, "a", "3g.40gb")
    before = node.there()
    node.boot_id, node.cards.instances["bus0"] = "boot-2", []
    restarted = node.start({"all": ("2g.20gb",)})
    assert restarted.needs_settling([CARD], present=(), needs=Needs(allocations={"a"}))
    node.settle(restarted, allocations={"a"})
    assert node.there() == before


def test_a_place_that_others_took_after_a_reboot_is_theirs(node: Node) -> None:
    provide(node.start(), "a")
    ((profile, start),) = node.there()
    node.boot_id, node.cards.instances["bus0"] = "boot-2", []
    theirs = node.cards.add("bus0", profile, start)
    node.settle(node.start())
    assert node.cards.instances["bus0"] == [theirs]
    assert node.events[-1][0] == "PartitionLost"


def test_one_in_use_is_ended_when_it_is_let_go(node: Node) -> None:
    partitions = node.start()
    provide(partitions, "a")
    node.cards.failing["destroy"] = wire.MigDone(19, "nvmlComputeInstanceDestroy")
    node.settle(partitions)
    assert "in use by another client" in node.events[-1][1]
    assert partitions.needs_settling([CARD], present=(), needs=Needs())
    node.cards.failing.clear()
    node.settle(partitions)
    assert node.there() == []


def test_a_journal_that_can_not_be_read_is_set_aside(node: Node) -> None:
    provide(node.start(), "a")
    (path,) = (node.directory / "mig").glob("*.json")
    path.write_text("{")
    journal, damaged = Journal.open(node.directory / "mig")
    assert journal.records("GPU-0") == ()
    assert [each.path.suffix for each in damaged] == [".set-aside"]


def test_a_journal_of_another_card_is_not_believed(node: Node) -> None:
    provide(node.start(), "a")
    (path,) = (node.directory / "mig").glob("*.json")
    path.rename(path.with_stem("GPU-1"))
    journal, damaged = Journal.open(node.directory / "mig")
    assert journal.cards == ()
    assert [each.reason for each in damaged] == ["it is of the card 'GPU-0'"]


@pytest.mark.parametrize(
    ("before", "after"), [("3g.40gb", "2g.20gb"), ("3g.40gb 1g.10gb", "1g.10gb 2g.20gb"), ("9", "mig-2g20gb")]
)
def test_a_wish_of_as_many_others_is_seen_without_asking_the_driver(node: Node, before: str, after: str) -> None:
    partitions = node.start({"all": tuple(before.split())})
    node.settle(partitions)
    present = {each.uuid for each in node.cards.instances["bus0"]}
    for same in (before, before.replace("3g.40gb", "nv-h100-3g.40gb")):
        restarted = node.start({"all": tuple(same.split())})
        assert not restarted.needs_settling([CARD], present=present, needs=Needs())
    changed = node.start({"all": tuple(after.split())})
    assert changed.needs_settling([CARD], present=present, needs=Needs())
    node.settle(changed)
    assert 9 not in [profile for profile, _ in node.there()]
    assert 14 in [profile for profile, _ in node.there()]


@pytest.mark.parametrize("leaving", [False, True])
def test_what_can_not_be_made_again_at_once_is_made_later(node: Node, leaving: bool) -> None:
    """A driver that is not ready yet after a reboot takes no instance from an allocation for good."""
    provide(node.start(), "a", "3g.40gb")
    before = node.there()
    node.boot_id, node.cards.instances["bus0"] = "boot-2", []
    step = "nvmlGpuInstanceCreateComputeInstance" if leaving else "nvmlDeviceCreateGpuInstanceWithPlacement"
    node.cards.failing["create"], node.cards.leaving = wire.MigDone(999, step, undone=False), leaving
    restarted = node.start()
    for _ in range(3):
        node.settle(restarted, allocations={"a"})
        restarted = node.start()  # a restart in between changes nothing
    node.cards.failing.clear()
    node.cards.leaving = False
    assert restarted.needs_settling([CARD], present=(), needs=Needs(allocations={"a"}))
    for _ in range(2):
        node.settle(restarted, allocations={"a"})
    assert node.there() == before


def test_what_comes_to_the_place_meanwhile_is_not_ours(node: Node) -> None:
    provide(node.start(), "a", "1g.10gb")
    ((profile, start),) = node.there()
    node.cards.instances["bus0"] = []  # a reset within the boot
    node.cards.failing["create"] = wire.MigDone(999, "nvmlDeviceCreateGpuInstanceWithPlacement")
    node.settle(node.start(), allocations={"a"})
    node.cards.failing.clear()
    node.cards._next = 1  # with the number that ours had
    theirs = node.cards.add("bus0", profile, start)
    node.settle(node.start())
    assert node.cards.instances["bus0"] == [theirs]


def test_the_mode_that_went_with_a_reboot_comes_back_for_what_was_granted(node: Node) -> None:
    provide(node.start(), "a", "3g.40gb")
    before = node.there()
    node.boot_id, node.cards.instances["bus0"] = "boot-2", []
    node.cards.enabled.clear()
    node.settle(node.start())  # of an allocation that has gone meanwhile
    assert "enable" not in node.cards.calls
    node.settle(node.start(), allocations={"a"})
    assert node.there() == before


def test_where_the_mode_takes_a_reset_it_is_told_for_what_was_granted(node: Node) -> None:
    ampere = a_card(architecture="Ampere")
    provide(node.start(), "a", "3g.40gb")
    node.boot_id, node.cards.instances["bus0"] = "boot-2", []
    node.cards.enabled.clear()
    partitions = node.start()
    trio.run(partitions.settle, [ampere], lambda: Needs(allocations={"a"}))
    assert "enable" not in node.cards.calls
    assert [reason for reason, _ in node.events][-1] == "MigModeOff"
    assert "is to be divided into 3g.40gb" in node.events[-1][1]


def test_a_driver_that_forgets_that_it_has_mig_ends_nobody(node: Node) -> None:
    """Between two looks of one turn: what it said first is not what it says then."""

    def forgets(call: str) -> None:
        if call == "look" and node.cards.calls.count("look") == 1:
            node.cards.trouble = wire.MigTold(wire.Answer(None, codes.NOT_SUPPORTED), [], [], codes.NOT_SUPPORTED)

    node.cards.before = forgets
    partitions = node.start({"all": ("1g.10gb",)})
    node.settle(partitions)
    assert node.events[-1][0] == "PartitionFailed"
    assert "could not be read again" in node.events[-1][1]
    node.cards.trouble, node.cards.before = None, lambda _call: None
    node.settle(partitions)
    assert len(node.there()) == 1


def test_an_allocation_that_comes_while_the_cards_are_settled_keeps_its_instance(node: Node) -> None:
    """settle() waits for its turn while an instance is made; who needs it is asked after that."""
    partitions, granted = node.start(), set[str]()
    node.cards.add("bus0", 19, 6)

    async def allocate() -> None:
        await partitions.provide(Wanted(template="2g.20gb"), [CARD], allocation_id="a", busy=())
        granted.add("a")
        partitions.provided("a")

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(allocate)
            nursery.start_soon(partitions.settle, [CARD], lambda: Needs(allocations=set(granted)))

    for _ in range(20):  # the scheduler chooses who comes first
        trio.run(both)
        assert 14 in [profile for profile, _ in node.there()]
        granted.clear()
        node.settle(partitions)


# ---- killed at every step ----


def scenario(partitions: Partitions) -> Callable[[], Any]:
    async def play() -> None:
        await partitions.settle([CARD], Needs)
        await partitions.provide(Wanted(template="3g.40gb"), [CARD], allocation_id="kept", busy=())
        partitions.provided("kept")
        await partitions.provide(Wanted(template="1g.10gb+me"), [CARD], allocation_id="gone", busy=())
        partitions.provided("gone")
        await partitions.settle([CARD], lambda: Needs(allocations={"kept"}))

    return play


def killing_at(node: Node, step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Kill at the step-th call of the driver or write of the journal, before or after it."""
    count = 0

    def before(_call: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise Killed

    real = Journal._write

    def write(self: Journal, parent_uuid: str, records: Any) -> None:
        before("write")
        real(self, parent_uuid, records)
        before("written")

    node.cards.before = before
    monkeypatch.setattr(Journal, "_write", write)
    return lambda: count


def steps_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    node = Node(tmp_path / "whole")
    node.cards.add("bus0", 19, 6)
    counted = killing_at(node, 0, monkeypatch)
    trio.run(scenario(node.start({"all": ("1g.10gb",)})))
    return counted()


def test_a_kill_at_any_step_leaves_what_the_next_start_makes_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes = {"all": ("1g.10gb",)}
    monkeypatch.setattr("hypervisor.durable.os.fsync", lambda _descriptor: None)  # a kill is no power cut
    with monkeypatch.context() as patch:
        total = steps_in_all(tmp_path, patch)
    assert total > 30
    for step in range(1, total + 1):
        for rebooted in (False, True):
            node = Node(tmp_path / f"{step}-{rebooted}")
            foreign = node.cards.add("bus0", 19, 6)
            with monkeypatch.context() as patch:
                killing_at(node, step, patch)
                with pytest.raises(Killed):
                    trio.run(scenario(node.start(wishes)))
            node.cards.before = lambda _call: None
            if rebooted:
                node.boot_id = "boot-2"
                node.cards.instances["bus0"] = [foreign]
            journal, _ = Journal.open(node.directory / "mig")
            # An allocation is on the disk only after its instance was given.
            kept = any(each.allocation_id == "kept" and each.stage is Stage.THERE for each in journal.records("GPU-0"))
            restarted = node.start(wishes)
            for _ in range(2):
                node.settle(restarted, allocations={"kept"} if kept else ())
            profiles = [profile for profile, _start in node.there()]
            assert foreign in node.cards.instances["bus0"], step
            assert sorted(profiles) == sorted([19, 19, *([9] if kept else [])]), (step, rebooted, node.there())


def test_a_kill_at_any_step_of_making_again_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot: what allocations were granted, under their own name and under one of before."""
    monkeypatch.setattr("hypervisor.durable.os.fsync", lambda _descriptor: None)

    def prepared(name: str) -> tuple[Node, Callable[[], Needs], list[tuple[int, int]]]:
        node = Node(tmp_path / name)
        partitions = node.start()
        provide(partitions, "kept", "3g.40gb")
        uuid = provide(partitions, "tentative.grant-1", "2g.20gb")
        before = node.there()
        node.boot_id, node.cards.instances["bus0"], node.cards._next = "boot-2", [], 1
        return node, lambda: Needs(allocations={"kept", "pod"}, busy={uuid}), before

    with monkeypatch.context() as patch:
        node, needs, before = prepared("whole")
        counted = killing_at(node, 0, patch)
        trio.run(node.start().settle, [CARD], needs)
        total = counted()
    assert total >= 10
    for step in range(1, total + 1):
        node, needs, before = prepared(str(step))
        with monkeypatch.context() as patch:
            killing_at(node, step, patch)
            with pytest.raises(Killed):
                trio.run(node.start().settle, [CARD], needs)
        node.cards.before = lambda _call: None
        restarted = node.start()
        for _ in range(2):
            trio.run(restarted.settle, [CARD], needs)
        assert node.there() == before, step


def test_an_instance_stays_while_a_device_of_it_is_granted_to_another(node: Node) -> None:
    """It was made before it was known whose it would be, under a name that is no allocation's."""
    partitions = node.start()
    uuid = provide(partitions, "tentative.grant-1")
    kept = Needs(allocations={"pod"}, busy={uuid})
    assert not partitions.needs_settling([CARD], present={uuid}, needs=kept)
    node.settle(partitions, allocations={"pod"}, busy={uuid})
    assert len(node.there()) == 1
    assert partitions.needs_settling([CARD], present={uuid}, needs=Needs())
    node.settle(partitions)
    assert node.there() == []
