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
    """One that has started NVML and attached cards, as it is handed over. driver is what it was opened on.

    anew: NVML was started in it to see cards as they are now.
    """

    process: ReaderProcess
    opened: wire.Opened
    driver: object
    slots: frozenset[str]
    anew: bool


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
    again: bool = False  # NVML is to be started anew in it
    turn: trio.CancelScope = field(default_factory=trio.CancelScope)  # while it waits for its turn


class Spare:
    """At most one process. For the trio main thread."""

    def __init__(self, environment: Mapping[str, str], lingering: LingeringProcesses, work: Work) -> None:
        self._environment = environment
        self._lingering = lingering
        self._work = work
        self._kept: _Kept | None = None
        self._wanted = trio.Event()
        self._became_ready = trio.Event()
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._anew = False  # asked for by renew(), and nobody has taken one since

    @property
    def ready(self) -> bool:
        """Whether one could take over now."""
        return self._kept is not None and self._kept.ready is not None

    def prepare(self) -> None:
        """Have one ready from soon on."""
        if self._kept is None and time.monotonic() >= self._not_before:
            self._wanted.set()

    def renew(self) -> None:
        """Have one ready soon that has started NVML anew; until then there is none."""
        self._anew = True
        if self._kept is None or self._kept.taken or self._kept.dropped:
            self._not_before = 0.0
            self._wanted.set()
            return
        self._kept.ready, self._kept.again = None, True
        self._kept.turn.cancel()

    async def wait_ready(self) -> None:
        """Wait until one could take over. Cancelling stops the waiting and nothing else."""
        await trio.lowlevel.checkpoint()
        while not self.ready:
            await self._became_ready.wait()

    async def take(self) -> Prepared | None:
        """The process, for the caller to end; None when there is none that is ready."""
        await trio.lowlevel.checkpoint()
        kept = self._kept
        if kept is None or kept.dropped or kept.ready is None or kept.ready.process.process.returncode is not None:
            return None
        kept.taken, self._anew = True, False
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
                while True:
                    kept.again = False
                    prepared = await self._prepare(reader)
                    self._pause = FIRST_PAUSE_SECONDS
                    if not kept.again:
                        kept.ready = prepared
                        self._became_ready.set()
                        self._became_ready = trio.Event()
                        await self._follow_events(reader, kept)
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
        return Prepared(reader, opened, driver, frozenset(slots), self._anew)

    async def _follow_events(self, reader: ReaderProcess, kept: _Kept) -> None:
        """Until NVML is to be started anew."""
        while not kept.again:
            with trio.CancelScope() as kept.turn:
                await self._work.turn()
            if kept.again:
                return
            told = await reader.ask(wire.Events(), timeout=ANSWER_SECONDS)
            if isinstance(told, wire.EventsDone):
                self._work.on_events(told, reader.name)
