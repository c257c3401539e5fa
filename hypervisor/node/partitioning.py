"""MIG for the node: which instance an allocation gets, before it is admitted, and the loop that settles the cards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import trio

from hypervisor.config import SettingsError
from hypervisor.gpu.mig_control import PhysicalCard
from hypervisor.gpu.reader import GpuReader
from hypervisor.model import (
    Allocation,
    AllocationSpec,
    Compute,
    DeviceObservation,
    DeviceRequest,
    EventType,
    Inventory,
    IsolationMode,
    ObjectKind,
    ObjectReference,
    Partition,
    Refusal,
    RefusalReason,
    Resources,
)
from hypervisor.model.figure import Figure, FigureSource
from hypervisor.node.publisher import EmitEvent
from hypervisor.workers.mig import Partitions
from hypervisor.workers.mig.journal import Journal
from hypervisor.workers.mig.matching import Match, Wanted, share_of
from hypervisor.workers.mig.partitions import Needs, PartitionsStatistics
from hypervisor.workers.mig.steps import Steps

LOOK_SECONDS = 2.0
MOST_WISHED = 64  # of one profile; no card has room for more
# After something that did not come about, the cards are looked at less often: each look starts a reader.
MOST_PAUSE_SECONDS = 60.0
# The inventory shows a new instance with the next round of reading.
SHOWN_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What is admitted in place of the devices of a spec, and the inventory to admit it by."""

    devices: tuple[DeviceRequest, ...]
    inventory: Inventory


class Partitioning:
    """The way from the commands to the cards. For the trio main thread."""

    def __init__(
        self,
        reader: GpuReader,
        *,
        state_directory: Path,
        boot_id: str,
        wishes: Mapping[str, Sequence[str]],
        allocations: Callable[[], tuple[Allocation, ...]],
        emit: EmitEvent,
    ) -> None:
        """Raises OSError when the journal can't be used."""
        journal, damaged = Journal.open(state_directory / "mig")
        # What is to be told of damage: instances that nobody knows to be ours are left alone for good.
        self.mended = tuple(
            f"the journal of the MIG instances of {file.path.stem} was damaged ({file.reason}) and is now "
            f"{file.path.name}; instances on that card count as made by others: end those that nobody needs"
            for file in damaged
        )
        # UUIDs of instances that containers were given and that are no allocation's yet.
        self.promised: Callable[[], Collection[str]] = tuple
        self._reader = reader
        self._allocations = allocations
        self._emit = emit
        steps = Steps(reader.mig_control(), journal, boot_id=boot_id)
        self._partitions = Partitions(steps, wishes=wishes, emit=self._tell)

    async def place(self, spec: AllocationSpec, *, dry_run: bool) -> Placed | None:
        """The devices that a partitioned allocation is admitted with; None when it names instances itself.

        Raises Refusal. After it, provided() is to be called, whatever comes of the allocation.
        """
        if spec.isolation is not IsolationMode.PARTITIONED or all(_is_instance(each.gpu) for each in spec.devices):
            return None
        if any(each.spec.allocation_id == spec.allocation_id for each in self._allocations()):
            return None  # repeated: what was granted before is the answer
        if not self._reader.cards:
            return None  # admission says that no GPU is known yet
        inventory = self._reader.inventory
        placed: list[DeviceRequest] = []
        for at, request in enumerate(spec.devices):
            if _is_instance(request.gpu):
                placed.append(request)
                continue
            wanted, cards, busy = wanted_of(request), self._cards(request, at), self._busy(placed)
            if dry_run:
                found = await self._partitions.find(wanted, cards, busy=busy)
                uuid = found.uuid
                if found.match is not None:
                    planned = planned_device(found.match, inventory, len(placed))
                    inventory, uuid = replace(inventory, devices=(*inventory.devices, planned)), planned.identity.uuid
            else:
                uuid = await self._partitions.provide(wanted, cards, allocation_id=spec.allocation_id, busy=busy)
                inventory = await self._shown(uuid)
            # The instance is the limit: nothing of it is left to others.
            placed.append(DeviceRequest(gpu=uuid, limits=Resources(compute=Compute(percent=Decimal(100)))))
        return Placed(devices=tuple(placed), inventory=inventory)

    def provided(self, allocation_id: str) -> None:
        """The allocation was granted or refused."""
        self._partitions.provided(allocation_id)

    async def run(self) -> None:
        """Reconcile for ever. Cancelling may leave a step half done, which the next start finds in the journal."""
        pause = LOOK_SECONDS
        while True:
            await trio.sleep(pause)
            pause = await self.step(pause)

    async def step(self, pause: float) -> float:
        """Reconcile once if there is something to do; the seconds until the next look."""
        cards, present = self._reader.cards, {each.identity.uuid for each in self._reader.inventory.devices}
        if not self._partitions.needs_settling(cards, present=present, needs=self._needs()):
            return LOOK_SECONDS
        await self._partitions.settle(cards, self._needs)
        return min(MOST_PAUSE_SECONDS, pause * 2)

    def statistics(self) -> PartitionsStatistics:
        """Counters since the start; instances of others are those that the driver shows and we have not made, for they
        come and go without our looking at the card."""
        statistics = self._partitions.statistics()
        shown = {
            (each.identity.partition.parent_uuid, each.identity.partition.gpu_instance_id)
            for each in self._reader.inventory.devices
            if each.identity.partition is not None
        }
        return replace(statistics, foreign_instances=len(shown - self._partitions.ours()))

    async def _shown(self, uuid: str) -> Inventory:
        inventory = self._reader.inventory
        with trio.move_on_after(SHOWN_SECONDS):
            while all(device.identity.uuid != uuid for device in inventory.devices):
                inventory = await self._reader.next_inventory(inventory.sequence)
            return inventory
        raise Refusal(
            RefusalReason.PARTITION_FAILED,
            f"the instance {uuid} was made, and the driver has not shown it within {SHOWN_SECONDS:g} s",
            field="devices[0].gpu",
            remedy="'nvidia-smi -L' shows what the driver lists; try again",
        )

    def _cards(self, request: DeviceRequest, at: int) -> tuple[PhysicalCard, ...]:
        """The cards that a request may be served from: all, or the one that it names."""
        wanted = request.gpu.strip().lower()
        found = tuple(
            card for card in self._reader.cards if not wanted or wanted in (card.uuid.lower(), str(card.index))
        )
        if not found:
            known = ", ".join(f"{card.index} ({card.uuid})" for card in self._reader.cards)
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"there is no GPU {request.gpu[:96]!r} on this node",
                field=f"devices[{at}].gpu",
                remedy=f"ask for one of {known}",
            )
        return found

    def _needs(self) -> Needs:
        return Needs(allocations={each.spec.allocation_id for each in self._allocations()}, busy=self._busy(()))

    def _busy(self, placed: Sequence[DeviceRequest]) -> set[str]:
        granted = {grant.gpu_uuid for each in self._allocations() for grant in each.grants}
        return granted | {request.gpu for request in placed} | set(self.promised())

    def _tell(self, kind: EventType, reason: str, card: str, message: str) -> None:
        self._emit(kind, reason, ObjectReference(kind=ObjectKind.GPU, name=card.lower(), uid=card), message)


def wishes_of(entries: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The setting mig_geometry by card. Raises SettingsError."""
    wishes: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        card, colon, profiles = entry.partition(":")
        if not card.strip() or not colon:
            raise SettingsError(
                f"mig_geometry has {entry!r}; write a card and its profiles, as in '0: 3g.40gb 4x1g.10gb'"
            )
        names: list[str] = []
        for word in profiles.split():
            count, times, name = word.partition("x")
            if times and count.isdecimal() and name:
                names += [name] * min(int(count), MOST_WISHED)
            else:
                names.append(word)
        wishes[card.strip()] = tuple(names)
    return wishes


def _is_instance(gpu: str) -> bool:
    return gpu.strip().lower().startswith("mig-")


def wanted_of(request: DeviceRequest) -> Wanted:
    """What a request comes to; the limit says how much is used at most, and counts before the request. Pure."""
    compute = request.limits.compute or request.requests.compute
    return Wanted(
        template=request.partition,
        share=Fraction(compute.percent) / 100 if compute and compute.percent is not None else Fraction(0),
        tflops=Fraction(compute.tflops) if compute and compute.tflops is not None else Fraction(0),
        memory_bytes=request.limits.vram_bytes or request.requests.vram_bytes or 0,
    )


def planned_device(match: Match, inventory: Inventory, number: int) -> DeviceObservation:
    """An instance that is not there yet, as the inventory would show it. Pure."""
    geometry, profile = match.geometry, match.profile
    like = next(
        device
        for device in inventory.devices
        if geometry.parent_uuid
        in (device.identity.uuid, device.identity.partition.parent_uuid if device.identity.partition else "")
    )
    at = inventory.observed_at
    share = float(share_of(geometry, profile))
    tflops = geometry.tflops * share
    return replace(
        like,
        identity=replace(
            like.identity,
            uuid=f"MIG-not-made-yet-{number}",
            model=f"{geometry.model} MIG {profile.name}",
            sm_count=profile.multiprocessors or None,
            partition=Partition(
                parent_uuid=geometry.parent_uuid, gpu_instance_id=0, compute_instance_id=0, profile=profile.name
            ),
        ),
        tflops=Figure(tflops, FigureSource.PARENT, at) if tflops else Figure.absent("the card's are not known"),
        vram_bytes=Figure(profile.memory_bytes, FigureSource.DRIVER, at),
        conditions=(),
    )
