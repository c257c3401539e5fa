"""The rounds over all allocations: read every usage file, then judge who lives, then measure.

Reading and judging are done at a stretch, for what was read must not age; measuring takes the most time, is each
allocation's own affair, and is done one by one, with others in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from hypervisor.allocations.adoption import Ground, spread_contexts
from hypervisor.allocations.attendance import settle, survey
from hypervisor.allocations.bypassing import find_bypassing, owner_pids
from hypervisor.allocations.covering import tell_covered
from hypervisor.allocations.foreign import foreign_busy, unattributed_pids
from hypervisor.allocations.hearing import hear
from hypervisor.allocations.held import Held
from hypervisor.allocations.measuring import measure, observed_in
from hypervisor.allocations.parts import Parts
from hypervisor.allocations.resting import Moment
from hypervisor.allocations.steering import Sharing, follow, is_steered, share_out
from hypervisor.limits import LimitFileError, new_survey_buffer
from hypervisor.model import AllocationPhase, Inventory, OwnerKind, Windows

# Without a new reading of the GPUs, which comes about once a second, a round comes after this.
ROUND_SECONDS = 1.5
# Between two signs of life in each file: nothing is decided by them within seconds.
BEAT_SECONDS = 0.5
# A process that ended a moment ago may still be in the driver's list of the last reading.
REMEMBERED_SECONDS = 10.0


class Rounds:
    """What is remembered between rounds, beside what each allocation remembers itself."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._buffer = new_survey_buffer()
        self._sequence = -1
        self._round_at = float("-inf")
        self._beat_at = float("-inf")
        self._sharing = Sharing()
        self._attended_at = float("-inf")  # when all were last looked for
        self._foreign_busy: dict[str, float] = {}  # by GPU UUID, as of the last round
        self._recent: dict[int, float] = {}  # host pids of our allocations, and when they were last seen

    def with_ground(self, ground: Ground) -> Rounds:
        """The same memory under other settings."""
        self._ground = ground
        return self

    def parts(self, all_held: list[Held], inventory: Inventory, windows: Windows) -> Parts[list[Held]]:
        """Shares always, signs of life and a round when it is time. Gives the allocations that have ended. Between two
        parts grants may be made, changed and ended."""
        began = time.monotonic()
        if began - self._beat_at >= BEAT_SECONDS:
            self._beat_at = began
            self._beat(all_held)
        share_out(self._sharing.of(all_held), self._foreign_busy)
        follow(all_held, windows, self._ground.tell)
        if inventory.sequence == self._sequence and began - self._round_at < ROUND_SECONDS:
            return []
        self._sequence, self._round_at = inventory.sequence, began
        self._ground.contexts.see(inventory)
        moment = Moment(accounted_at=time.monotonic(), driver_at=inventory.observed_at)
        self._attend_all(all_held)
        find_bypassing(all_held, inventory, self._recent, self._ground.table, self._ground.tell)
        tell_covered(all_held, self._ground.table, self._ground.tell)
        self._foreign_busy = foreign_busy(inventory, set(self._recent))
        burst_seconds = self._ground.settings.burst_milliseconds / 1000
        observed = observed_in(inventory)
        for held in all_held:
            yield
            if not held.gone:
                measure(
                    held,
                    inventory,
                    observed,
                    self._ground.tell,
                    self._ground.contexts,
                    moment=moment,
                    burst_seconds=burst_seconds,
                )
                hear(held, self._ground.tell)
        yield
        self._spread_contexts(all_held)
        ended = [held for held in all_held if not held.gone and self._has_ended(held)]
        count = self._ground.tell.count
        count.rounds += 1
        count.last_round_seconds = time.monotonic() - began
        return ended

    def _spread_contexts(self, all_held: list[Held]) -> None:
        """What was learned of contexts holds for all that come."""
        for held in all_held:
            if held.files is not None and not held.finding and not held.gone:
                try:
                    spread_contexts(self._ground, held)
                except LimitFileError as error:
                    held.lose_files(error)

    @staticmethod
    def sampled(all_held: Iterable[Held]) -> frozenset[str]:
        """UUIDs of the GPUs whose windows are of use."""
        return frozenset(grant.gpu_uuid for held in all_held if is_steered(held) for grant in held.allocation.grants)

    @property
    def shares_out(self) -> bool:
        """Whether, as of the last step, some GPU's time is shared out anew with each step."""
        return self._sharing.any

    def ended_since(self, all_held: list[Held]) -> list[Held]:
        """Those that have ended since the last round. Only whom something makes likely to have ended is looked at."""
        likely = [held for held in all_held if not self._is_kept(held)]
        if not likely:
            return []
        self.attend(likely)
        return [held for held in likely if self._has_ended(held)]

    def attend(self, some_held: list[Held]) -> None:
        """Who is attached now? All files are read before the first process is looked for: see ProcessTable."""
        for held in some_held:
            survey(held, self._buffer)
        self._ground.table.forget()
        now = time.monotonic()
        for held in some_held:
            settle(held, self._ground.table, self._ground.tell)
            self._recent |= {process.host_pid: now for process in held.processes if process.host_pid is not None}
        self._recent = {pid: at for pid, at in self._recent.items() if now - at < REMEMBERED_SECONDS}

    def _attend_all(self, all_held: list[Held]) -> None:
        self._attended_at = time.monotonic()
        self.attend(all_held)

    def attributed(self, all_held: list[Held], inventory: Inventory) -> tuple[dict[str, set[int]], dict[str, int]]:
        """By GPU UUID, the host pids of our allocations and the bytes that they account."""
        # Whom the driver lists has attached before, so who is looked for after its reading is seen.
        if self._attended_at <= inventory.observed_at and unattributed_pids(inventory, self._recent):
            self._attend_all(all_held)
        strangers = unattributed_pids(inventory, self._recent)
        owners = owner_pids(all_held)
        ours = set(self._recent) | {
            pid for pid in strangers if owners and self._ground.table.descends_from(pid, owners) is not None
        }
        pids: dict[str, set[int]] = {}
        reserved: dict[str, int] = {}
        for held in all_held:
            for place, grant in enumerate(held.allocation.grants):
                pids.setdefault(grant.gpu_uuid, set()).update(ours)
                reserved[grant.gpu_uuid] = reserved.get(grant.gpu_uuid, 0) + sum(
                    process.reserved_bytes[place] for process in held.processes if process.reserved_bytes
                )
        return pids, reserved

    def _beat(self, all_held: Iterable[Held]) -> None:
        now_ns = time.monotonic_ns()
        for held in all_held:
            if held.files is not None:
                try:
                    held.files.shm.beat(now_ns)
                except LimitFileError as error:
                    held.lose_files(error)

    def _has_ended(self, held: Held) -> bool:
        """An allocation ends when it was given up, or lost its owner, and its last process is gone."""
        phase = held.allocation.phase
        if self._is_kept(held):
            return False
        if phase is AllocationPhase.ACTIVE:
            if held.has_processes(self._ground.table):
                held.enter(AllocationPhase.ENDING, self._ground.next_revision())
                return False
            return True
        if phase is AllocationPhase.REVOKED:
            # Who has not attached yet is refused everything anyway.
            return not held.has_attached(self._ground.table)
        return not held.has_processes(self._ground.table)

    def _is_kept(self, held: Held) -> bool:
        """In force for a name or a Pod, or for a process that lives."""
        owner = held.allocation.spec.owner
        if held.allocation.phase is not AllocationPhase.ACTIVE:
            return False
        if owner.kind is not OwnerKind.PROCESS:
            return True
        same_boot = not owner.boot_id or owner.boot_id == self._ground.boot_id
        return same_boot and self._ground.table.alive(owner.pid, owner.start_time_ticks)
