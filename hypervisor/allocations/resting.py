"""Allocations at rest: nobody is attached and nothing has moved, so the figures are those from before, as of now.

Most allocations of a node are, most of the time; working out each anew every second would be the daemon's main cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from hypervisor.allocations.held import Held
from hypervisor.limits import DeviceAccount
from hypervisor.model import Allocation, AllocationUsage, DeviceUsage, Figure, FigureSource, Pacing
from hypervisor.model.figure import Number

# Rounds in which nothing moved until an allocation rests: what counts rounds has come to its end by then.
STILL_ROUNDS = 3


@dataclass(slots=True)
class Stillness:
    """What an allocation's figures depend on, and for how many rounds none of it has moved."""

    allocation: Allocation
    accounts: tuple[DeviceAccount, ...]
    silent: tuple[str, ...]  # by device, why the driver lists no processes; "" where it does
    burst_seconds: float
    rounds: int = 0

    def is_same(
        self, allocation: Allocation, accounts: tuple[DeviceAccount, ...], silent: tuple[str, ...], burst_seconds: float
    ) -> bool:
        """Whether nothing has moved; an allocation that was changed is another object."""
        return (
            self.allocation is allocation
            and self.accounts == accounts
            and self.silent == silent
            and self.burst_seconds == burst_seconds
        )


def rests(held: Held, silent: Sequence[str], burst_seconds: float) -> bool:
    """Whether the figures of the last round still hold; to be asked once in each round."""
    before, held.stillness = held.stillness, None
    usage, survey = held.usage, held.survey
    if survey is None or survey.slots or held.processes or held.finding or held.bypassing or usage is None:
        return False
    now = (held.allocation, survey.devices, tuple(silent), burst_seconds)
    if before is None or not before.is_same(*now) or not _is_settled(held, usage, burst_seconds):
        held.stillness = Stillness(*now)
        return False
    before.rounds = min(before.rounds + 1, STILL_ROUNDS)
    held.stillness = before
    return before.rounds >= STILL_ROUNDS


def _is_settled(held: Held, usage: AllocationUsage, burst_seconds: float) -> bool:
    """Nothing in the figures changes by itself any more: no mean that fades, no debt that is paid off by the clock."""
    if any(memory.correction is not None and memory.correction.does_not_hold for memory in held.devices):
        return False
    for memory, device in zip(held.devices, usage.devices, strict=True):
        pacing = device.pacing
        if device.over or device.busy_ratio.value or memory.lent or memory.contracted is not None:
            return False
        if pacing is not None and (pacing.achieved_ratio.value or pacing.balance_seconds.value != burst_seconds):
            return False
    return True


class Moment:
    """A round, for those at rest: when the limiters' accounts and the driver were read. Figures that say the same, as
    most of them do, are one object for all allocations."""

    def __init__(self, *, accounted_at: float, driver_at: float) -> None:
        self._accounted_at = accounted_at
        self._driver_at = driver_at
        # By id() of the old figure, which is kept here so that no other takes its place in memory.
        self._new: dict[int, tuple[object, Figure[int] | Figure[float]]] = {}
        # By type too: 0 and 0.0 are the same key and not the same figure.
        self._equal: dict[tuple[object, ...], Figure[int] | Figure[float]] = {}

    def of(self, figure: Figure[Number]) -> Figure[Number]:
        """The figure as of this moment."""
        known = self._new.get(id(figure))
        if known is None:
            known = self._new[id(figure)] = figure, self._made(figure)
        return cast("Figure[Number]", known[1])

    def _made(self, figure: Figure[Number]) -> Figure[Number]:
        if figure.value is None:
            return figure
        key = (figure.value.__class__, figure.value, figure.source)
        known = self._equal.get(key)
        if known is None:
            at = self._accounted_at if figure.source is FigureSource.LIMITER else self._driver_at
            known = self._equal[key] = Figure(figure.value, figure.source, at)
        return cast("Figure[Number]", known)


def as_of(usage: AllocationUsage, moment: Moment) -> AllocationUsage:
    """The same figures, read anew."""
    now = moment.of

    def paced(pacing: Pacing) -> Pacing:
        return Pacing(
            achieved_ratio=now(pacing.achieved_ratio),
            balance_seconds=now(pacing.balance_seconds),
            correction=pacing.correction,
            correction_frozen=pacing.correction_frozen,
            lent_ratio=pacing.lent_ratio,
            costs=pacing.costs,
        )

    devices = tuple(
        DeviceUsage(
            gpu_uuid=device.gpu_uuid,
            reserved_bytes=now(device.reserved_bytes),
            overhead_bytes=now(device.overhead_bytes),
            busy_ratio=now(device.busy_ratio),
            throttled_seconds_total=now(device.throttled_seconds_total),
            launches_total=now(device.launches_total),
            denials_total=now(device.denials_total),
            over=device.over,
            pacing=None if device.pacing is None else paced(device.pacing),
        )
        for device in usage.devices
    )
    return AllocationUsage(
        allocation_id=usage.allocation_id,
        devices=devices,
        processes=usage.processes,
        enforcement=usage.enforcement,
        tampering=usage.tampering,
        bypassing_pids=usage.bypassing_pids,
    )
