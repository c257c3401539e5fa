"""What is asked of one gpu-reader from its start to its end: open, attach, then round after round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

import trio

from hypervisor.gpu import failures, gpm, processes, wire
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.failures import UnusableError
from hypervisor.gpu.fleet import SURVEY_SECONDS, CardState
from hypervisor.gpu.known import FIRST_RENEWAL_SECONDS, Known, driver_of
from hypervisor.gpu.pipe import ReaderGoneError, ReaderHungError, ReaderProcess, ReaderWasGoneError
from hypervisor.gpu.slots import EVENTS_SLOT, card_samples_slot, gpm_slot, slot_of
from hypervisor.gpu.spare import Prepared
from hypervisor.model.busy import BusyWindow
from hypervisor.model.health import HealthState

Expected = TypeVar("Expected", bound=wire.Reply)

HOST_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
# Between two looks whether the driver was exchanged under us.
DRIVER_SECONDS = 5.0
# A reading takes milliseconds. After this the other GPUs are given to another reader, while this one waits on. Time in
# which the reader had no CPU does not count: another one would have none either.
SLOW_SECONDS = 0.4
# More for each MIG device of a card: they are read with it, by as many calls more.
SLOW_INSTANCE_SECONDS = 0.1
# Opening a card and asking for its state are many calls, and rare.
SLOW_STATE_SECONDS = 0.6
# Where no other reader can be made ready, what has hung is asked again so long after its time.
RETRY_WITHOUT_SPARE_SECONDS = 60.0
# Between two looks at the samples of processes: the shortest window of a driver.
SAMPLING_SECONDS = 1 / 6
LEAST_WAIT_SECONDS = 0.01
# After this, what the round has read so far is told without waiting for the rest of it.
EARLY_SECONDS = 0.1
# Opening a GPU that sleeps takes the driver seconds.
START_PATIENCE = 3
# While a GPU is lost, NVML is started anew from time to time: only then does it see that a reset brought it back.
MOST_RENEWAL_SECONDS = 600.0


class AnsweredLateError(Exception):
    """The other GPUs were given to another reader, and the answer came after that: this reader has done its part."""


class Session:
    """One reader at work.

    publish is called after each good round; hand_over when an answer about one GPU is overdue, so that another reader
    looks after the others. From then on this session waits for that answer and touches nothing else. stands_by says
    whether that other one is ready, without which nothing is asked that has hung before. renew is called when NVML is
    to be started anew for cards that are lost; this session goes on until that has been done.
    """

    def __init__(
        self,
        known: Known,
        process: ReaderProcess,
        *,
        publish: Callable[[], None],
        hand_over: Callable[[], None],
        stands_by: Callable[[], bool],
        renew: Callable[[], None],
        prepared: Prepared | None = None,
    ) -> None:
        self._known = known
        self._process = process
        self._prepared = prepared
        self._publish = publish
        self._hand_over = hand_over
        self._stands_by = stands_by
        self._renew = renew
        self._takes_over = known.counters.rounds > 0
        self._untold = False  # all readings of a round are there, and not published yet

    async def run(self) -> None:
        """Read until only another process can go on. Cancelling leaves the process to be ended.

        Raises UnusableError, ReaderHungError, ReaderGoneError or AnsweredLateError.
        """
        driver = await (self._open() if self._prepared is None else self._take_over(self._prepared))
        fleet = self._known.fleet
        renew_at = time.monotonic() + self._known.renewal_seconds
        look_at = time.monotonic() + DRIVER_SECONDS
        while True:
            begun = time.monotonic()
            if begun >= look_at:
                look_at = begun + DRIVER_SECONDS
                if driver_of(self._known) != driver:
                    return  # the library or the module is another one: only a new reader can use it
            await self._round(begun)
            if not fleet.any_lost():
                self._known.renewal_seconds = FIRST_RENEWAL_SECONDS
            elif time.monotonic() >= renew_at:
                self._known.renewal_seconds = min(self._known.renewal_seconds * 2, MOST_RENEWAL_SECONDS)
                renew_at = time.monotonic() + self._known.renewal_seconds
                self._renew()
            interval = self._known.settings.reading_interval_seconds
            await self._between_rounds(begun, begun + interval)

    async def _open(self) -> object:
        """Start NVML and attach all cards; gives the driver that they are read by."""
        fleet = self._known.fleet
        opened = self._known.opened = await self._ask(wire.Open(), wire.Opened)
        fleet.simulated = opened.simulated
        self._known.health.on_new_reader()
        count = opened.count.value
        if not count and not fleet.cards:
            raise UnusableError(failures.no_gpus() if count == 0 else failures.uncounted(opened.count.code))
        slow = self._known.settings.reading_timeout_seconds
        await self._attach(fleet.plan(count, now=time.monotonic()), slow=slow)
        await self._attach(fleet.unattached(now=time.monotonic()), slow=slow)
        return driver_of(self._known)

    async def _take_over(self, prepared: Prepared) -> object:
        """Go on with what the reader has attached while it stood by."""
        fleet = self._known.fleet
        self._known.opened = prepared.opened
        if self._process.owes:
            told = await self._owed()
            if isinstance(told, wire.EventsDone):
                self._on_events(told)
        self._known.health.on_new_reader()
        if prepared.anew and fleet.any_lost():
            # What is back may be back elsewhere. Those that are attached already are there at once.
            await self._attach(fleet.plan(prepared.opened.count.value, now=time.monotonic()), slow=SLOW_STATE_SECONDS)
        else:
            fleet.take_over(prepared.slots)
        await self._attach(fleet.unattached(now=time.monotonic()), slow=SLOW_STATE_SECONDS)
        return prepared.driver

    async def _owed(self) -> wire.Reply:
        """The answer that the reader owed when it was taken. It hangs in nothing as far as anybody knows, so a want of
        CPU is waited out: to start another reader would take longer. Raises ReaderHungError."""
        begun, starved, wait = time.monotonic(), self._process.starved_seconds(), SLOW_SECONDS
        while True:
            try:
                return await self._process.reply(timeout=wait)
            except ReaderHungError:
                had_none = self._process.starved_seconds() - starved
                most = self._known.settings.reading_timeout_seconds / 2
                wait = min(SLOW_SECONDS + had_none, most) - (time.monotonic() - begun)
                if wait <= LEAST_WAIT_SECONDS:
                    raise

    def _on_events(self, done: wire.EventsDone) -> None:
        self._known.health.on_events(
            done, self._known.fleet, reader=self._process.name, now=time.monotonic(), wall_time=time.time()
        )

    async def _between_rounds(self, begun: float, until: float) -> None:
        """Wait, and look at the samples of processes meanwhile, where somebody asks for them."""
        due = begun
        if not self._known.sampled:
            with trio.move_on_after(max(0.0, until - time.monotonic())):
                await self._known.sampling_wanted.wait()
            due = time.monotonic()
        while (now := time.monotonic()) < until:
            due += SAMPLING_SECONDS
            await trio.sleep(max(0.0, min(due, until) - now))
            if due < until:
                await self._sample()
                due = max(due, time.monotonic() - SAMPLING_SECONDS)  # after a stop, none is made up for

    async def _sample(self) -> None:
        known = self._known
        known.windows = {uuid: window for uuid, window in known.windows.items() if uuid in known.sampled}
        if not known.sampled:
            return
        for card in known.fleet.cards_to_read():
            wanted = known.sampled.intersection(known.fleet.devices_of(card))
            whole = not known.fleet.is_suspect(card_samples_slot(card.slot))
            if not card.mig_enabled and card.uuid in wanted and await self._sample_card(card, whole=whole):
                continue
            if wanted and not known.fleet.is_suspect(gpm_slot(card.slot)):
                await self._ask_gpm(card, wanted)

    async def _sample_card(self, card: CardState, *, whole: bool) -> bool:
        """A window of a card's processes, where the driver has samples of them. whole: and of the card as a whole."""
        known = self._known
        activity = known.fleet.records[card.uuid].activity
        # Under MPS processes are on the card at the same time, so that their times do not add up to its own.
        whole = whole and activity.processes is not None and all(p.busy_ratio is not None for p in activity.processes)
        told = await self._ask(wire.Sampling(card.slot, whole), wire.Sampled, slow=SLOW_SECONDS)
        if whole:
            known.fleet.on_answer(card_samples_slot(card.slot))
        now = time.monotonic()
        # Of the record as it is now: a card that was lost meanwhile has another one.
        record = known.fleet.records.get(card.uuid)
        if record is None:
            return False
        activity = record.activity.heard(
            told.samples, told.gpu_percent.value, now, nobody=record.activity.processes == ()
        )
        known.fleet.records[card.uuid] = replace(record, activity=activity)
        last = known.windows.get(card.uuid)
        samples = activity.believed(told.samples, now)
        window = processes.next_window(
            *(last, samples, told.card), now=now, wall_offset=time.time() - now, doubted=activity.doubts(samples)
        )
        if window is not None:
            known.windows[card.uuid] = window
        elif isinstance(last, BusyWindow):
            del known.windows[card.uuid]
        return window is not None

    async def _ask_gpm(self, card: CardState, wanted: AbstractSet[str]) -> None:
        """Windows of a card or its instances as a whole, where the driver has no samples of their processes."""
        known, fleet = self._known, self._known.fleet
        targets = gpm.targets_of(card.uuid, fleet.gpu_instances(card), wanted)
        if not targets:
            return
        told = await self._ask(wire.Gpm(card.slot, targets), wire.GpmTold, slow=SLOW_SECONDS)
        fleet.on_answer(gpm_slot(card.slot))
        for uuid, wrong in gpm.bring_up_to_date(known.windows, told.readings, wanted, now=time.monotonic()):
            known.counters.add_rejections(uuid, [("gpm", wrong)])

    async def _round(self, begun: float) -> None:
        fleet, counters = self._known.fleet, self._known.counters
        due = fleet.attaches_due(now=begun)
        await self._attach([each for each in due if not fleet.is_suspect(slot_of(each))], slow=SLOW_STATE_SECONDS)
        cards = fleet.cards_to_read()
        await self._read(cards)
        fleet.finish_round([card.slot for card in cards])
        self._known.health.guard_capacity(fleet, now=time.monotonic())
        self._untold = True
        if self._takes_over:
            # The others have waited for this reader long enough; the state of all cards, which it has yet to read, is
            # that of the reader before.
            self._takes_over = False
            self._tell()
        await self._look_after_health(begun)
        if fleet.survey_due_at <= begun:
            await self._survey()
        await self._sample()
        counters.add_calls((await self._ask(wire.Count(), wire.Counted)).calls)
        counters.rounds += 1
        counters.last_round_seconds = time.monotonic() - begun
        self._untold = False
        self._publish()
        # What has hung before may hang again: it comes when all others are read and told.
        for request in due:
            if self._may_hang_again(slot_of(request)):
                await self._attach([request], slow=SLOW_STATE_SECONDS)
        for card in fleet.suspects_to_read(now=begun):
            if self._may_hang_again(card.slot):
                await self._read([card])
        for card in fleet.cards_to_read():
            slot, wanted = gpm_slot(card.slot), self._known.sampled.intersection(fleet.devices_of(card))
            if wanted and not fleet.quarantined(slot, now=begun) and self._may_hang_again(slot):
                await self._ask_gpm(card, wanted)
            slot = card_samples_slot(card.slot)
            if card.uuid not in wanted or card.mig_enabled or fleet.quarantined(slot, now=begun):
                continue
            if self._may_hang_again(slot):
                await self._sample_card(card, whole=True)

    def _may_hang_again(self, slot: str | None) -> bool:
        """Whether to ask once more about what has hung: only with another reader at hand, as long as one can be had."""
        fleet = self._known.fleet
        if slot is None or not fleet.is_suspect(slot):
            return False
        return self._stands_by() or fleet.overdue(slot, by=RETRY_WITHOUT_SPARE_SECONDS, now=time.monotonic())

    def _tell(self) -> None:
        """Publish the readings of this round, unless that was done."""
        if self._untold:
            self._untold = False
            self._publish()

    async def _read(self, cards: Sequence[CardState]) -> None:
        fleet, counters = self._known.fleet, self._known.counters
        for card in cards:
            slow = SLOW_SECONDS + SLOW_INSTANCE_SECONDS * len(card.instances)
            reply = await self._ask(wire.Read(card.slot), wire.ReadDone, slow=slow)
            now = time.monotonic()
            bounds = {uuid: self._known.observer.memory_bounds(fleet.records[uuid]) for uuid in fleet.devices_of(card)}
            fleet.on_read(
                card,
                reply,
                bounds=bounds,
                now=now,
                wall_offset=time.time() - now,
                unified_bytes=int(HOST_MEMORY_BYTES * self._known.settings.unified_memory_ratio),
            )
            for uuid in fleet.devices_of(card):
                counters.add_rejections(uuid, fleet.records[uuid].rejections)
            failures.raise_for_library(reply)
            self._known.health.on_reading(card, reply.devices[0], fleet)

    async def _look_after_health(self, begun: float) -> None:
        """Events first: they say whose state is to be read at once."""
        fleet, health = self._known.fleet, self._known.health
        if not fleet.is_suspect(EVENTS_SLOT) or (
            not fleet.quarantined(EVENTS_SLOT, now=begun) and self._may_hang_again(EVENTS_SLOT)
        ):
            done = await self._ask(wire.Events(), wire.EventsDone, slow=SLOW_STATE_SECONDS)
            fleet.on_answer(EVENTS_SLOT)
            self._on_events(done)
            self._known.events_told.set()
            self._known.events_told = trio.Event()
        for card in fleet.cards_to_read():
            readable = fleet.records[card.uuid].health is HealthState.HEALTHY
            if readable and health.is_due(card, now=begun):
                told = await self._ask(wire.Health(card.slot), wire.HealthDone, slow=SLOW_STATE_SECONDS)
                health.on_facts(card, told, fleet, now=time.monotonic())

    async def _attach(self, requests: list[wire.Attach], *, slow: float) -> None:
        for request in requests:
            reply = await self._ask(request, wire.Attached, slow=slow)
            self._known.fleet.on_attached(request, reply, now=time.monotonic())

    async def _survey(self) -> None:
        fleet = self._known.fleet
        fleet.survey_due_at = time.monotonic() + SURVEY_SECONDS
        for card in fleet.cards_to_read():
            fleet.on_surveyed(card, await self._ask(wire.Survey(card.slot), wire.Surveyed, slow=SLOW_STATE_SECONDS))

    async def _ask(self, request: wire.Request, expected: type[Expected], *, slow: float | None = None) -> Expected:
        """The reply; after `slow` seconds the GPUs that the request is not about go on with another reader."""
        slot = slot_of(request)
        patience = self._known.settings.reading_timeout_seconds
        # NVML starts without its GPUs. Where they were read before, all of them wait for it, and another start may do.
        if isinstance(request, wire.Attach) or (isinstance(request, wire.Open) and not self._known.fleet.cards):
            patience *= START_PATIENCE
        try:
            if slot is None or slow is None:
                reply = await self._process.ask(request, timeout=patience)
            else:
                reply = await self._ask_beside_others(request, slot, min(slow, patience / 2), patience)
        except ReaderWasGoneError:
            raise  # no card is to blame for it, nor to be left out
        except (ReaderHungError, ReaderGoneError):
            if slot is not None:
                self._known.fleet.on_strike(slot, now=time.monotonic())
            raise
        if isinstance(reply, wire.Failed):
            raise UnusableError(failures.finding_of(reply, self._known.environment))
        if not isinstance(reply, expected):
            raise ReaderGoneError(f"it answered {type(request).__name__} with {type(reply).__name__}")
        return reply

    async def _ask_beside_others(self, request: wire.Request, slot: str, slow: float, patience: float) -> wire.Reply:
        begun, starved = time.monotonic(), self._process.starved_seconds()
        # What has hung before gets no grace for a want of CPU: another reader is at hand, and a change costs little.
        grace = not self._known.fleet.is_suspect(slot)
        wait, asked = min(EARLY_SECONDS, slow), False
        while wait > 0:
            try:
                if asked:
                    return await self._process.reply(timeout=wait)
                asked = True
                return await self._process.ask(request, timeout=wait)
            except ReaderHungError:
                self._tell()
                had_none = self._process.starved_seconds() - starved if grace else 0.0
                wait = min(slow + had_none, patience / 2) - (time.monotonic() - begun)
                wait = wait if wait > LEAST_WAIT_SECONDS else 0.0
        self._known.fleet.on_suspect(slot, until=time.monotonic() + patience)
        self._hand_over()
        await self._process.reply(timeout=max(patience - (time.monotonic() - begun), slow))
        self._known.fleet.on_late_answer(slot, now=time.monotonic())
        raise AnsweredLateError


@dataclass(slots=True)
class Turn:
    """One reader's time as the one that reads: over when it ends, or when it hands over."""

    over: trio.Event = field(default_factory=trio.Event)
    finding: Finding | None = None  # why it ended; None when it was renewed on purpose or handed over
