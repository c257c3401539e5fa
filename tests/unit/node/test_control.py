"""When a control step publishes, and what of two snapshots is an event."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from hypervisor.model import (
    Condition,
    ConditionStatus,
    Enforcement,
    EventType,
    HealthCode,
    HealthState,
    NodeIdentity,
    NodeSnapshot,
)
from hypervisor.node.changes import changes
from hypervisor.node.control import Control, Intervals
from hypervisor.node.derive import NEVER, Ratios
from hypervisor.node.state import Parts, compose
from tests import node_values as v


class World:
    """Allocations, GPUs, clock and publisher as the control loop meets them."""

    def __init__(self) -> None:
        self.all = (v.allocation(),)
        self.usages = (v.usage(),)
        self.inventory = v.inventory(v.device())
        self.now = 100.0
        self.published = []
        self.calm, self.reads = False, True
        self.given = []  # how often it had published when it let others run
        self.lasts, self.each = 0, 0.0  # parts of a step, and the seconds that each takes
        self.control = Control(
            steps=self,
            inventory=lambda: self.inventory,
            next_inventory=self.next_inventory,
            publisher=self,
            intervals=lambda: Intervals(control=0.1, reading=1.0),
            clock=lambda: self.now,
            give_way=self.give_way,
        )

    def parts(self, inventory):
        for _ in range(self.lasts):
            self.now += self.each
            yield
        return self.usages

    async def next_inventory(self, after):
        """A reading each second."""
        await trio.sleep(1.0 if self.reads else float("inf"))
        self.inventory = replace(self.inventory, sequence=after + 1)

    async def give_way(self):
        self.given.append(len(self.published))
        await trio.lowlevel.checkpoint()

    def publish(self, usages):
        self.published.append(usages)
        return True


def test_changing_figures_wait_for_the_next_reading() -> None:
    world = World()
    assert world.control.step() is True
    world.usages = (v.usage(reserved=2 * v.GIB),)
    world.now += 0.1
    assert world.control.step() is False
    world.inventory = replace(world.inventory, sequence=2)
    assert world.control.step() is True
    assert world.published[-1] == world.usages


def test_without_readings_figures_are_published_all_the_same() -> None:
    world = World()
    world.control.step()
    world.now += 1.4
    assert world.control.step() is False
    world.now += 0.2
    assert world.control.step() is True


@pytest.mark.parametrize(
    "change",
    [
        lambda usage: v.usage(pids=(7,)),
        lambda usage: replace(usage, tampering="truncated"),
        lambda usage: replace(usage, enforcement=Enforcement.VIOLATED),
        lambda usage: replace(usage, devices=(replace(usage.devices[0], over=True),)),
    ],
)
def test_what_matters_is_published_at_once(change) -> None:
    world = World()
    world.control.step()
    world.usages = (change(world.usages[0]),)
    assert world.control.step() is True
    assert world.control.step() is False


def test_an_allocation_that_ended_is_published_at_once() -> None:
    world = World()
    world.control.step()
    world.all, world.usages = (), ()
    assert world.control.step() is True


def test_steps_come_at_the_interval_and_missed_ones_are_not_made_up_for() -> None:
    async def main() -> None:
        world = World()
        beats = []
        with trio.move_on_after(1.05):
            await world.control.run(lambda: beats.append(trio.current_time()))
        assert len(beats) == 11
        assert world.control.statistics().late_total == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def times_of_steps(world: World, seconds: float) -> list[float]:
    async def main() -> list[float]:
        beats: list[float] = []
        began = trio.current_time()
        with trio.move_on_after(seconds):
            await world.control.run(lambda: beats.append(round(trio.current_time() - began, 3)))
        return beats

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_node_at_rest_has_a_step_with_each_reading() -> None:
    world = World()
    world.calm = True
    assert times_of_steps(world, 3.5) == [0.0, 1.0, 2.0, 3.0]
    assert world.control.statistics().late_total == 0


def test_a_node_at_rest_without_readings_gives_signs_of_life() -> None:
    world = World()
    world.calm = True
    world.reads = False
    assert times_of_steps(world, 4.0) == [0.0, 1.5, 3.0]


def test_what_is_to_be_steered_brings_the_interval_back() -> None:
    world = World()
    world.calm = True

    def parts(_):
        world.calm = world.inventory.sequence < 2
        return world.usages
        yield

    world.parts = parts
    assert times_of_steps(world, 1.25) == [0.0, 1.0, 1.1, 1.2]


def test_others_have_their_turn_in_a_long_step_and_see_nothing_of_it_before_its_end() -> None:
    async def main() -> None:
        world = World()
        assert await world.control.step_in_slices() is True
        assert world.given == []  # it was short
        world.lasts, world.each = 40, 0.0005
        world.usages = (replace(v.usage(), tampering="truncated"),)
        assert await world.control.step_in_slices() is True
        assert world.given == [1] * 10
        assert len(world.published) == 2

    trio.run(main)


def snapshot(*devices, allocations=(), conditions=(), foreign=0) -> NodeSnapshot:
    inventory = v.inventory(*devices, conditions=conditions)
    empty = NodeSnapshot(
        identity=NodeIdentity(name="node", uid="uid", boot_id="boot"),
        revision=NEVER,
        version="0",
        system=inventory.system,
        started_at=1.0,
        conditions=(),
        gpus=(),
        allocations=(),
        usages=(),
        workers=(),
        simulated=True,
    )
    parts = Parts(
        inventory=inventory,
        ratios=Ratios(tflops=1.0, vram=1.0),
        foreign={device.identity.uuid: foreign for device in devices},
        allocations=allocations,
    )
    return compose(parts, empty, now=1.0)


STARTING = Condition(
    type="Starting",
    status=ConditionStatus.TRUE,
    code=HealthCode.STARTING,
    message="the driver has not answered yet",
    last_transition_at=1.0,
)


def told(old: NodeSnapshot, new: NodeSnapshot) -> list[tuple[EventType, str]]:
    return [(change.type, change.reason) for change in changes(old, new)]


def test_first_reading_is_readiness_and_not_eight_discoveries() -> None:
    assert told(snapshot(conditions=(STARTING,)), snapshot(v.device(0), v.device(1))) == [
        (EventType.NORMAL, "NodeReady")
    ]


def test_same_state_has_no_events() -> None:
    assert told(snapshot(v.device(0)), snapshot(v.device(0))) == []


def test_cards_that_come_go_and_fall_ill() -> None:
    both, one = snapshot(v.device(0), v.device(1)), snapshot(v.device(0))
    assert told(one, both) == [(EventType.NORMAL, "GPUDiscovered")]
    assert told(both, one) == [(EventType.WARNING, "GPURemoved")]
    lost = snapshot(v.device(0, health=HealthState.LOST))
    (change,) = changes(one, lost)
    assert (change.reason, change.regarding.uid, dict(change.fields)) == (
        "GpuUnhealthy",
        v.uuid(0),
        {"from": "healthy", "to": "lost"},
    )
    assert told(lost, one) == [(EventType.NORMAL, "GpuRecovered")]


def test_held_grants_are_told_with_the_reason() -> None:
    unknown = snapshot(v.device(0, readings=v.readings(processes=None, reason="no answer")), foreign=None)
    (change,) = changes(snapshot(v.device(0)), unknown)
    assert change.reason == "GPUGrantsHeld"
    assert "no answer" in change.message
    assert told(unknown, snapshot(v.device(0))) == [(EventType.NORMAL, "GPUGrantsResumed")]
