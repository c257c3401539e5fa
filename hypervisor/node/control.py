"""The control loop: heartbeats and accounts of the allocations, and when what they say is published.

Steps come at the control interval while there is compute to be steered or shared out, and otherwise with each reading
of the GPUs: a node at rest is not woken up ten times a second. What they read counts as a change of the node's state
with each reading of the GPUs, or after a reading interval when those don't come; what matters at once (a process came
or went, a limit is exceeded, a file was tampered with, an allocation ended) is published at once.

A step over many allocations takes tens of milliseconds; others that somebody waits for have their turn in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import trio

from hypervisor.allocations.parts import Parts, drained
from hypervisor.model import Allocation, AllocationUsage, Inventory
from hypervisor.node.publisher import Publisher

# Without readings a node at rest has a step after this.
CALM_SECONDS = 1.5
# So long others wait at most for a step in progress.
SLICE_SECONDS = 0.002


class Steps(Protocol):
    """What the loop needs of the allocations."""

    @property
    def all(self) -> tuple[Allocation, ...]: ...

    @property
    def calm(self) -> bool: ...

    def parts(self, inventory: Inventory) -> Parts[tuple[AllocationUsage, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Seconds between two steps, and between two publications of what changes all the time."""

    control: float
    reading: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatistics:
    """Steps since the start, those that began late by more than an interval, and the time of the last one."""

    steps_total: int
    late_total: int
    last_step_seconds: float


class Control:
    """One step is step(); run() repeats it. For the trio main thread."""

    def __init__(
        self,
        *,
        steps: Steps,
        inventory: Callable[[], Inventory],
        next_inventory: Callable[[int], Awaitable[object]],
        publisher: Publisher,
        intervals: Callable[[], Intervals],
        clock: Callable[[], float],
        give_way: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """give_way is awaited in a long step again and again, and lets others run."""
        self._steps = steps
        self._inventory = inventory
        self._next_inventory = next_inventory
        self._publisher = publisher
        self._intervals = intervals
        self._clock = clock
        self._give_way = give_way
        self._sequence = -1
        self._published_at = float("-inf")
        self._said: object = None
        self._last_notable: tuple[tuple[AllocationUsage, ...], object] = ((), ())
        self._count = self._late = 0
        self._last_seconds = 0.0

    def step(self) -> bool:
        """One step at a stretch; True when it published."""
        return drained(self._parts())

    async def step_in_slices(self) -> bool:
        """One step, with others in between. Cancelled, it may have done a part, and the next one does all."""
        parts = self._parts()
        began = self._clock()
        while True:
            try:
                next(parts)
            except StopIteration as end:
                published: bool = end.value
                return published
            if self._clock() - began >= SLICE_SECONDS:
                await self._give_way()
                began = self._clock()

    def _parts(self) -> Parts[bool]:
        now = self._clock()
        inventory = self._inventory()
        usages = yield from self._steps.parts(inventory)
        # From here on at a stretch: what is published is of one moment.
        said = (self._steps.all, self._notable(usages))
        # The readings come about once an interval; only when they stay away do we publish without them.
        overdue = now - self._published_at >= 1.5 * self._intervals().reading
        due = inventory.sequence != self._sequence or said != self._said or overdue
        if due:
            self._sequence, self._said, self._published_at = inventory.sequence, said, now
            self._publisher.publish(usages)
        self._count += 1
        self._last_seconds = self._clock() - now
        return due

    async def run(self, alive: Callable[[], None]) -> None:
        """Step for ever, and say alive() with each. Cancelling ends it between two slices."""
        next_at = trio.current_time()
        while True:
            await self.step_in_slices()
            alive()
            interval = self._intervals().control
            if self._steps.calm:
                with trio.move_on_after(max(CALM_SECONDS, interval)):
                    await self._next_inventory(self._sequence)
                next_at = trio.current_time()
                continue
            next_at += interval
            if next_at < trio.current_time() - interval:
                # After a stop or a suspend, missed steps are not made up for.
                self._late += 1
                next_at = trio.current_time()
            await trio.sleep_until(next_at)

    def _notable(self, usages: tuple[AllocationUsage, ...]) -> object:
        """notable(), anew only when the accounts were read anew: most steps are a sign of life and no more."""
        known, told = self._last_notable
        if len(known) != len(usages) or any(old is not new for old, new in zip(known, usages, strict=True)):
            told = notable(usages)
            self._last_notable = (usages, told)
        return told

    def statistics(self) -> ControlStatistics:
        """Counters since the start."""
        return ControlStatistics(steps_total=self._count, late_total=self._late, last_step_seconds=self._last_seconds)


def notable(usages: Iterable[AllocationUsage]) -> tuple[object, ...]:
    """What of the usages is published at once when it changes; pure."""
    return tuple(
        (
            usage.allocation_id,
            usage.enforcement,
            usage.tampering,
            tuple((process.slot, process.pid, process.host_pid) for process in usage.processes),
            tuple((device.gpu_uuid, device.over) for device in usage.devices),
        )
        for usage in usages
    )
