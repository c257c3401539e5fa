"""Commands run one at a time, refusals are counted and told, and what changed is published before the answer."""

from __future__ import annotations

from typing import ClassVar

import pytest
import trio
import trio.testing

from hypervisor.model import (
    Allocation,
    AllocationSpec,
    EventType,
    NodeIdentity,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
)
from hypervisor.node.commands import MOST_WAITING, Commands
from hypervisor.node.derive import Ratios
from hypervisor.node.publisher import Publisher
from hypervisor.node.revisions import Revisions
from hypervisor.node.state import NodeState, Parts
from tests import node_values as v


class Node:
    """Grants, cards, sources and journal in one: what the commands act on."""

    conditions = ()
    used_by: ClassVar[dict[str, str]] = {}
    supervised = ()
    ratios = Ratios(tflops=1.0, vram=1.0)

    def __init__(self, path) -> None:
        process = ProcessOnGpu(pid=7, memory_bytes=v.GIB, busy_ratio=None)
        self.inventory = v.inventory(v.device(0, readings=v.readings(processes=(process,))))
        self.allocations: tuple[Allocation, ...] = ()
        self.foreign = {v.uuid(0): 0}
        self.detached: list[str] = []
        self.may_detach = trio.Event()
        self.events: list[tuple] = []
        state = NodeState(
            identity=NodeIdentity(name="node", uid="uid", boot_id="boot"),
            version="0",
            started_at=1.0,
            revisions=Revisions(path / "revision", epoch=1),
            parts=Parts(inventory=self.inventory, ratios=self.ratios, foreign=self.foreign),
            wall_clock=lambda: 1.0,
        )
        self.state = state
        self.commands = Commands(
            grants=self,
            cards=self,
            publisher=Publisher(state, self, self.emit),
            emit=self.emit,
            environment={"SIM_MACHINE": "/m"},
        )

    def emit(self, event_type, reason, regarding, message, **fields) -> None:
        self.events.append((event_type, reason, regarding.name, fields))

    def allocate(self, spec, inventory, *, dry_run=False, reserved="", placed=()):
        if spec.allocation_id == "refused":
            raise Refusal(RefusalReason.INSUFFICIENT_VRAM, "no room", field="devices[0]", remedy="ask for less")
        allocation = v.allocation(spec.allocation_id)
        if not dry_run:
            self.allocations = (*self.allocations, allocation)
        return allocation, False

    def update_limits(self, allocation_id, devices, inventory, *, expected):
        raise Refusal(RefusalReason.LIMIT_ABOVE_CAPACITY, "too much", field="limits")

    def release(self, allocation_id):
        self.allocations = ()
        return ()

    def environment(self, allocation):
        return {"TF_SHM_PATH": allocation.directory}

    async def detach(self, uuid: str) -> None:
        await self.may_detach.wait()
        self.detached.append(uuid)

    async def attach(self, uuid: str) -> None:
        self.detached.remove(uuid)

    async def holders(self, uuid: str) -> tuple[int, ...]:
        return (7, 9)


def spec(name: str) -> AllocationSpec:
    return v.allocation(name).spec


def test_a_grant_is_published_before_it_is_answered(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        _, existed, environment = await node.commands.allocate(spec("a"), dry_run=False)
        assert not existed
        assert environment == {"TF_SHM_PATH": "/base/by-uid/uid-a", "SIM_MACHINE": "/m"}
        assert [each.spec.allocation_id for each in node.state.snapshot.allocations] == ["a"]
        await node.commands.release("a")
        assert node.state.snapshot.allocations == ()
        assert node.commands.statistics().done_total == 2

    trio.run(main)


def test_refusals_are_counted_by_reason_and_told_with_their_numbers(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        for _ in range(2):
            with pytest.raises(Refusal):
                await node.commands.allocate(spec("refused"), dry_run=False)
        await node.commands.allocate(spec("granted"), dry_run=False)
        for name in ("granted", "none"):
            with pytest.raises(Refusal):
                await node.commands.update_limits(name, (), None)
        with pytest.raises(Refusal):
            await node.commands.allocate(spec("refused"), dry_run=True)
        assert node.commands.refusals == {RefusalReason.INSUFFICIENT_VRAM: 2, RefusalReason.LIMIT_ABOVE_CAPACITY: 2}
        assert node.commands.statistics().refused_total == 5
        assert node.events == [
            (EventType.WARNING, "LimitsRefused", "granted", {"refusal": "LIMIT_ABOVE_CAPACITY", "field": "limits"})
        ]

    trio.run(main)


def test_a_dry_run_changes_nothing(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        before = node.state.snapshot
        await node.commands.allocate(spec("a"), dry_run=True)
        assert node.state.snapshot is before

    trio.run(main)


def test_grants_take_turns_and_a_waiting_one_may_be_cancelled(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        given_up = trio.CancelScope()

        async def grant(name: str, scope: trio.CancelScope) -> None:
            with scope:
                await node.commands.allocate(spec(name), dry_run=False)

        async with trio.open_nursery() as nursery, node.commands._turn:
            nursery.start_soon(grant, "cancelled", given_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(grant, "first", trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(grant, "second", trio.CancelScope())
            await trio.testing.wait_all_tasks_blocked()
            assert node.commands.statistics().waiting == 3
            assert node.allocations == ()
            given_up.cancel()
        assert [each.spec.allocation_id for each in node.allocations] == ["first", "second"]

    trio.run(main)


def test_a_card_that_can_not_be_let_go_of_holds_up_no_grant(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        holders: list[tuple[ProcessOnGpu, ...]] = []

        async def detach() -> None:
            holders.append(await node.commands.detach_gpu(v.uuid(0).lower(), "reset"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(detach)
            await trio.testing.wait_all_tasks_blocked()
            await node.commands.allocate(spec("a"), dry_run=False)
            assert not holders
            node.may_detach.set()
        assert node.detached == [v.uuid(0)]
        assert [process.pid for process in holders[0]] == [7, 9]
        await node.commands.attach_gpu(v.uuid(0))
        assert [reason for _, reason, _, _ in node.events] == ["GPUDetached", "GPUAttached"]

    trio.run(main)


def test_an_unknown_card_is_refused_with_the_known_ones(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        with pytest.raises(Refusal, match=v.uuid(0)) as refusal:
            await node.commands.detach_gpu("GPU-none", "")
        assert refusal.value.reason is RefusalReason.GPU_NOT_FOUND
        assert node.detached == []

    trio.run(main)


def test_a_flood_of_commands_is_refused_and_not_kept(tmp_path) -> None:
    async def main() -> None:
        node = Node(tmp_path)
        async with trio.open_nursery() as nursery, node.commands._turn:
            for _ in range(MOST_WAITING):
                nursery.start_soon(node.commands.release, "a")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Refusal, match="commands wait already"):
                await node.commands.release("a")
            nursery.cancel_scope.cancel()
        assert node.commands.statistics().waiting == 0

    trio.run(main)
