"""The settings in force, and the daemon's own view of itself, read by the publisher."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.gpu import GpuReader
from hypervisor.model import Allocation, Condition, HealthCode, Inventory, Worker
from hypervisor.node.control import Intervals
from hypervisor.node.declarations import Declarations
from hypervisor.node.derive import Ratios
from hypervisor.node.failure import FULL
from hypervisor.node.inspecting import Inspecting
from hypervisor.node.journal import Journal
from hypervisor.node.kubernetes_view import KubernetesView
from hypervisor.node.publisher import failed
from hypervisor.node.reporter import Reporter
from hypervisor.node.revisions import Revisions
from hypervisor.node.workers import NodeWorkers


class Live:
    """Where the parts of a snapshot come from; settings changes with a reload, stopping with the end."""

    def __init__(
        self,
        settings: Settings,
        *,
        reader: GpuReader,
        allocations: Allocations,
        journal: Journal,
        revisions: Revisions,
        mended: tuple[str, ...] = (),
    ) -> None:
        self.settings = settings
        self.stopping = False
        self._reader = reader
        self._allocations = allocations
        self._journal = journal
        self._revisions = revisions
        self._mended = mended
        self.reporter: Reporter | None = None
        self.kubernetes: KubernetesView | None = None
        self.declarations: Declarations | None = None
        self.workers: NodeWorkers | None = None
        self.inspecting: Inspecting | None = None

    @property
    def inventory(self) -> Inventory:
        """What the driver said last, with what Kubernetes knows to be in other hands."""
        inventory = self._reader.inventory
        return inventory if self.kubernetes is None else self.kubernetes.overlaid(inventory)

    @property
    def used_by(self) -> Mapping[str, str]:
        """By GPU UUID, who else has a card, where Kubernetes knows."""
        return {} if self.kubernetes is None else self.kubernetes.used_by

    @property
    def supervised(self) -> tuple[Worker, ...]:
        """All workers."""
        return () if self.workers is None else self.workers.workers

    async def detach(self, uuid: str) -> None:
        """Let go of a card. Raises Refusal."""
        await self._reader.detach(uuid)

    async def attach(self, uuid: str) -> None:
        """Take a card back. Raises Refusal."""
        await self._reader.attach(uuid)

    async def holders(self, uuid: str) -> tuple[int, ...]:
        """Host pids that have a card open."""
        return await self._reader.holders(uuid)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """All grants."""
        return self._allocations.all

    @property
    def foreign(self) -> Mapping[str, int | None]:
        """By GPU UUID, the bytes that processes of no allocation hold."""
        return self._allocations.foreign_bytes(self._reader.inventory)

    @property
    def ratios(self) -> Ratios:
        """How far requests may sum up."""
        return Ratios(tflops=self.settings.tflops_ratio, vram=self.settings.vram_ratio)

    @property
    def intervals(self) -> Intervals:
        """Of the control loop."""
        return Intervals(control=self.settings.control_interval_seconds, reading=self.settings.reading_interval_seconds)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is wrong with the daemon itself."""
        found = []
        if self.stopping:
            found.append(failed(HealthCode.STOPPING, "the daemon is stopping"))
        if self._revisions.failure is not None:
            full = self._revisions.failure.errno in FULL
            found.append(
                failed(
                    HealthCode.DISK_FULL if full else HealthCode.STORE_FAILED,
                    f"the state directory can't be written: {self._revisions.failure.strerror}",
                )
            )
        if self._mended:
            found.append(failed(HealthCode.STATE_DAMAGED, "; ".join(self._mended)))
        if self._journal.failed_reason:
            found.append(failed(HealthCode.JOURNAL_FAILED, self._journal.failed_reason))
        if self.reporter is not None and self.reporter.failing:
            found.append(failed(HealthCode.AGGREGATOR_UNREACHABLE, self.reporter.failing))
        if self.declarations is not None and self.declarations.failing:
            found.append(failed(HealthCode.DECLARATION_REJECTED, self.declarations.failing))
        if self.inspecting is not None and self.inspecting.finding:
            found.append(failed(HealthCode.DOCTOR_FINDINGS, self.inspecting.finding))
        if self.kubernetes is not None:
            found.extend(self.kubernetes.conditions)
        return tuple(found)
