"""One instance made or ended, with the journal before and the card read back after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from hypervisor.gpu import codes, wire
from hypervisor.gpu.codes import SUCCESS, words
from hypervisor.gpu.mig_control import MigError, PhysicalCard
from hypervisor.workers.mig.geometry import Geometry, Profile, instance_of, profile_of
from hypervisor.workers.mig.journal import Journal, Record, Stage

_WITHOUT_MIG = frozenset({codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND})
NOT_ASKED = MigError(codes.NOT_ASKED, "it was not asked")


class Control(Protocol):
    """What is needed of the gpu room; see hypervisor.gpu.mig_control."""

    async def look(self, bus_ids: Sequence[str]) -> Mapping[str, wire.MigTold | MigError]: ...

    async def create(self, bus_id: str, *, profile_id: int, start: int, size: int) -> wire.MigDone: ...

    async def destroy(self, bus_id: str, gpu_instance: int) -> wire.MigDone: ...

    async def enable(self, bus_id: str) -> wire.MigDone: ...


class StepError(Exception):
    """A step that did not come about; the text says what, why and what to do."""

    def __init__(self, message: str, *, in_use: bool = False) -> None:
        super().__init__(message)
        self.in_use = in_use


class Steps:
    """The steps on one node. Raise StepError; what was begun stands in the journal in any case."""

    def __init__(self, control: Control, journal: Journal, *, boot_id: str) -> None:
        self._control = control
        self.journal = journal
        self.boot_id = boot_id

    async def look(self, cards: Sequence[PhysicalCard]) -> tuple[Geometry, ...]:
        """How cards are divided; those that can't be are left out, those that can't be read are not complete."""
        told = await self._control.look([card.bus_id for card in cards]) if cards else {}
        return tuple(
            geometry for card in cards if (geometry := _geometry(card, told.get(card.bus_id) or NOT_ASKED)) is not None
        )

    async def create(
        self, card: PhysicalCard, profile: Profile, start: int, *, allocation_id: str, uuid: str = ""
    ) -> Record:
        """Make an instance and read it back. uuid: of the one before, where it is made again."""
        record = Record(
            stage=Stage.MAKING,
            profile_id=profile.profile_id,
            profile=profile.name,
            start=start,
            size=profile.size,
            boot_id=self.boot_id,
            allocation_id=allocation_id,
            uuid=uuid,
        )
        self.journal.put(card.uuid, record)
        what = f"{profile.name} at slice {start} of GPU {card.index}"
        try:
            done = await self._control.create(
                card.bus_id, profile_id=profile.profile_id, start=start, size=profile.size
            )
        except MigError as error:
            raise StepError(f"{what} could not be made: {error}; it is looked after when the driver answers") from error
        if done.code != SUCCESS:
            # Whether anything is left of it is found by the next look; until then the record stands.
            if done.step == "nvmlDeviceCreateGpuInstanceWithPlacement" or done.undone:
                self.journal.drop(card.uuid, start)
            raise StepError(f"{what} could not be made: {done.step}: {words(done.code)}; {_remedy(done.code)}")
        return await self._read_back(card, record, what)

    async def _read_back(self, card: PhysicalCard, record: Record, what: str) -> Record:
        """The driver's word is not enough: the instance must be there."""
        for geometry in await self.look([card]):
            for instance in geometry.instances:
                same = (instance.profile_id, instance.start) == (record.profile_id, record.start)
                if same and instance.uuid:
                    there = msgspec.structs.replace(
                        record, stage=Stage.THERE, gpu_instance=instance.gpu_instance, uuid=instance.uuid
                    )
                    self.journal.put(card.uuid, there)
                    return there
        raise StepError(
            f"{what} was made as the driver says, and is not there; 'nvidia-smi mig -lgi' shows what is, "
            "and the driver's log why"
        )

    async def end(self, card: PhysicalCard, record: Record) -> None:
        """End an instance of ours."""
        self.journal.put(card.uuid, msgspec.structs.replace(record, stage=Stage.ENDING))
        if record.gpu_instance is None:
            self.journal.drop(card.uuid, record.start)
            return
        what = f"{record.profile} at slice {record.start} of GPU {card.index}"
        try:
            done = await self._control.destroy(card.bus_id, record.gpu_instance)
        except MigError as error:
            raise StepError(f"{what} could not be ended: {error}; it is tried again") from error
        if done.code != SUCCESS:
            raise StepError(
                f"{what} could not be ended: {done.step}: {words(done.code)}; {_remedy(done.code)}",
                in_use=done.code == codes.IN_USE,
            )
        self.journal.drop(card.uuid, record.start)

    async def enable(self, card: PhysicalCard) -> None:
        """Switch MIG mode on, and read it back."""
        try:
            done = await self._control.enable(card.bus_id)
        except MigError as error:
            raise StepError(f"MIG mode of GPU {card.index} could not be switched on: {error}") from error
        if done.code != SUCCESS or done.activation != SUCCESS:
            raise StepError(
                f"MIG mode of GPU {card.index} is not in force: {words(done.code or done.activation)}; "
                "end what holds the card and reset it ('nvidia-smi --gpu-reset'), or start the machine anew"
            )


def _geometry(card: PhysicalCard, told: wire.MigTold | MigError) -> Geometry | None:
    if isinstance(told, MigError):
        return _unread(card)
    if told.mode.value is None and told.mode.code in _WITHOUT_MIG:
        return None
    if told.mode.value is None or not told.profiles:
        return _unread(card)  # a driver in trouble says nothing of what the card can do
    now, next_mode = told.mode.value
    return Geometry(
        parent_uuid=card.uuid,
        index=card.index,
        bus_id=card.bus_id,
        model=card.model,
        architecture=card.architecture,
        enabled=now == 1,
        pending=now != next_mode,
        profiles=tuple(profile_of(each) for each in told.profiles),
        instances=tuple(instance_of(each) for each in told.instances),
        complete=told.code == SUCCESS,
        multiprocessors=card.multiprocessors,
        memory_bytes=card.memory_bytes,
        tflops=card.tflops,
    )


def _unread(card: PhysicalCard) -> Geometry:
    return Geometry(
        parent_uuid=card.uuid,
        index=card.index,
        bus_id=card.bus_id,
        model=card.model,
        architecture=card.architecture,
        enabled=False,
        pending=False,
        profiles=(),
        instances=(),
        complete=False,
        multiprocessors=card.multiprocessors,
        memory_bytes=card.memory_bytes,
        tflops=card.tflops,
    )


def _remedy(code: int) -> str:
    match code:
        case codes.IN_USE:
            return "end the processes that use it; 'hypervisor doctor node' lists who holds the card"
        case codes.INSUFFICIENT_RESOURCES:
            return "what is there leaves no place for it; 'nvidia-smi mig -lgi' shows what is"
        case codes.NO_PERMISSION:
            return "run the daemon as root, or with the capability of /proc/driver/nvidia/capabilities/mig/config"
    return "the kernel's log may say more"
