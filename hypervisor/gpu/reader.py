"""The daemon's side: keeps a gpu-reader running, asks it round after round, publishes inventories."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from hypervisor.config import Settings
from hypervisor.gpu import failures, wire
from hypervisor.gpu.catalogue import Catalogue
from hypervisor.gpu.conditions import Finding
from hypervisor.gpu.failures import UnusableError
from hypervisor.gpu.fleet import SURVEY_SECONDS, Fleet, slot_of
from hypervisor.gpu.observe import Observer
from hypervisor.gpu.pipe import (
    LingeringProcesses,
    ReaderGoneError,
    ReaderHungError,
    ReaderProcess,
    open_reader_process,
)
from hypervisor.gpu.statistics import Counters, GpuReaderStatistics
from hypervisor.model.health import HealthCode
from hypervisor.model.inventory import Inventory
from hypervisor.model.refusal import Refusal, RefusalReason
from hypervisor.model.snapshot import SystemInfo

__all__ = ["GpuReader", "GpuReaderStatistics", "open_gpu_reader"]

Expected = TypeVar("Expected", bound=wire.Reply)

FIRST_PAUSE_SECONDS = 0.2
MOST_PAUSE_SECONDS = 10.0
# Opening a GPU that sleeps takes the driver seconds; a reading does not.
START_PATIENCE = 3
# While a GPU is lost, NVML is started anew from time to time: only then does it see that a reset brought it back.
FIRST_RENEWAL_SECONDS = 30.0
MOST_RENEWAL_SECONDS = 600.0
LEAST_USE_KNOWN_SECONDS = 5.0


@asynccontextmanager
async def open_gpu_reader(settings: Settings, *, environment: Mapping[str, str]) -> AsyncIterator[GpuReader]:
    """A GpuReader for the length of the block; its child is killed at the end.

    environment is the whole environment of the child: what finds libnvidia-ml.so.1 (LD_LIBRARY_PATH,
    TF_NVML_LIB_PATH), and the simulated machine where there is one. Returns before the first answer of the driver.
    Cancelling the block ends it within about a second, also when the child hangs in the driver.
    Raises CatalogueError when the site's catalogue can't be used.
    """
    catalogue = _load_catalogue(settings)
    async with trio.open_nursery() as nursery:
        reader = GpuReader(settings, catalogue, dict(environment), LingeringProcesses(nursery))
        nursery.start_soon(reader._run)  # noqa: SLF001 - factory and class are one module
        try:
            yield reader
        finally:
            nursery.cancel_scope.cancel()


def _load_catalogue(settings: Settings) -> Catalogue:
    return Catalogue.load(Path(settings.catalogue) if settings.catalogue else None)


class GpuReader:
    """The GPUs of this node as the driver tells of them. Made by open_gpu_reader; for use in its trio loop."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        environment: Mapping[str, str],
        lingering: LingeringProcesses,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._lingering = lingering
        self._observer = Observer(catalogue)
        self._fleet = Fleet(simulated=bool(settings.simulate) or "SIM_MACHINE" in environment)
        self._counters = Counters()
        self._trouble: Finding | None = Finding(HealthCode.STARTING, "the driver has not answered yet")
        self._system = SystemInfo(
            driver_version="",
            nvml_version="",
            cuda_version="",
            kernel_version=os.uname().release,
            host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        self._session_scope = trio.CancelScope()
        self._pause_scope = trio.CancelScope()
        self._child_ended = trio.Event()
        self._child_ended.set()
        self._renewal_seconds = FIRST_RENEWAL_SECONDS
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
        card = self._fleet.card_of(uuid)
        if card is None:
            raise self._unknown(uuid)
        card.detached = True
        self._renew()
        self._publish()
        await self._child_ended.wait()
        await self._lingering.wait_none()

    async def attach(self, uuid: str) -> None:
        """Read a card again that was detached. Returns at once; the next inventories show it.

        Raises Refusal when there is no such GPU.
        """
        card = self._fleet.card_of(uuid)
        if card is None:
            raise self._unknown(uuid)
        if card.detached:
            self._fleet.reclaim(card)
            # A reset makes old handles worthless; only a new start of NVML sees the card as it is.
            self._renew()
            self._publish()
        await trio.lowlevel.checkpoint()

    def reload(self, settings: Settings) -> None:
        """Use other settings from the next round on, and read the site's catalogue anew.

        Raises CatalogueError when that can't be used; then nothing changes.
        """
        self._observer.use(_load_catalogue(settings))
        self._settings = settings

    def statistics(self) -> GpuReaderStatistics:
        """What was counted since the start."""
        return self._counters.copy(lingering=self._lingering.count)

    # ---- the life of a reader ----

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            rounds = self._counters.rounds
            self._trouble = await self._one_reader() or self._trouble
            if self._trouble is None:
                continue  # renewed on purpose
            self._counters.failures += 1
            self._fleet.on_reader_down()
            self._publish()
            pause = FIRST_PAUSE_SECONDS if self._counters.rounds > rounds else min(pause * 2, MOST_PAUSE_SECONDS)
            with trio.CancelScope() as self._pause_scope:
                await trio.sleep(pause)

    async def _one_reader(self) -> Finding | None:
        """Run one reader until it fails, or until it is to be renewed; what went wrong, if anything."""
        try:
            with trio.CancelScope() as self._session_scope:
                self._child_ended = trio.Event()
                try:
                    async with open_reader_process(self._environment, self._lingering) as process:
                        self._counters.starts += 1
                        self._counters.child_pid = process.process.pid
                        await self._session(process)
                finally:
                    self._counters.child_pid = None
                    self._child_ended.set()
        except UnusableError as error:
            return error.finding
        except ReaderHungError as error:
            self._counters.hangs += 1
            return Finding(
                HealthCode.READER_HUNG,
                f"the driver did not answer ({error}); the reader was ended and is started again",
            )
        except ReaderGoneError as error:
            return Finding(HealthCode.READER_RESTARTING, f"the reader failed ({error}); it is started again")
        except OSError as error:
            return Finding(HealthCode.NVML_FAILED, f"the reader can't be started: {error.strerror or error}")
        return None

    def _renew(self) -> None:
        self._session_scope.cancel()
        self._pause_scope.cancel()

    async def _session(self, process: ReaderProcess) -> None:
        opened = await self._ask(process, wire.Open(), wire.Opened)
        self._use(opened)
        count = opened.count.value
        if not count and not self._fleet.cards:
            raise UnusableError(failures.no_gpus() if count == 0 else failures.uncounted(opened.count.code))
        await self._attach_all(process, self._fleet.plan(count, now=time.monotonic()))
        await self._attach_all(process, self._fleet.unattached(now=time.monotonic()))
        renew_at = time.monotonic() + self._renewal_seconds
        while True:
            begun = time.monotonic()
            await self._round(process)
            if not self._fleet.any_lost():
                self._renewal_seconds = FIRST_RENEWAL_SECONDS
            elif time.monotonic() >= renew_at:
                self._renewal_seconds = min(self._renewal_seconds * 2, MOST_RENEWAL_SECONDS)
                return
            await trio.sleep(max(0.0, begun + self._settings.reading_interval_seconds - time.monotonic()))

    async def _round(self, process: ReaderProcess) -> None:
        begun = time.monotonic()
        await self._attach_all(process, self._fleet.attaches_due(now=begun))
        cards = self._fleet.cards_to_read(now=begun)
        for card in cards:
            reply = await self._ask(process, wire.Read(card.slot), wire.ReadDone)
            now = time.monotonic()
            bounds = {
                uuid: self._observer.memory_bounds(self._fleet.records[uuid]) for uuid in self._fleet.devices_of(card)
            }
            self._fleet.on_read(card, reply, bounds=bounds, now=now, wall_offset=time.time() - now)
            for uuid in self._fleet.devices_of(card):
                self._counters.add_rejections(self._fleet.records[uuid].rejections)
            failures.raise_for_library(reply)
        self._fleet.finish_round([card.slot for card in cards])
        if self._fleet.survey_due_at <= begun:
            await self._survey(process)
        counted = await self._ask(process, wire.Count(), wire.Counted)
        self._counters.add_calls(counted.calls)
        self._counters.rounds += 1
        self._counters.last_round_seconds = time.monotonic() - begun
        self._trouble = None
        self._publish()

    async def _attach_all(self, process: ReaderProcess, requests: list[wire.Attach]) -> None:
        for request in requests:
            reply = await self._ask(process, request, wire.Attached)
            self._fleet.on_attached(request, reply, now=time.monotonic())

    async def _survey(self, process: ReaderProcess) -> None:
        self._fleet.survey_due_at = time.monotonic() + SURVEY_SECONDS
        for card in self._fleet.cards_to_read(now=time.monotonic()):
            self._fleet.on_surveyed(card, await self._ask(process, wire.Survey(card.slot), wire.Surveyed))

    async def _ask(self, process: ReaderProcess, request: wire.Request, expected: type[Expected]) -> Expected:
        patience = START_PATIENCE if isinstance(request, wire.Open | wire.Attach) else 1
        try:
            reply = await process.ask(request, timeout=self._settings.reading_timeout_seconds * patience)
        except (ReaderHungError, ReaderGoneError):
            slot = slot_of(request)
            if slot is not None:
                self._fleet.on_strike(slot, now=time.monotonic())
            raise
        if isinstance(reply, wire.Failed):
            raise UnusableError(failures.finding_of(reply, self._environment))
        if not isinstance(reply, expected):
            raise ReaderGoneError(f"it answered {type(request).__name__} with {type(reply).__name__}")
        return reply

    # ---- what is published ----

    def _use(self, opened: wire.Opened) -> None:
        self._fleet.simulated = opened.simulated
        cuda = opened.cuda_version.value
        self._system = SystemInfo(
            driver_version=opened.driver_version.value or self._system.driver_version,
            nvml_version=opened.nvml_version.value or self._system.nvml_version,
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else self._system.cuda_version,
            kernel_version=self._system.kernel_version,
            host_memory_bytes=self._system.host_memory_bytes,
        )

    def _publish(self) -> None:
        self._sequence += 1
        self._inventory = self._observe()
        self._published.set()
        self._published = trio.Event()

    def _observe(self) -> Inventory:
        now, wall_time = time.monotonic(), time.time()
        use_known = max(LEAST_USE_KNOWN_SECONDS, 3 * self._settings.reading_interval_seconds)
        findings = [self._trouble] if self._trouble else []
        findings += failures.of_holes(self._fleet.holes)
        return Inventory(
            sequence=self._sequence,
            observed_at=now,
            system=self._system,
            devices=self._observer.devices(self._fleet, now=now, wall_time=wall_time, use_known_seconds=use_known),
            conditions=self._observer.node_conditions(findings, wall_time=wall_time),
            simulated=self._fleet.simulated,
        )

    def _unknown(self, uuid: str) -> Refusal:
        known = ", ".join(card.uuid for card in self._fleet.cards.values()) or "none"
        return Refusal(
            RefusalReason.GPU_NOT_FOUND, f"there is no GPU {uuid} on this node; known are {known}", field="gpu_uuid"
        )
