"""One allocation that the daemon holds: what was granted, its open files, and what is remembered between rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypervisor.allocations.counters import CounterMemory
from hypervisor.allocations.environment import limit_file_variable
from hypervisor.allocations.overhead import Overhead
from hypervisor.allocations.processes import ProcessTable
from hypervisor.limits import LimitFileError, LimitFiles, Message, MessageCode, UsageSurvey
from hypervisor.limits.aligned import Aligned
from hypervisor.limits.control import Correction
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationUsage,
    AttachedProcess,
    Enforcement,
    LearnedCost,
    ObjectKind,
    ObjectReference,
    Revision,
)

if TYPE_CHECKING:
    from hypervisor.allocations.resting import Stillness
    from hypervisor.allocations.witness import Witness

# A process that has just begun to hold memory comes into the driver's list with the next reading.
_UNLISTED_READINGS = 2


@dataclass(slots=True)
class DeviceMemory:
    """What is remembered of one device of an allocation between rounds."""

    overhead_by_pid: dict[int, Overhead] = field(default_factory=dict)
    accounted_by_pid: dict[int, int] = field(default_factory=dict)  # at the survey before, like the next three
    total_word: int | None = None
    own_changes: list[float] = field(default_factory=list)  # of the total, by us: times of the surveys before each
    contexts_by_slot: dict[int, int | None] = field(default_factory=dict)  # words, at the survey before too
    surveyed_at: float = 0.0
    overhead_bytes: int | None = None  # as in the file; None before it was read
    busy_ns: int | None = None  # as in the file; None before it was read
    busy_at: float | None = None
    over: bool = False
    lowered: bool = False  # the limit was taken below what was held, and that has not been given back yet
    beyond_rounds: int = 0
    unlisted_readings: int = 0  # in a row at which the driver did not list a process that accounts memory
    correction: Correction | None = None  # None before it was read from the file
    corrected_at: float = float("-inf")  # when the correction was written last
    lent: float = 0.0  # share on top of the limit, as of the last step
    contracted: float | None = None  # share in force instead of the limit, likewise
    charged_ns: int | None = None  # at the last step that asked
    active_at: float | None = None  # when a charge was last seen
    witness: Witness | None = None  # what GPM last said of it alone, where the driver tells nothing of processes
    a_launch_ns: float = 0.0  # GPU time that a launch was charged in the mean, as of the last round
    attributed: bool = False  # the driver tells how busy each process is, as of the last round
    aligned: Aligned | None = None  # None before others' turns were read from the file
    window_at: float | None = None  # end of the last window that was taken into account; None: there are none
    recent_busy: tuple[tuple[float, float], ...] = ()  # (time, busy ratio) of the last readings
    costs: tuple[LearnedCost, ...] = ()
    costs_at: float = float("-inf")

    @property
    def is_unlisted(self) -> bool:
        """Whether the driver leaves out of its list who is there."""
        return self.unlisted_readings >= _UNLISTED_READINGS


@dataclass(slots=True)
class Held:
    """An allocation with its files. Only its Allocations changes it.

    files is None when the limit file can't be used; finding says what is wrong with either file, "" for nothing.
    """

    allocation: Allocation
    files: LimitFiles | None
    counters: CounterMemory
    devices: tuple[DeviceMemory, ...]
    finding: str = ""
    gone: bool = False  # removed, with its files; who meets it in a list from before leaves it alone
    limits_lost: bool = False  # the finding is about the limit file, not about the accounts
    survey: UsageSurvey | None = None
    processes: tuple[AttachedProcess, ...] = ()
    unknown_slots: int = 0
    unattached: frozenset[int] = frozenset()  # of the owner, on a GPU, without a slot
    bypassing: frozenset[int] = frozenset()  # the same at two rounds
    context_bytes: list[int | None] = field(default_factory=list)  # by device, as brought into the file; see adoption
    usage: AllocationUsage | None = None
    stillness: Stillness | None = None  # None: something moves
    read_sequence: int = -1  # of the inventory that the figures are from
    heard: dict[MessageCode, int] = field(default_factory=dict)  # messages that have had no event yet
    last_heard: dict[MessageCode, Message] = field(default_factory=dict)
    heard_at: dict[MessageCode, float] = field(default_factory=dict)  # when there was an event
    reported: set[str] = field(default_factory=set)  # findings that have had their event

    @classmethod
    def of(cls, allocation: Allocation, files: LimitFiles | None, *, fresh: bool, finding: str = "") -> Held:
        """An allocation that was granted just now (fresh), or by an earlier daemon."""
        count = len(allocation.grants)
        if files is not None and files.usage is not None and not fresh:
            files.usage.skip_messages()
        return cls(
            allocation,
            files,
            CounterMemory(count, fresh=fresh),
            tuple(DeviceMemory() for _ in range(count)),
            finding=finding,
            limits_lost=files is None,
        )

    @property
    def reference(self) -> ObjectReference:
        """The allocation, for events."""
        return ObjectReference(
            kind=ObjectKind.ALLOCATION,
            name=self.allocation.spec.allocation_id,
            uid=self.allocation.uid,
            namespace=self.allocation.spec.owner.namespace,
        )

    @property
    def environment_entry(self) -> bytes:
        """What the environment of a process of this allocation holds."""
        return "=".join(limit_file_variable(self.allocation.directory)).encode()

    @property
    def current_usage(self) -> AllocationUsage:
        """The figures of the last round; none before the first."""
        return self.usage or AllocationUsage(
            allocation_id=self.allocation.spec.allocation_id,
            devices=(),
            processes=(),
            enforcement=Enforcement.NONE,
            tampering=self.finding,
        )

    def enter(self, phase: AllocationPhase, revision: Revision) -> None:
        """Change the phase. It is not kept on disk: the limit file and the owner's life tell it anew."""
        self.allocation = replace(self.allocation, phase=phase, revision=revision)

    def has_attached(self, table: ProcessTable) -> bool:
        """May a process that has attached still live? True also where that can't be said."""
        if any(process.host_pid is not None for process in self.processes):
            return True
        unknown = bool(self.processes or self.unknown_slots)
        usage = self.files.usage if self.files is not None else None
        if usage is None or not (unknown or self.finding):
            return unknown
        # Slots can claim what nobody can look up, and those of a file that was tampered with say nothing; but who has
        # it mapped is known to the kernel.
        return bool(table.mapping([usage.inode])) or (unknown and not table.sees_everything)

    def has_processes(self, table: ProcessTable) -> bool:
        """The same, and processes that were started with these limits in their environment, attached or not yet."""
        return self.has_attached(table) or bool(table.with_environment([self.environment_entry]))

    def lose_files(self, error: LimitFileError) -> None:
        """Write no more into a limit file that has lost its pages; what is enforced stays with the processes."""
        self.limits_lost = self.limits_lost or not self.finding
        self.finding = self.finding or error.message
