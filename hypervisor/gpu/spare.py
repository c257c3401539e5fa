"""A gpu-reader that stands by: it takes over at once when a call about one card hangs, or when the other reader dies.

Starting an interpreter, NVML and all cards takes a second on a machine that is busy: too long for the cards that have
nothing to do with the hang. So it is all done before. It takes events too, as an event that nobody has taken yet ends
with the reader in whose set it lies; the daemon counts what two readers tell as one.

It holds every card that the other reader holds, so whoever lets go of a card ends it as well.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from hypervisor.gpu import wire
from hypervisor.gpu.pipe import LingeringProcesses, ReaderGoneError, ReaderHungError, ReaderProcess, end, start_process

log = structlog.get_logger("gpu-reader")
FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 60.0
# Whose answer takes longer than this is of no use to whoever waits for cards.
ANSWER_SECONDS = 10.0


@dataclass(slots=True)
class Prepared:
    """One that has started NVML and attached cards, as it is handed over. driver is what it was opened on."""

    process: ReaderProcess
    opened: wire.Opened
    driver: object
    slots: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a spare needs of the others: the cards to attach, the driver in use, and who hears of events."""

    cards: Callable[[], Sequence[wire.Attach]]
    driver: Callable[[wire.Opened], object]
    on_events: Callable[[wire.EventsDone, str], None]
    # Returns when the other reader has just been told its events: only then is it our turn to look. Who looks by a
    # clock of its own may hang in the same call at the same time, and then nobody is left to take over.
    turn: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Kept:
    """The process that run() owns until it is taken."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    left: trio.Event = field(default_factory=trio.Event)  # run() has let go of it, or ended it
    ready: Prepared | None = None
    taken: bool = False
    dropped: bool = False


class Spare:
    """At most one process. For the trio main thread."""

    def __init__(self, environment: Mapping[str, str], lingering: LingeringProcesses, work: Work) -> None:
        self._environment = environment
        self._lingering = lingering
        self._work = work
        self._kept: _Kept | None = None
        self._wanted = trio.Event()
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    @property
    def ready(self) -> bool:
        """Whether one could take over now."""
        return self._kept is not None and self._kept.ready is not None

    def prepare(self) -> None:
        """Have one ready from soon on."""
        if self._kept is None and time.monotonic() >= self._not_before:
            self._wanted.set()

    async def take(self) -> Prepared | None:
        """The process, for the caller to end; None when there is none that is ready."""
        await trio.lowlevel.checkpoint()
        kept = self._kept
        if kept is None or kept.dropped or kept.ready is None or kept.ready.process.process.returncode is not None:
            return None
        kept.taken = True
        kept.scope.cancel()
        with trio.CancelScope(shield=True):
            await kept.left.wait()
        return kept.ready

    def drop(self) -> None:
        """End it soon, and give it to nobody."""
        if self._kept is not None and not self._kept.taken:
            self._kept.ready = None
            self._kept.dropped = True
            self._kept.scope.cancel()

    async def discard(self) -> None:
        """End it; returns when it has gone, or lingers. Cancelling stops the waiting only."""
        kept = self._kept
        self.drop()
        await trio.lowlevel.checkpoint()
        if kept is not None:
            await kept.left.wait()

    async def run(self) -> None:
        """For ever. Cancelling ends the process, if it was not taken."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            kept = self._kept = _Kept()
            try:
                await self._keep(kept)
            except (OSError, ReaderGoneError, ReaderHungError) as error:
                log.warning("no spare gpu-reader can be kept", reason=str(error))
                self._not_before = time.monotonic() + self._pause
                self._pause = min(self._pause * 2, MOST_PAUSE_SECONDS)
            finally:
                self._kept = None
                kept.left.set()

    async def _keep(self, kept: _Kept) -> None:
        process = await start_process(self._environment)
        try:
            with kept.scope:
                reader = ReaderProcess.of(process)
                kept.ready = await self._prepare(reader)
                self._pause = FIRST_PAUSE_SECONDS
                await self._follow_events(reader)
        finally:
            if not kept.taken:
                kept.ready = None
                await end(process, self._lingering)

    async def _prepare(self, reader: ReaderProcess) -> Prepared:
        opened = await reader.ask(wire.Open(), timeout=ANSWER_SECONDS)
        if not isinstance(opened, wire.Opened):
            raise ReaderGoneError("it can't open NVML")
        driver, slots = self._work.driver(opened), set()
        for request in self._work.cards():
            attached = await reader.ask(request, timeout=ANSWER_SECONDS)
            if isinstance(attached, wire.Attached) and attached.facts is not None:
                await reader.ask(wire.Health(attached.slot), timeout=ANSWER_SECONDS)  # from here on events come
                slots.add(attached.slot)
        return Prepared(reader, opened, driver, frozenset(slots))

    async def _follow_events(self, reader: ReaderProcess) -> None:
        while True:
            await self._work.turn()
            told = await reader.ask(wire.Events(), timeout=ANSWER_SECONDS)
            if isinstance(told, wire.EventsDone):
                self._work.on_events(told, reader.name)
