"""The daemon's hand on the compute limits: corrects learned costs with each reading, lends idle time with each step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_not

from hypervisor.allocations.held import DeviceMemory, Held
from hypervisor.allocations.telling import Tell
from hypervisor.allocations.witness import Witness, is_alone
from hypervisor.limits import LimitFileError, LimitFiles
from hypervisor.limits.aligned import Aligned
from hypervisor.limits.control import Correction, Reading
from hypervisor.limits.lending import EXPIRY_MS, Demand, contract, lend
from hypervisor.limits.narrowed import Busy, busy_of, off_of
from hypervisor.limits.neighbours import expected_turns, holds_until_ms, neighbours, others_busy
from hypervisor.limits.turns import Turns
from hypervisor.model import Allocation, BusyWindow, ComputePolicy, DeviceWindow, EventType, IsolationMode, Windows
from hypervisor.model.allocation import SHARE_FULL_PPM

# An allocation counts as active for so long after a charge: one of 20 ms at a share of a tenth comes each 200 ms.
ACTIVE_SECONDS = 0.5
SIGN_SECONDS = 0.5
_NS = 1_000_000_000
BUSY_FLOOR = 0.01  # the driver tells whole percents


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """What an allocation was charged on a device up to a moment, and how much of that a launch was, in the mean."""

    total_ns: int
    at: float
    a_launch_ns: float
    under_way: bool
    unfinished_ns: int = 0


def follow(all_held: Sequence[Held], windows: Windows, tell: Tell) -> None:
    """Take each new window of the driver into account, for those whose compute is limited; at each control step."""
    for held in all_held:
        if not is_steered(held):
            continue
        for place, grant in enumerate(held.allocation.grants):
            memory, window = held.devices[place], windows.get(grant.gpu_uuid)
            if window is None:
                memory.window_at = None
            elif window.ended_at != memory.window_at:
                memory.window_at = window.ended_at
                own = _own_pids(held)
                seen = _by_process(held, place, window, all_held)
                if own is not None and seen is not None:
                    _tell_of_neighbours(held, place, seen, own)
                charged = _charged(held, place, memory)
                if charged is not None:
                    known = Charged(
                        total_ns=charged,
                        at=time.monotonic(),
                        a_launch_ns=memory.a_launch_ns,
                        under_way=is_under_way(held, place, charged),
                        unfinished_ns=_unfinished_ns(held, place),
                    )
                    busy = _busy_in(held, place, seen, exact=isinstance(window, DeviceWindow))
                    _correct_in_a_row(held, place, busy, window.ended_at, known, tell)


def _unfinished_ns(held: Held, place: int) -> int:
    """As of the last survey."""
    slots = held.survey.slots if held.survey is not None else ()
    return sum(slot.devices[place].unfinished_ns for slot in slots if slot.devices)


def _own_pids(held: Held) -> set[int] | None:
    pids = {process.host_pid for process in held.processes}
    # Whose pid is not known can't be found among those that the driver names.
    return None if None in pids else {pid for pid in pids if pid is not None}


def _tell_of_neighbours(held: Held, place: int, window: BusyWindow, own: set[int]) -> None:
    if held.files is None or held.allocation.grants[place].limit_share_ppm >= SHARE_FULL_PPM:
        return
    if window.doubtful:
        return  # who was there is not known
    # First: the limiter takes the next word for both.
    _expect(held, place, expected_turns(window.ratios, own), others_busy(window.ratios, own))
    try:
        count = neighbours(window.ratios, own)
        held.files.shm.set_neighbours(place, count, holds_until_ms(window.ended_at))
    except LimitFileError:
        return  # which is told by who surveys it


def _expect(held: Held, place: int, turns: float, busy: float) -> None:
    memory = held.devices[place]
    assert held.files is not None
    try:
        aligned = _aligned(held.files, memory, place)
        before = aligned.turns.value
        aligned.expect(turns, busy)
        if aligned.turns.value != before:
            held.files.shm.set_others(place, aligned.turns.value)
    except LimitFileError:
        return


def _aligned(files: LimitFiles, memory: DeviceMemory, place: int) -> Aligned:
    if memory.aligned is None:
        written = files.shm.control(place).others_ppm
        memory.aligned = Aligned(turns=Turns(written / SHARE_FULL_PPM))
    return memory.aligned


def is_steered(held: Held) -> bool:
    """Is there compute of its processes to be held to a limit?"""
    return (
        bool(held.processes)
        and held.allocation.spec.isolation is IsolationMode.SOFT
        and any(grant.limit_share_ppm < SHARE_FULL_PPM for grant in held.allocation.grants)
    )


def is_under_way(held: Held, place: int, charged_ns: int) -> bool:
    """Was there work at the last survey that had not ended, and has nothing been charged since then?"""
    if held.survey is None or held.survey.devices[place].charged_ns != charged_ns:
        return False
    return any(slot.devices and slot.devices[place].unfinished_ns for slot in held.survey.slots)


def _by_process(
    held: Held, place: int, window: BusyWindow | DeviceWindow, all_held: Sequence[Held]
) -> BusyWindow | None:
    """A window of a device as one of processes: of this allocation's alone, so that it does not matter of which. None
    where others may have been there."""
    if isinstance(window, BusyWindow):
        return window
    memory, own = held.devices[place], _own_pids(held)
    if not own or memory.is_unlisted or not is_alone(held, window, all_held) or not 0 <= window.ratio <= 1:
        return None
    memory.witness = Witness(ended_at=window.ended_at, ratio=window.ratio)
    return BusyWindow(ended_at=window.ended_at, ratios={min(own): window.ratio})


def _busy_in(held: Held, place: int, window: BusyWindow | None, *, exact: bool) -> Busy | None:
    pids = _own_pids(held)
    if pids is None or window is None or not (held.devices[place].attributed or exact):
        return None
    if not pids.isdisjoint(window.doubtful):
        return None
    busy = busy_of(window.ratios, pids, window.card)
    return replace(busy, off=0.0) if exact else busy  # GPM's is one figure, and not rounded


def correct(held: Held, place: int, busy_ratio: float | None, busy_at: float, charged: Charged, tell: Tell) -> None:
    """Take one reading of the driver into account: the busy share of all processes of the allocation in the window
    that ended at busy_at; None where it does not tell of each of them."""
    if _is_corrected(held):
        busy = Busy(busy_ratio, off_of(len(held.processes))) if busy_ratio is not None else None
        _take(held, place, _reading(held, place, busy, busy_at, charged), tell)


def _correct_in_a_row(held: Held, place: int, busy: Busy | None, busy_at: float, charged: Charged, tell: Tell) -> None:
    """The same where no window is missed: each is compared with what was done in it, once that is known."""
    if not _is_corrected(held) or held.files is None or held.files.usage is None:
        return
    reading, memory = _reading(held, place, busy, busy_at, charged), held.devices[place]
    try:
        aligned = _aligned(held.files, memory, place)
        before = aligned.turns.value
        ready = aligned.after(reading, held.files.usage, place)
        if aligned.turns.value != before:
            held.files.shm.set_others(place, aligned.turns.value)
        if aligned.left.ratio is not None:
            held.files.shm.set_left(place, aligned.left.ratio)
    except LimitFileError:
        return  # which is told by who surveys it
    if ready is not None:
        _take(held, place, ready, tell)


def _is_corrected(held: Held) -> bool:
    return held.allocation.spec.isolation is IsolationMode.SOFT and held.files is not None


def _reading(held: Held, place: int, busy: Busy | None, busy_at: float, charged: Charged) -> Reading:
    memory, grant = held.devices[place], held.allocation.grants[place]
    return Reading(
        busy_ratio=busy.ratio if busy is not None else None,
        busy_at=busy_at,
        charged_ns=charged.total_ns,
        a_launch_ns=charged.a_launch_ns,
        charged_at=charged.at,
        under_way=charged.under_way,
        unfinished_ns=charged.unfinished_ns,
        share=_share_in_force(memory, grant.limit_share_ppm / SHARE_FULL_PPM),
        processes=len(held.processes),
        off=busy.off if busy is not None else 0.0,
    )


def _take(held: Held, place: int, reading: Reading, tell: Tell) -> None:
    assert held.files is not None
    memory = held.devices[place]
    try:
        if memory.correction is None:
            written = held.files.shm.control(place).correction_ppm
            memory.correction = Correction(value=(written or SHARE_FULL_PPM) / SHARE_FULL_PPM)
        before = memory.correction
        memory.correction = before.after(reading)
        moved = memory.correction.value != before.value
        # Those who pace by it can tell from its age that nobody looks after it any more.
        if moved or (reading.busy_ratio is not None and reading.busy_at - memory.corrected_at >= SIGN_SECONDS):
            now = memory.correction
            ppm, settled = (round(value * SHARE_FULL_PPM) for value in (now.value, now.settled))
            held.files.shm.set_correction(place, ppm, round(reading.busy_at * _NS), settled_ppm=settled)
            memory.corrected_at = reading.busy_at
    except LimitFileError as error:
        held.lose_files(error)
        return
    _tell_over_time(held, place, memory.correction, tell)


def _tell_over_time(held: Held, place: int, correction: Correction, tell: Tell) -> None:
    mark = f"time {place}"
    if not correction.does_not_hold:
        held.reported.discard(mark)
    elif mark not in held.reported:
        held.reported.add(mark)
        grant = held.allocation.grants[place]
        percent = 100 * grant.limit_share_ppm / SHARE_FULL_PPM
        tell.event(
            held.reference,
            EventType.WARNING,
            "ComputeOverLimit",
            f"'{held.allocation.spec.allocation_id}' has used more GPU time on {grant.gpu_uuid} than its limit of "
            f"{percent:g}% for ten seconds, by the driver's account; it may run work that the limiter does not see",
            device=grant.gpu_uuid,
            limit_percent=f"{percent:g}",
        )


def _share_in_force(memory: DeviceMemory, limit: float) -> float:
    return memory.contracted if memory.contracted is not None else min(limit + memory.lent, 1.0)


Shared = Mapping[str, list[tuple[Held, int]]]  # by GPU UUID, who is on it and at which place of its grants


def shared_devices(all_held: Iterable[Held]) -> Shared:
    """The devices whose time is shared out anew with each step: some limits are more than there is, or are borrowed."""
    by_device: dict[str, list[tuple[Held, int]]] = {}
    for held in all_held:
        for place, grant in enumerate(held.allocation.grants):
            by_device.setdefault(grant.gpu_uuid, []).append((held, place))
    return {uuid: sharing for uuid, sharing in by_device.items() if _is_shared_out(sharing)}


def _is_shared_out(sharing: list[tuple[Held, int]]) -> bool:
    limits = sum(held.allocation.grants[place].limit_share_ppm for held, place in sharing)
    # Who left such a device last gets its limit back: what was contracted or lent is taken back by the same step.
    unsettled = any(held.devices[place].contracted is not None or held.devices[place].lent for held, place in sharing)
    return unsettled or (len(sharing) > 1 and limits > SHARE_FULL_PPM) or any(_borrows(held) for held, _ in sharing)


class Sharing:
    """Remembers shared_devices(), which changes only when an allocation comes, goes or is changed."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._shared: Shared = {}

    @property
    def any(self) -> bool:
        """Whether there was one when of() was last asked."""
        return bool(self._shared)

    def of(self, all_held: Sequence[Held]) -> Shared:
        """shared_devices() of these."""
        allocations = [held.allocation for held in all_held]
        if len(allocations) != len(self._allocations) or any(map(is_not, allocations, self._allocations)):
            self._allocations, self._shared = allocations, shared_devices(all_held)
        return self._shared


def share_out(shared: Shared, foreign: Mapping[str, float], *, now: float | None = None) -> None:
    """Lend what allocations leave of their devices to those whose policy lets them borrow, and where limits sum up to
    more than the device, put each share in force that was guaranteed; for each control step.

    foreign is, by GPU UUID, the share of time that processes of no allocation use.
    """
    at = time.monotonic() if now is None else now
    for uuid, sharing in shared.items():
        demands = [_demand(held, place, at) for held, place in sharing]
        used = foreign.get(uuid, 0.0)
        for (held, place), share in zip(sharing, contract(demands, foreign=used), strict=True):
            _contract(held, place, share, at)
        for (held, place), share in zip(sharing, lend(demands, foreign=used), strict=True):
            _lend(held, place, share, at)


def _borrows(held: Held) -> bool:
    return (
        held.allocation.spec.policy is ComputePolicy.WORK_CONSERVING
        and held.allocation.spec.isolation is IsolationMode.SOFT
    )


def _demand(held: Held, place: int, now: float) -> Demand:
    memory, grant = held.devices[place], held.allocation.grants[place]
    charged = _charged(held, place, memory)
    if charged is not None and charged != memory.charged_ns:
        if memory.charged_ns is not None:
            memory.active_at = now
        memory.charged_ns = charged
    return Demand(
        limit=grant.limit_share_ppm / SHARE_FULL_PPM,
        request=grant.request_share_ppm / SHARE_FULL_PPM,
        weight=held.allocation.spec.qos.weight,
        active=(memory.active_at is not None and now - memory.active_at <= ACTIVE_SECONDS) or _is_busy(held, place),
        borrows=_borrows(held),
    )


def _is_busy(held: Held, place: int) -> bool:
    """Of one that nothing is charged to, because it has no limit: what the driver saw last."""
    if held.allocation.grants[place].limit_share_ppm < SHARE_FULL_PPM or held.usage is None:
        return False
    return (held.usage.devices[place].busy_ratio.value or 0.0) > BUSY_FLOOR


def _charged(held: Held, place: int, memory: DeviceMemory) -> int | None:
    """GPU time charged so far; what it was where the file can't be read, which is told elsewhere."""
    usage = held.files.usage if held.files is not None else None
    try:
        return memory.charged_ns if usage is None else usage.charged_ns(place)
    except LimitFileError:
        return memory.charged_ns


def _contract(held: Held, place: int, share: float | None, now: float) -> None:
    memory = held.devices[place]
    soft = held.allocation.spec.isolation is IsolationMode.SOFT
    if held.files is None or not soft or (share is None and memory.contracted is None):
        return
    try:
        until_ms = round(now * 1000) + (EXPIRY_MS if share is not None else 0)
        held.files.shm.contract(place, round((share or 0) * SHARE_FULL_PPM), until_ms)
        if memory.contracted is None:
            held.files.shm.announce()
        memory.contracted = share
    except LimitFileError as error:
        held.lose_files(error)


def _lend(held: Held, place: int, share: float, now: float) -> None:
    memory = held.devices[place]
    if held.files is None or (share == 0 and memory.lent == 0):
        return
    try:
        # Lent anew with each step, for as long as it takes to miss one.
        until_ms = round(now * 1000) + (EXPIRY_MS if share else 0)
        held.files.shm.lend(place, round(share * SHARE_FULL_PPM), until_ms)
        memory.lent = share
    except LimitFileError as error:
        held.lose_files(error)
