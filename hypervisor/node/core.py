"""The parts of the daemon that share its state, put together: what they read and what is asked of them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

import hypervisor
from hypervisor.allocations import Allocations
from hypervisor.config import Settings, SettingsError, changed, reloaded
from hypervisor.gpu import GpuReader
from hypervisor.gpu.compute_mode import ComputeModeTool
from hypervisor.gpu.memory_limits import has_memory_limits
from hypervisor.http import HttpServer, MetricsPage, Routes, Unready
from hypervisor.metrics import Exposition, MetricsView
from hypervisor.model import Allocation, Diagnosis, EventType, IsolationMode, NodeSnapshot
from hypervisor.node import logs, simulated
from hypervisor.node.changes import node_reference
from hypervisor.node.commands import Commands
from hypervisor.node.conditions import blocking
from hypervisor.node.control import Control
from hypervisor.node.declarations import Declarations
from hypervisor.node.freezing import Freezing
from hypervisor.node.identity import Start
from hypervisor.node.inspecting import Inspecting
from hypervisor.node.journal import Journal
from hypervisor.node.kubernetes_view import HasStatistics
from hypervisor.node.live import Live
from hypervisor.node.memory_bounds import MemoryBounds
from hypervisor.node.notify import Notifier
from hypervisor.node.occurrences import Occurrences
from hypervisor.node.partitioning import Partitioning, wishes_of
from hypervisor.node.publisher import Publisher
from hypervisor.node.reporter import Reporter
from hypervisor.node.revisions import Revisions
from hypervisor.node.sampling import SampledSteps
from hypervisor.node.state import NodeState, Parts
from hypervisor.node.workers import NodeWorkers
from hypervisor.rpc.right_of_way import RightOfWay
from hypervisor.workers import Supervisor, WorkerSettings, open_supervisor
from hypervisor.workers.cgroup import MemoryControl
from hypervisor.workers.checkpoint import Freezer
from hypervisor.workers.mps import MpsCards, MpsSettings
from hypervisor.workers.placing import cgroup_for

if TYPE_CHECKING:
    from hypervisor.node.kubernetes import KubernetesNode
    from hypervisor.rpc.asyncio_host import AsyncioHost

log = structlog.get_logger("node")
HOUSEKEEPING_SECONDS = 1.0


class NodeCore:
    """State, commands, control and pages of one start of the daemon. For the trio main thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        start: Start,
        reader: GpuReader,
        allocations: Allocations,
        journal: Journal,
        revisions: Revisions,
        machine: Path | None,
    ) -> None:
        self._start = start
        self._reader = reader
        self._allocations = allocations
        self._journal = journal
        self._mended = tuple(told for told in (start.mended, revisions.mended) if told)
        self._live = Live(
            settings,
            reader=reader,
            allocations=allocations,
            journal=journal,
            revisions=revisions,
            mended=self._mended,
        )
        self.state = NodeState(
            identity=start.identity,
            version=hypervisor.__version__,
            started_at=time.time(),
            labels=settings.node_labels,
            revisions=revisions,
            parts=Parts(
                inventory=reader.inventory,
                ratios=self._live.ratios,
                foreign=self._live.foreign,
                allocations=allocations.all,
            ),
            wall_clock=time.time,
        )
        self._workload_environment = simulated.workload_environment(machine) if machine else {}
        self._way = RightOfWay()
        self._publisher = Publisher(self.state, self._live, journal.emit)
        self.partitioning = Partitioning(
            reader,
            state_directory=settings.state_path,
            boot_id=start.identity.boot_id,
            wishes=wishes_of(settings.mig_geometry),
            allocations=lambda: allocations.all,
            emit=journal.emit,
        )
        self.commands = Commands(
            grants=allocations,
            cards=self._live,
            publisher=self._publisher,
            emit=journal.emit,
            environment=self._workload_environment,
            worker_grace=lambda: self._live.settings.worker_grace_seconds,
            placing=self.partitioning,
        )
        self.control = Control(
            steps=SampledSteps(allocations, reader),
            inventory=lambda: reader.inventory,
            next_inventory=reader.next_inventory,
            publisher=self._publisher,
            intervals=lambda: self._live.intervals,
            clock=time.monotonic,
            give_way=self._way.give,
        )
        self.occurrences = Occurrences(reader, self.state, journal.emit)
        reader.attribute_by(self.occurrences.owner_of)
        self._exposition = Exposition(self._take_view)
        self.http = HttpServer(Routes(self, self._render_metrics).answer)
        self._feeds: dict[str, HasStatistics] = {
            "state": self.state,
            "commands": self.commands,
            "control": self.control,
            "http": self.http,
            "gpu_reader": reader,
            "allocations": allocations,
            "journal": journal,
            "mig": self.partitioning,
        }

    def add_feed(self, name: str, feed: HasStatistics) -> None:
        """Export the statistics of one more part, as gpuhv_NAME_FIELD."""
        self._feeds[name] = feed

    def report_through(self, reporter: Reporter) -> None:
        """Show in conditions and metrics how reporting to the aggregator fares."""
        self._live.reporter = reporter
        self.add_feed("reporter", reporter)

    def open_kubernetes(self, host: AsyncioHost) -> AbstractAsyncContextManager[KubernetesNode]:
        """The Kubernetes mode of this node, not yet running. Raises StartError."""
        # Imported here: a node without Kubernetes does not pay for it.
        from hypervisor.node.kubernetes import open_kubernetes

        return open_kubernetes(
            self._live.settings,
            host=host,
            allocations=self._allocations,
            commands=self.commands,
            inventory=lambda: self._reader.inventory,
            publish=self._publisher.publish,
            snapshot=self.snapshot,
            emit=self._journal.emit,
            node_name=self._start.identity.name,
            workload_environment=self._workload_environment,
            way=self._way,
        )

    def serve_pods(self, kubernetes: KubernetesNode) -> None:
        """Show in the state, in conditions and metrics what the Kubernetes mode knows."""
        self._live.kubernetes = kubernetes
        self.partitioning.promised = kubernetes.binder.promised
        self.state.subscribe(kubernetes.follow)
        for name, feed in kubernetes.feeds.items():
            self.add_feed(name, feed)

    def keep_declarations(self, directory: Path) -> Declarations:
        """What keeps the allocations that files of a directory declare; to be run."""
        declarations = Declarations(
            directory,
            commands=self.commands,
            allocations=lambda: self._allocations.all,
            workers=lambda: self._live.supervised,
        )
        self._live.declarations = declarations
        self.add_feed("declarations", declarations)
        return declarations

    @asynccontextmanager
    async def open_workers(self) -> AsyncIterator[NodeWorkers]:
        """Supervise workers for as long as the block runs; those of the daemon before are adopted. Raises Refusal."""
        changed: list[Callable[[], None]] = []
        settings = WorkerSettings.of(self._live.settings)
        if settings.memory is not None:
            settings.memory.driver = self._reader.memory_limits()
            settings.memory.driver_has_it = lambda: has_memory_limits(self._reader.inventory.system.driver_version)
        async with open_supervisor(
            settings,
            next_revision=self.state.next_revision,
            emit=self._journal.emit,
            changed=lambda: changed[0]() if changed else None,
        ) as supervisor:
            cards = self._mps_cards(supervisor)
            workers = NodeWorkers(
                supervisor,
                allocations=lambda: self._allocations.all,
                environment=self.commands.environment_of,
                bus_id=self._bus_id,
                effective=lambda allocation: (
                    cards.effective_percent(allocation) if allocation.spec.isolation is IsolationMode.HARD else None
                ),
            )
            changed.append(workers.note_change)
            self._live.workers = self.commands.workers = workers
            self.add_feed("workers", supervisor)
            self._allocations.hard = self.commands.hard = cards
            self._publisher.publish()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cards.run, self._hard_allocations)
                self.commands.freezing = self._freezing()
                nursery.start_soon(self.commands.freezing.run)
                if settings.memory is not None:
                    bounds = self._memory_bounds(settings.memory)
                    self.commands.bounds = bounds
                    nursery.start_soon(
                        bounds.follow,
                        self.state.wait,
                        lambda: self._allocations.all,
                        lambda: self._allocations.usages,
                    )
                nursery.start_soon(supervisor.adopted)
                nursery.start_soon(workers.publish_changes, self._publisher.publish)
                nursery.start_soon(workers.end_orphans, self.state.wait)
                yield workers
                nursery.cancel_scope.cancel()

    def inspect_with(self, examine: Callable[[], Awaitable[Diagnosis]]) -> Inspecting:
        """What runs the doctor's checks from time to time; to be run."""
        inspecting = self._live.inspecting = Inspecting(
            examine,
            self._journal.emit,
            regarding=lambda: node_reference(self.state.snapshot),
            interval=lambda: self._live.settings.doctor_interval_seconds,
            publish=self._publisher.publish,
            path=self._live.settings.state_path / "inspection.json",
        )
        self.add_feed("doctor", inspecting)
        return inspecting

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._live.settings

    def _mps_cards(self, supervisor: Supervisor) -> MpsCards:
        settings, environment = self._live.settings, {**os.environ, **self._workload_environment}

        def sm_count(uuid: str) -> int | None:
            found = (each.identity for each in self._reader.inventory.devices if each.identity.uuid == uuid)
            return next((identity.sm_count for identity in found), None)

        return MpsCards(
            MpsSettings.of(settings),
            supervisor,
            modes=ComputeModeTool(environment) if settings.mps_exclusive else None,
            emit=self._journal.emit,
            environment=self._workload_environment,
            cuda_version=lambda: self._reader.inventory.system.cuda_version,
            sm_count=sm_count,
        )

    def _memory_bounds(self, control: MemoryControl) -> MemoryBounds:
        settings = self._live.settings
        # Those of a launcher's workers are its own; the allocations' cgroups are ours in any case.
        home = cgroup_for(settings.worker_cgroup, settings.state_path)
        return MemoryBounds(control, home=home, bus_id=self._bus_id, emit=self._journal.emit)

    def _freezing(self) -> Freezing:
        return Freezing(
            Freezer({**os.environ, **self._workload_environment}),
            path=self._live.settings.state_path / "frozen.json",
            snapshot=self.snapshot,
            emit=self._journal.emit,
            idle_seconds=lambda: self._live.settings.freeze_idle_seconds,
        )

    def _bus_id(self, uuid: str) -> str:
        found = (each.identity for each in self._reader.inventory.devices if each.identity.uuid == uuid)
        return next((identity.pci_bus_id for identity in found), "")

    def _hard_allocations(self) -> tuple[Allocation, ...]:
        return tuple(each for each in self._allocations.all if each.spec.isolation is IsolationMode.HARD)

    def snapshot(self) -> NodeSnapshot:
        """The current state, for the pages."""
        return self.state.snapshot

    def unready(self) -> tuple[Unready, ...]:
        """Why new workloads can't be granted a share."""
        return tuple(
            Unready(code=reason.code.value, message=reason.message)
            for reason in blocking(self.state.snapshot.conditions)
        )

    def status(self) -> str:
        """One line for people."""
        reasons = self.unready()
        if reasons:
            return f"not ready: {reasons[0].message}"
        snapshot = self.state.snapshot
        return f"{len(snapshot.gpus)} GPUs, {len(snapshot.allocations)} allocations"

    def started(self) -> None:
        """Tell that the daemon serves."""
        self._journal.emit(
            EventType.NORMAL,
            "HypervisorStarted",
            node_reference(self.state.snapshot),
            f"version {hypervisor.__version__}, start {self._start.epoch}, "
            f"{len(self._allocations.all)} allocations adopted",
            epoch=str(self._start.epoch),
        )
        if mended := (*self._mended, *self.partitioning.mended):
            told = "; ".join(mended)
            self._journal.emit(EventType.WARNING, "StateSetAside", node_reference(self.state.snapshot), told)

    def stopping(self) -> None:
        """Tell watchers that the daemon ends."""
        self._live.stopping = True
        self._publisher.publish()

    def reload(self, read: Callable[[], Settings]) -> None:
        """Take what may change from the settings as read anew; keep the old set when they can't be used."""
        old = self._live.settings
        reference = node_reference(self.state.snapshot)
        try:
            wanted = read()
            new, pending = reloaded(old, wanted)
            self._reader.reload(new)  # first, for it may refuse the site's catalogue
        except SettingsError as error:
            log.warning("the old settings are kept", reason=str(error))
            self._journal.emit(
                EventType.WARNING, "SettingsRejected", reference, f"{error}; the settings from before are kept"
            )
            return
        taken = changed(old, new)
        self._live.settings = new
        self._allocations.reload(new)
        self._journal.resize(new.journal_events)
        logs.set_up(new.log_level)
        self._publisher.publish()
        log.info("settings were read again", changed=taken, need_restart=pending)
        wait = f"; {', '.join(pending)} take a restart" if pending else ""
        self._journal.emit(
            EventType.NORMAL, "SettingsReloaded", reference, f"changed: {', '.join(taken) or 'nothing'}{wait}"
        )

    async def housekeeping(self, notifier: Notifier) -> None:
        """For ever: bring to disk what the journal holds back, and keep the status line. Cancel-safe."""
        while True:
            self._journal.step()
            notifier.status(self.status())
            await trio.sleep(HOUSEKEEPING_SECONDS)

    async def _render_metrics(self, accept: str, accept_encoding: str) -> MetricsPage:
        page = await self._exposition.render(accept, accept_encoding)
        return MetricsPage(content_type=page.content_type, encoding=page.encoding, body=page.body)

    def _take_view(self) -> MetricsView:
        statistics: Mapping[str, object] = {name: feed.statistics() for name, feed in self._feeds.items()}
        return MetricsView(
            snapshot=self.state.snapshot,
            wall_time=time.time(),
            monotonic_time=time.monotonic(),
            statistics=statistics,
            refusals=self.commands.refusals,
        )
