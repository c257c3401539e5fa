"""The daemon's side: keeps a gpu-reader running, asks it round after round, publishes inventories."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from hypervisor.config import Settings
from hypervisor.gpu import failures, wire
from hypervisor.gpu.catalogue import Catalogue
from hypervisor.gpu.change import ChangeOver
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.errand import Errands
from hypervisor.gpu.failures import UnusableError
from hypervisor.gpu.fleet import Fleet
from hypervisor.gpu.health.monitor import HealthMonitor, load_policy
from hypervisor.gpu.health.occurrence import Occurrence
from hypervisor.gpu.holders import holders_of
from hypervisor.gpu.known import Known, driver_of
from hypervisor.gpu.memory_limits import MemoryLimits
from hypervisor.gpu.mig_control import MigControl, PhysicalCard
from hypervisor.gpu.observe import Observer
from hypervisor.gpu.pipe import LingeringProcesses, ReaderGoneError, ReaderHungError, open_reader_process
from hypervisor.gpu.session import AnsweredLateError, Session, Turn
from hypervisor.gpu.spare import Spare, Work
from hypervisor.gpu.statistics import GpuReaderStatistics
from hypervisor.gpu.system import system_info
from hypervisor.model.busy import Windows
from hypervisor.model.health import HealthCode
from hypervisor.model.inventory import Inventory
from hypervisor.model.refusal import Refusal, RefusalReason

__all__ = ["GpuReader", "GpuReaderStatistics", "open_gpu_reader"]

log = structlog.get_logger("gpu-reader")
FIRST_PAUSE_SECONDS = 0.2
# Each try costs a quarter of a second of a core, also where there will never be a driver.
MOST_PAUSE_SECONDS = 20.0
LEAST_USE_KNOWN_SECONDS = 5.0
# Good rounds after which a reader gets a spare beside it: who reads once needs none.
SPARE_ROUNDS = 3
# The reader itself failed, which a new one mends; all other trouble is the driver's and lasts, as a condition.
_READER_FAILED = frozenset({HealthCode.READER_HUNG, HealthCode.READER_RESTARTING})


@asynccontextmanager
async def open_gpu_reader(
    settings: Settings, *, environment: Mapping[str, str], memory: Path | None = None
) -> AsyncIterator[GpuReader]:
    """A GpuReader for the length of the block; its child is killed at the end.

    environment is the whole environment of the child: what finds libnvidia-ml.so.1 (LD_LIBRARY_PATH,
    TF_NVML_LIB_PATH), and the simulated machine where there is one. memory is the file that keeps what stands against
    cards over a restart; without it that is forgotten. Returns before the first answer of the driver.
    Cancelling the block ends it within about a second, also when the child hangs in the driver.
    Raises CatalogueError or PolicyError when the site's catalogue or Xid policy can't be used.
    """
    catalogue = _load_catalogue(settings)
    health = HealthMonitor(settings, load_policy(settings), started_at=time.monotonic(), memory=memory)
    async with trio.open_nursery() as nursery:
        reader = GpuReader(settings, catalogue, health, dict(environment), LingeringProcesses(nursery))
        nursery.start_soon(reader._run)  # noqa: SLF001 - factory and class are one module
        nursery.start_soon(reader._watch_host)  # noqa: SLF001
        nursery.start_soon(reader._change.run)  # noqa: SLF001
        nursery.start_soon(reader._spare.run)  # noqa: SLF001
        try:
            yield reader
        finally:
            nursery.cancel_scope.cancel()
            health.close()


def _load_catalogue(settings: Settings) -> Catalogue:
    return Catalogue.load(Path(settings.catalogue) if settings.catalogue else None)


class GpuReader:
    """The GPUs of this node as the driver tells of them. Made by open_gpu_reader; for use in its trio loop."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        health: HealthMonitor,
        environment: Mapping[str, str],
        lingering: LingeringProcesses,
    ) -> None:
        fleet = Fleet(simulated=bool(settings.simulate) or "SIM_MACHINE" in environment)
        self._known = Known(settings, environment, Observer(catalogue), fleet, health)
        self._lingering = lingering
        work = Work(
            cards=fleet.preparable,
            driver=partial(driver_of, self._known),
            on_events=self._on_spare_events,
            turn=self._known.events_were_told,
        )
        self._spare = Spare(environment, lingering, work)
        self._change = ChangeOver(self._spare, fleet, end_readers=self._end_readers, renew=self._renew)
        self._trouble: Finding | None = Finding(HealthCode.STARTING, "the driver has not answered yet")
        self._readers: dict[trio.CancelScope, trio.Event] = {}  # with an event for the end of each
        self._pause_scope = trio.CancelScope()
        self._published = trio.Event()
        self._sequence = 0
        self._inventory = self._observe()

    # ---- what others use ----

    @property
    def inventory(self) -> Inventory:
        """The last inventory. Before the first good round it has no devices, and a condition that says why."""
        return self._inventory

    async def next_inventory(self, after: int) -> Inventory:
        """The newest inventory, as soon as its sequence is above `after`; those in between are skipped.

        Cancelling stops the waiting and loses nothing.
        """
        await trio.lowlevel.checkpoint()
        while self._inventory.sequence <= after:
            await self._published.wait()
        return self._inventory

    async def detach(self, uuid: str) -> None:
        """Let go of a card, given by its UUID or that of one of its MIG devices, so that it can be reset.

        Returns when no process of ours holds a handle of it any more; its figures stand and its health is draining.
        The other GPUs are read again right after. Cancelling stops the waiting; the card is let go of all the same.
        Raises Refusal when there is no such GPU.
        """
        card = self._known.fleet.card_of(uuid)
        if card is None:
            raise self._unknown(uuid)
        card.detached = True
        holders = tuple(self._readers.values())
        self._renew()
        self._publish()
        for ended in holders:
            await ended.wait()
        await self._spare.discard()
        await self._lingering.wait_none()

    async def attach(self, uuid: str) -> None:
        """Read a card again that was detached. Returns at once; the next inventories show it.

        Raises Refusal when there is no such GPU.
        """
        card = self._known.fleet.card_of(uuid)
        if card is None:
            raise self._unknown(uuid)
        if card.detached:
            self._known.fleet.reclaim(card)
            self._publish()
            # A reset makes old handles worthless; only a new start of NVML sees the card as it is. The others are read
            # as before until there is one.
            if self._known.counters.child_pid is None:
                self._renew()
            else:
                self._change.begin()
        await trio.lowlevel.checkpoint()

    @property
    def cards(self) -> tuple[PhysicalCard, ...]:
        """All cards whose address is known, divided ones as a whole too."""
        now = time.monotonic()
        return tuple(self._known.observer.whole_cards(self._known.fleet, now=now))

    def memory_limits(self) -> MemoryLimits:
        """The way to limit the VRAM of control groups. Each call makes one, with a turn of its own."""
        return MemoryLimits(Errands(self._known.environment, self._lingering))

    def mig_control(self) -> MigControl:
        """The way to divide cards. Each call makes one, with a turn of its own."""

        def look_again(bus_id: str) -> None:
            self._known.fleet.look_again(bus_id)

        @asynccontextmanager
        async def let_go(bus_id: str) -> AsyncIterator[None]:
            uuid = next((card.uuid for card in self._known.fleet.cards.values() if card.bus_id == bus_id), None)
            if uuid is None:
                yield
                return
            await self.detach(uuid)
            try:
                yield
            finally:
                with trio.CancelScope(shield=True):
                    await self.attach(uuid)

        return MigControl(self._known.environment, self._lingering, look_again=look_again, let_go=let_go)

    async def holders(self, uuid: str) -> tuple[int, ...]:
        """Host pids of other processes that have the card's device node open, as far as we may see them.

        Of a simulated card there are none, for it has no device node. Raises Refusal when there is no such GPU.
        """
        card = self._known.fleet.card_of(uuid)
        if card is None:
            raise self._unknown(uuid)
        settings, minor = self._known.settings, self._known.fleet.records[card.uuid].identity.minor
        if minor is None or (self._known.fleet.simulated and not settings.host_root):
            await trio.lowlevel.checkpoint()
            return ()
        return await trio.to_thread.run_sync(partial(holders_of, minor, root=settings.host_root_path))

    def reload(self, settings: Settings) -> None:
        """Use other settings from the next round on, and read the site's catalogue anew.

        Raises CatalogueError or PolicyError when that can't be used; then nothing changes.
        """
        catalogue, xid_policy = _load_catalogue(settings), load_policy(settings)
        self._known.observer.use(catalogue)
        self._known.health.reload(settings, xid_policy)
        self._known.settings = settings

    async def next_occurrences(self) -> tuple[Occurrence, ...]:
        """What has happened to cards since this was last asked, as soon as there is something. For one consumer.

        Cancelling loses nothing.
        """
        return await self._known.health.occurrences.next()

    def attribute_by(self, owner_of: Callable[[int], str]) -> None:
        """Learn from a function whose program a host pid is, "" when it does not know."""
        self._known.health.owner_of = owner_of

    @property
    def windows(self) -> Windows:
        """By UUID, how busy the processes were in the last window of those GPUs that sample() named."""
        return self._known.windows

    def sample(self, uuids: frozenset[str]) -> None:
        """Look at the samples of these GPUs' processes as often as the driver makes them; of the others with each
        round only, which costs less."""
        self._known.sample(uuids)

    def statistics(self) -> GpuReaderStatistics:
        """What was counted since the start."""
        known = self._known
        return known.counters.copy(
            lingering=self._lingering.count,
            health=known.health.statistics(),
            nameplate_bytes=known.observer.nameplates(known.fleet),
            stands_by=self._spare.ready,
        )

    # ---- the life of readers ----

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        async with trio.open_nursery() as nursery:
            while True:
                rounds = self._known.counters.rounds
                turn = Turn()
                nursery.start_soon(self._one_reader, turn)
                await turn.over.wait()
                if self._known.counters.rounds > rounds:
                    pause = FIRST_PAUSE_SECONDS
                self._known.fleet.on_reader_down()
                if turn.finding is None:
                    continue  # renewed on purpose, or handed over: the next one starts at once
                if turn.finding.code in _READER_FAILED:
                    log.warning("the gpu-reader failed", code=turn.finding.code.value, message=turn.finding.message)
                self._trouble = turn.finding
                self._known.counters.failures += 1
                self._publish()
                with trio.CancelScope() as self._pause_scope:
                    await trio.sleep(pause)
                pause = min(pause * 2, MOST_PAUSE_SECONDS)

    async def _watch_host(self) -> None:
        """Look at the kernel's log and the bus whether or not a reader runs: a driver that hangs hides nothing."""
        while True:
            await trio.sleep(self._known.settings.reading_interval_seconds)
            known = self._known
            if known.health.look(known.fleet, now=time.monotonic(), wall_time=time.time()):
                self._publish()

    def _on_spare_events(self, done: wire.EventsDone, reader: str) -> None:
        known = self._known
        known.health.on_events(done, known.fleet, reader=reader, now=time.monotonic(), wall_time=time.time())

    async def _one_reader(self, turn: Turn) -> None:
        """Run one reader until it fails or is to be renewed; the turn says what went wrong, if anything."""
        scope = trio.CancelScope()
        ended = self._readers[scope] = trio.Event()
        try:
            with scope:
                await self._read_with(turn)
        except AnsweredLateError:
            pass
        except UnusableError as error:
            self._spare.drop()
            turn.finding = error.finding
        except ReaderHungError as error:
            self._known.counters.hangs += 1
            turn.finding = Finding(
                HealthCode.READER_HUNG,
                f"the driver did not answer ({error}); the reader was ended and is started again",
            )
        except ReaderGoneError as error:
            turn.finding = Finding(HealthCode.READER_RESTARTING, f"the reader failed ({error}); it is started again")
        except OSError as error:
            turn.finding = Finding(HealthCode.NVML_FAILED, f"the reader can't be started: {error.strerror or error}")
        finally:
            del self._readers[scope]
            ended.set()
            turn.over.set()

    async def _read_with(self, turn: Turn) -> None:
        counters = self._known.counters
        prepared = await self._spare.take()
        taken = prepared.process if prepared is not None else None
        async with open_reader_process(self._known.environment, self._lingering, taken=taken) as process:
            counters.starts += 1
            rounds = counters.rounds
            pid = counters.child_pid = process.process.pid

            def good_round() -> None:
                self._good_round()
                if counters.rounds >= rounds + SPARE_ROUNDS:
                    self._spare.prepare()

            session = Session(
                self._known,
                process,
                publish=good_round,
                hand_over=turn.over.set,
                stands_by=lambda: self._spare.ready,
                renew=self._change.begin,
                prepared=prepared,
            )
            try:
                await session.run()
                self._spare.drop()  # the driver is another one, so nobody may go on with how it was
            finally:
                if counters.child_pid == pid:
                    counters.child_pid = None

    def _end_readers(self) -> None:
        """The next one starts at once: the one that stands by, if there is one."""
        for scope in self._readers:
            scope.cancel()
        self._pause_scope.cancel()

    def _renew(self) -> None:
        """Start NVML anew, in a process of its own."""
        self._change.cancel()
        self._spare.drop()
        self._end_readers()

    # ---- what is published ----

    def _good_round(self) -> None:
        if self._trouble and self._trouble.code in _READER_FAILED:
            log.info("the gpu-reader answers again", pid=self._known.counters.child_pid)
        self._trouble = None
        self._publish()

    def _publish(self) -> None:
        self._sequence += 1
        self._inventory = self._observe()
        self._published.set()
        self._published = trio.Event()

    def _observe(self) -> Inventory:
        now, wall_time = time.monotonic(), time.time()
        known = self._known
        use_known = max(LEAST_USE_KNOWN_SECONDS, 3 * known.settings.reading_interval_seconds)
        findings = [self._trouble] if self._trouble else []
        findings += failures.of_holes(known.fleet.holes)
        findings += known.health.node_findings(known.fleet)
        known.health.settle(known.fleet, now=now)
        return Inventory(
            sequence=self._sequence,
            observed_at=now,
            system=system_info(known.opened),
            devices=known.observer.devices(
                known.fleet, known.health, now=now, wall_time=wall_time, use_known_seconds=use_known
            ),
            conditions=known.observer.node_conditions(findings, wall_time=wall_time),
            simulated=known.fleet.simulated,
        )

    def _unknown(self, uuid: str) -> Refusal:
        known = ", ".join(card.uuid for card in self._known.fleet.cards.values()) or "none"
        return Refusal(
            RefusalReason.GPU_NOT_FOUND, f"there is no GPU {uuid} on this node; known are {known}", field="gpu_uuid"
        )
