"""The daemon's way to divide cards: each operation is an errand of a gpu-reader of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from hypervisor.gpu import wire
from hypervisor.gpu.codes import IN_USE
from hypervisor.gpu.errand import NO_CODE, ErrandError, Errands, ask_of, exchange
from hypervisor.gpu.pipe import LingeringProcesses, ReaderGoneError, ReaderHungError, ReaderProcess, open_reader_process

# A card could not be divided, or nobody could say how it is.
MigError = ErrandError


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCard:
    """A card as a whole, divided or not. memory_bytes, multiprocessors and tflops are 0 where they are not known.

    usable: it is read, well, and nobody asked us to let go of it. processes: something runs on it now.
    """

    uuid: str
    bus_id: str
    index: int
    model: str
    architecture: str
    multiprocessors: int
    memory_bytes: int
    tflops: float
    usable: bool
    processes: bool


class MigControl:
    """Looks at and changes the division of cards, named by bus id. One operation at a time."""

    def __init__(
        self,
        environment: Mapping[str, str],
        lingering: LingeringProcesses,
        *,
        look_again: Callable[[str], None],
        let_go: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        """look_again is told the bus id of a card whose division changed. let_go gives, for the length of a block,
        back the handles that the readers hold of a card."""
        self._let_go = let_go
        self._errands = Errands(environment, lingering)
        self._look_again = look_again

    async def look(self, bus_ids: Sequence[str]) -> Mapping[str, wire.MigTold | MigError]:
        """How cards are divided, and could be, by bus id. Cancelling ends the reader.

        One that can't be read does not keep the others from being told.
        """
        told: dict[str, wire.MigTold | MigError] = {}
        async with self._errands.turn:
            waiting = list(bus_ids)
            while waiting:
                async with open_reader_process(self._errands.environment, self._errands.lingering) as process:
                    await self._look_at(process, waiting, told)
        return told

    async def _look_at(
        self, process: ReaderProcess, waiting: list[str], told: dict[str, wire.MigTold | MigError]
    ) -> None:
        """Ask one reader for as many cards as it can tell; one at which it hangs or dies is taken off the list."""
        opened = False
        while waiting:
            bus_id = waiting.pop(0)
            try:
                if not opened:
                    await exchange(process, wire.Open(), wire.Opened)
                    opened = True
                told[bus_id] = await ask_of(process, bus_id, wire.MigLook, wire.MigTold)
            except MigError as error:
                told[bus_id] = error
            except (ReaderHungError, ReaderGoneError) as error:
                told[bus_id] = MigError(NO_CODE, f"nothing is known of the card {bus_id}: {error}")
                return

    async def create(self, bus_id: str, *, profile_id: int, start: int, size: int) -> wire.MigDone:
        """Make an instance with one compute instance. Raises MigError when nobody could be asked."""
        try:
            return await self._errands.ask(
                bus_id, lambda slot: wire.MigCreate(slot, profile_id, start, size), wire.MigDone
            )
        finally:
            self._look_again(bus_id)

    async def destroy(self, bus_id: str, gpu_instance: int) -> wire.MigDone:
        """End an instance. Raises MigError when nobody could be asked.

        When it is in use, that may be by the readers, which hold a handle of it: they let go for a second try.
        """

        def request(slot: str) -> wire.Request:
            return wire.MigDestroy(slot, gpu_instance)

        try:
            done = await self._errands.ask(bus_id, request, wire.MigDone)
            if done.code == IN_USE:
                async with self._let_go(bus_id):
                    done = await self._errands.ask(bus_id, request, wire.MigDone)
            return done
        finally:
            self._look_again(bus_id)

    async def enable(self, bus_id: str) -> wire.MigDone:
        """Switch MIG mode on. Raises MigError when nobody could be asked."""
        try:
            return await self._errands.ask(bus_id, wire.MigEnable, wire.MigDone)
        finally:
            self._look_again(bus_id)
