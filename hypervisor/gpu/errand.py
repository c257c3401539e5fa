"""One question about a card to a gpu-reader of its own, which ends with it.

The readers that watch the cards are not disturbed by a slow change, and a change that hangs in the driver is left
behind like any reader that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import trio

from hypervisor.gpu import wire
from hypervisor.gpu.codes import SUCCESS, words
from hypervisor.gpu.pipe import LingeringProcesses, ReaderGoneError, ReaderHungError, ReaderProcess, open_reader_process

Reply = TypeVar(
    "Reply", wire.MigTold, wire.MigDone, wire.MemoryLimitTold, wire.Attached, wire.Opened
)  # fmt: skip

# Making an instance takes a real driver up to seconds.
PATIENCE_SECONDS = 30.0
# In place of NVML's code where no answer came.
NO_CODE = -3


@dataclass(frozen=True, slots=True)
class ErrandError(Exception):
    """A card could not be asked or changed: NVML's code or NO_CODE, and a sentence."""

    code: int
    message: str

    def __str__(self) -> str:
        return self.message


class Errands:
    """Asks about cards, named by bus id; one errand at a time."""

    def __init__(self, environment: Mapping[str, str], lingering: LingeringProcesses) -> None:
        self.environment = environment
        self.lingering = lingering
        self.turn = trio.Lock()

    async def ask(self, bus_id: str, request: Callable[[str], wire.Request], expected: type[Reply]) -> Reply:
        """The reply to one request, which is made with the card's slot. Raises ErrandError. Cancelling ends the
        reader, and what it was about to do may have been done."""
        async with self.turn, open_reader_process(self.environment, self.lingering) as process:
            try:
                await exchange(process, wire.Open(), wire.Opened)
                return await ask_of(process, bus_id, request, expected)
            except ReaderHungError as error:
                raise ErrandError(NO_CODE, f"the driver did not answer about the card {bus_id} ({error})") from error
            except ReaderGoneError as error:
                raise ErrandError(NO_CODE, f"the reader of the card {bus_id} failed ({error})") from error


async def ask_of(
    process: ReaderProcess, bus_id: str, request: Callable[[str], wire.Request], expected: type[Reply]
) -> Reply:
    """As Errands.ask(), of a reader that was opened. Raises ErrandError, and what its pipes raise."""
    attached = await exchange(process, wire.Attach(bus_id=bus_id), wire.Attached)
    if attached.code != SUCCESS:
        raise ErrandError(attached.code, f"the card {bus_id} can't be opened: {words(attached.code)}")
    return await exchange(process, request(attached.slot), expected)


async def exchange(process: ReaderProcess, request: wire.Request, expected: type[Reply]) -> Reply:
    """One request and its reply. Raises ErrandError, and what the pipes raise."""
    reply = await process.ask(request, timeout=PATIENCE_SECONDS)
    if isinstance(reply, wire.Failed):
        raise ErrandError(reply.code, f"NVML can't be used: {words(reply.code)} at '{reply.stage}'")
    if not isinstance(reply, expected):
        raise ReaderGoneError(f"it answered {type(request).__name__} with {type(reply).__name__}")
    return reply
