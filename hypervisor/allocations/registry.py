"""The single owner of the set of allocations: grants, changes, releases, and watches over them.

Synchronous, for one task. What must survive is on disk before a method returns (of Pods, what a kill of the daemon must
not lose; see records.py), and a method that fails has changed nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hypervisor.allocations.admission import Rules, admit, admit_change
from hypervisor.allocations.adoption import Ground, adopt, bring_up_to_date, is_reserved
from hypervisor.allocations.contexts import ContextSizes
from hypervisor.allocations.environment import environment
from hypervisor.allocations.foreign import foreign_bytes
from hypervisor.allocations.hardness import HardCards, judged
from hypervisor.allocations.held import Held
from hypervisor.allocations.ledger import Ledger
from hypervisor.allocations.parts import Parts, drained
from hypervisor.allocations.processes import ProcessTable
from hypervisor.allocations.records import RecordStore, StoreError
from hypervisor.allocations.requests import check_repeat, check_spec, described, merged
from hypervisor.allocations.reserving import discard, reserve
from hypervisor.allocations.rounds import Rounds
from hypervisor.allocations.storing import make, put_in_force, remove, storage_failed
from hypervisor.allocations.telling import AllocationsStatistics, Counting, EmitEvent, Tell
from hypervisor.config import Settings
from hypervisor.limits import LimitDirectory, LimitFileError
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    AllocationSpec,
    AllocationUsage,
    AttachedProcess,
    DeviceGrant,
    DeviceRequest,
    EventType,
    Inventory,
    IsolationMode,
    NodeIdentity,
    Refusal,
    RefusalReason,
    Revision,
    Windows,
)

_HELD_BY_OTHERS = frozenset(
    {RefusalReason.INSUFFICIENT_TFLOPS, RefusalReason.INSUFFICIENT_VRAM, RefusalReason.ISOLATION_CONFLICT}
)


class Allocations:
    """All allocations of a node, with their limit files. Built by open()."""

    def __init__(self, ground: Ground, held: dict[str, Held], epoch: int) -> None:
        self._ground = ground
        self._held = held
        self._order: list[Held] | None = None  # by name; None: to be made anew
        self._epoch = epoch
        self._rounds = Rounds(ground)
        self._ledger = Ledger()
        self.hard: HardCards | None = None  # set by whoever keeps MPS servers

    @classmethod
    def open(
        cls,
        *,
        settings: Settings,
        identity: NodeIdentity,
        epoch: int,
        next_revision: Callable[[], Revision],
        emit: EmitEvent,
        table: ProcessTable | None = None,
    ) -> Allocations:
        """Adopt what is on disk, touching nothing that did not change.

        Raises Refusal (STORAGE_FAILED) when the state directory or the base directory can't be used at all; trouble
        with single allocations is a finding of theirs and an event.
        """
        began = time.monotonic()
        ground = Ground(
            settings=settings,
            boot_id=identity.boot_id,
            directory=LimitDirectory(settings.base_path, boot_id=identity.boot_id, node_epoch=epoch),
            store=RecordStore(settings.state_path / "allocations"),
            table=table or ProcessTable(),
            next_revision=next_revision,
            tell=Tell(emit, Counting()),
            contexts=ContextSizes(settings.state_path / "contexts.json"),
        )
        try:
            ground.store.prepare()
            ground.directory.prepare()
            held = adopt(ground)
        except (StoreError, LimitFileError) as error:
            raise storage_failed(error) from error
        ground.tell.count.adoption_seconds = time.monotonic() - began
        return cls(ground, held, epoch)

    @property
    def all(self) -> tuple[Allocation, ...]:
        """All allocations, ordered by allocation_id."""
        return tuple(held.allocation for held in self._ordered())

    @property
    def usages(self) -> tuple[AllocationUsage, ...]:
        """The figures of the last round, in the same order."""
        return tuple(judged(held.current_usage, held.allocation, self.hard) for held in self._ordered())

    def reserve(self, uid: str) -> str:
        """Make limit files under a name, grant-..., empty and not armed, before it is known whose they are; those that
        are there stay. Gives their directory. Raises Refusal."""
        return reserve(self._ground, uid)

    def directory_of(self, uid: str) -> str:
        """Where the limit files of a name lie, or would."""
        return str(self._ground.directory.path(uid))

    def discard_reserved(self, uid: str) -> None:
        """Remove files that were reserved and that nobody was granted. Raises Refusal."""
        if uid not in self._held:
            discard(self._ground, uid)

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names of files that were reserved and that nobody was granted."""
        return tuple(uid for uid in self._ground.directory.uids() if is_reserved(uid) and uid not in self._held)

    def unsynced(self) -> Callable[[], None] | None:
        """What brings the records of Pods through to the disk, for any thread; None when they are there. It raises
        OSError, and is then to be asked for again."""
        return self._ground.store.unsynced()

    def allocate(
        self,
        spec: AllocationSpec,
        inventory: Inventory,
        *,
        dry_run: bool = False,
        reserved: str = "",
        beside: tuple[Allocation, ...] = (),
        placed: tuple[DeviceRequest, ...] = (),
    ) -> tuple[Allocation, bool]:
        """Grant a share, or give the allocation that the same request was granted before (then True). Raises Refusal.

        With dry_run everything is checked and nothing is made; the answer then has no uid and no directory. reserved
        names files to be used that reserve() made. beside: drafts of dry runs that are counted as if they were granted.
        placed: what is admitted in place of the devices of the spec, where somebody has found an instance for each.
        """
        try:
            check_spec(spec)
            held = self._find(spec.allocation_id)
            if held is not None and self._repeats(held, spec):
                return held.allocation, True
            sought = replace(spec, devices=placed) if placed else spec
            grants = self._with_room(lambda: admit(sought, inventory, (*self.all, *beside), self._rules(inventory)))
            if dry_run:
                return self._drafted(spec, grants, inventory), False
            return self._grant(spec, grants, inventory, uid=reserved or str(uuid.uuid4())), False
        except Refusal as refusal:
            if not dry_run:
                self.tell_refused(spec, refusal)
            raise

    def update_limits(
        self,
        allocation_id: str,
        devices: tuple[DeviceRequest, ...],
        inventory: Inventory,
        *,
        expected: Revision | None,
    ) -> Allocation:
        """Change figures by device; what is absent stays as it is. In force when this returns. Raises Refusal."""
        held = self._named(allocation_id)
        before = held.allocation
        if expected is not None and expected != before.revision:
            raise Refusal(
                RefusalReason.REVISION_MISMATCH,
                f"'{allocation_id}' is at revision {before.revision.epoch}/{before.revision.revision}, not at "
                f"{expected.epoch}/{expected.revision}",
                field="expected_revision",
                remedy="read it again and decide anew",
            )
        if before.phase is AllocationPhase.REVOKED:
            raise Refusal(
                RefusalReason.ALLOCATION_NOT_FOUND,
                f"'{allocation_id}' has been released and waits for its last process to end",
                field="allocation_id",
                remedy="allocate anew",
            )
        requests = merged(before, devices)

        def admitted() -> tuple[DeviceGrant, ...]:
            others = [allocation for allocation in self.all if allocation.uid != before.uid]
            return admit_change(before, requests, inventory, others, self._rules(inventory))

        grants = self._with_room(admitted)
        if grants == before.grants and requests == before.spec.devices:
            return before
        after = replace(
            before,
            spec=replace(before.spec, devices=requests),
            grants=grants,
            revision=self._ground.next_revision(),
        )
        put_in_force(self._ground, held, after)
        self._ground.tell.count.limits_changed += 1
        self._tell(
            held,
            EventType.NORMAL,
            "LimitsChanged",
            f"limits of '{allocation_id}' changed from {described(before.grants)} to {described(grants)}",
            before=described(before.grants),
            after=described(grants),
        )
        return after

    def release(self, allocation_id: str) -> tuple[AttachedProcess, ...]:
        """Give an allocation up. Processes that still run keep their last limits and get no new memory; they are the
        answer, and the allocation is gone when they have ended. Raises Refusal."""
        held = self._named(allocation_id)
        self._rounds.attend([held])
        if not held.has_attached(self._ground.table):
            self._remove(held)
            self._ground.tell.count.released += 1
            self._tell(held, EventType.NORMAL, "AllocationReleased", f"'{allocation_id}' was released")
            return ()
        if held.allocation.phase is AllocationPhase.REVOKED:
            return held.processes
        if held.files is not None:
            try:
                held.files.shm.set_revoked(True)
            except LimitFileError as error:
                held.lose_files(error)
        held.enter(AllocationPhase.REVOKED, self._ground.next_revision())
        self._ground.tell.count.released += 1
        count = len(held.processes)
        self._tell(
            held,
            EventType.NORMAL,
            "AllocationReleased",
            f"'{allocation_id}' was released; {count} process{'es' if count != 1 else ''} still run under its last "
            "limits and get no new memory",
            remaining=str(count),
        )
        return held.processes

    def environment(self, allocation: Allocation) -> Mapping[str, str]:
        """What a process needs in its environment to run under an allocation."""
        variables = environment(allocation)
        if allocation.spec.isolation is IsolationMode.HARD and self.hard is not None:
            variables = {**variables, **self.hard.environment(allocation)}
        return variables

    def step(self, inventory: Inventory, windows: Windows = MappingProxyType({})) -> tuple[AllocationUsage, ...]:
        """One control step at a stretch; see parts()."""
        return drained(self.parts(inventory, windows))

    def parts(self, inventory: Inventory, windows: Windows) -> Parts[tuple[AllocationUsage, ...]]:
        """One control step: a sign of life in every file about each second; once for each inventory, and after a while
        without one, slots of the dead, recounts, overhead and figures; the end of allocations whose owner has gone.

        windows: by GPU UUID the driver's last window, for the GPUs that `sampled` names. Between two parts every other
        method may be called.
        """
        for held in (yield from self._rounds.parts(self._ordered(), inventory, windows)):
            self._end(held)
        return self.usages

    @property
    def sampled(self) -> frozenset[str]:
        """UUIDs of the GPUs whose windows step() has a use for: some process's compute is limited there."""
        return self._rounds.sampled(self._held.values())

    @property
    def calm(self) -> bool:
        """Whether no process's compute is limited and no GPU's time is shared out: then a step for each inventory is
        enough. Who attaches is found by such a step."""
        return not self.sampled and not self._rounds.shares_out

    def reload(self, settings: Settings) -> None:
        """Take over changed settings; limit files that say something else by them are brought up to date."""
        self._ground = replace(self._ground, settings=settings)
        self._rounds = self._rounds.with_ground(self._ground)
        for held in self._held.values():
            if held.files is not None:
                try:
                    bring_up_to_date(self._ground, held.allocation, held.files)
                except LimitFileError as error:
                    held.lose_files(error)

    def close(self) -> None:
        """Let go of all files, which stay as they are and stay in force."""
        for held in self._held.values():
            if held.files is not None:
                held.files.close()
        self._held.clear()
        self._order = None

    def statistics(self) -> AllocationsStatistics:
        """Counts for metrics."""
        return self._ground.tell.count.statistics(
            phases=[held.allocation.phase for held in self._held.values()],
            tampered=sum(bool(held.finding) for held in self._held.values()),
        )

    def _ordered(self) -> list[Held]:
        if self._order is None:
            self._order = sorted(
                self._held.values(), key=lambda held: (held.allocation.spec.allocation_id, held.allocation.uid)
            )
        return self._order

    def _find(self, allocation_id: str) -> Held | None:
        """By its name; one in force before one that is being given up."""
        found = [held for held in self._held.values() if held.allocation.spec.allocation_id == allocation_id]
        return min(found, key=lambda held: held.allocation.phase is not AllocationPhase.ACTIVE, default=None)

    def _named(self, allocation_id: str) -> Held:
        held = self._find(allocation_id)
        if held is None:
            raise Refusal(
                RefusalReason.ALLOCATION_NOT_FOUND,
                f"there is no allocation {allocation_id[:96]!r}",
                field="allocation_id",
                remedy="`hypervisor get pods` lists them",
            )
        return held

    def foreign_bytes(self, inventory: Inventory) -> Mapping[str, int | None]:
        """By GPU UUID, the VRAM that processes of no allocation hold, as admission counts it; None where that can't
        be said."""
        ours, reserved = self._rounds.attributed(self._ordered(), inventory)
        return foreign_bytes(inventory, ours, reserved)

    def _rules(self, inventory: Inventory) -> Rules:
        settings = self._ground.settings
        self._ground.contexts.see(inventory)
        return Rules(
            tflops_ratio=settings.tflops_ratio,
            vram_ratio=settings.vram_ratio,
            context_bytes=self._ground.context_bytes,
            foreign_bytes=self.foreign_bytes(inventory),
            promised=self._ledger.promised_on,
            hard=self.hard,
        )

    def _repeats(self, held: Held, spec: AllocationSpec) -> bool:
        """Whether spec repeats what was granted; False when that has ended meanwhile. Raises Refusal."""
        try:
            check_repeat(held.allocation, spec)
        except Refusal:
            if not self._let_go_of_ended([held]):
                raise
            return False
        return True

    def _let_go_of_ended(self, some_held: list[Held]) -> bool:
        """End what has ended since the last round; True when anything had."""
        before = len(self._held)
        for held in self._rounds.ended_since(some_held):
            self._end(held)
        return len(self._held) < before

    def _with_room(self, admitted: Callable[[], tuple[DeviceGrant, ...]]) -> tuple[DeviceGrant, ...]:
        """What is admitted; before what others hold is a reason to refuse, those whose owner has gone are let go."""
        try:
            return admitted()
        except Refusal as refusal:
            if refusal.reason not in _HELD_BY_OTHERS:
                raise
            if not self._let_go_of_ended(self._ordered()):
                raise
        return admitted()

    def _drafted(self, spec: AllocationSpec, grants: tuple[DeviceGrant, ...], inventory: Inventory) -> Allocation:
        return Allocation(
            spec=spec,
            uid="",
            phase=AllocationPhase.ACTIVE,
            grants=grants,
            created_at=time.time(),
            revision=Revision(self._epoch, 0),
            directory="",
            simulated=inventory.simulated,
        )

    def _grant(
        self, spec: AllocationSpec, grants: tuple[DeviceGrant, ...], inventory: Inventory, *, uid: str
    ) -> Allocation:
        allocation = replace(
            self._drafted(spec, grants, inventory),
            uid=uid,
            directory=str(self._ground.directory.path(uid)),
            revision=self._ground.next_revision(),
        )
        held = make(self._ground, allocation)
        self._held[uid] = held
        self._order = None
        self._ground.tell.count.granted += 1
        self._tell(
            held,
            EventType.NORMAL,
            "AllocationGranted",
            f"'{spec.allocation_id}' was granted {described(grants)}, {spec.isolation.value} isolation",
            granted=described(grants),
        )
        return allocation

    def _remove(self, held: Held) -> None:
        remove(self._ground, held)
        held.gone = True
        self._held.pop(held.allocation.uid, None)
        self._order = None

    def _end(self, held: Held) -> None:
        """The owner has gone, and so has the last process."""
        try:
            self._remove(held)
        except Refusal:
            return  # the store can't be written; the next round tries again
        self._ground.tell.count.ended += 1
        self._tell(
            held,
            EventType.NORMAL,
            "AllocationEnded",
            f"'{held.allocation.spec.allocation_id}' has ended: its owner and its processes are gone",
        )

    def _tell(self, held: Held, kind: EventType, reason: str, message: str, **fields: str) -> None:
        self._ground.tell.event(held.reference, kind, reason, message, **fields)

    def tell_refused(self, spec: AllocationSpec, refusal: Refusal) -> None:
        """Count a refusal, and tell it as an event."""
        self._ground.tell.refused(spec, refusal)
