"""Figures of one allocation: its own account beside what the driver attributes to its processes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hypervisor.allocations.contexts import ContextSizes
from hypervisor.allocations.counters import Counts
from hypervisor.allocations.held import DeviceMemory, Held
from hypervisor.allocations.measured_overhead import DriverView, accounts, follow_overhead
from hypervisor.allocations.pacing import pacing_of
from hypervisor.allocations.resting import Moment, as_of, rests
from hypervisor.allocations.steering import Charged, correct, is_under_way
from hypervisor.allocations.telling import Tell
from hypervisor.allocations.witness import Witness
from hypervisor.limits import LimitFileError
from hypervisor.model import (
    AllocationUsage,
    DeviceGrant,
    DeviceObservation,
    DeviceUsage,
    Enforcement,
    EventType,
    Figure,
    FigureSource,
    Inventory,
    IsolationMode,
    ProcessOnGpu,
)
from hypervisor.model.quantity import format_bytes

_NS = 1_000_000_000
# Memory beyond the limit that contexts and modules can explain, for each process.
_EXPLAINED_BYTES = 512 * 2**20


Observed = Mapping[str, DeviceObservation]  # by UUID


def observed_in(inventory: Inventory) -> Observed:
    """The devices of an inventory by UUID."""
    return {device.identity.uuid: device for device in inventory.devices}


def measure(
    held: Held,
    inventory: Inventory,
    observed: Observed,
    tell: Tell,
    contexts: ContextSizes,
    *,
    moment: Moment,
    burst_seconds: float = 0.01,
) -> None:
    """Bring the figures up to date, write the control words, tell what has happened. moment is this round's."""
    views = tuple(_view(held, observed.get(grant.gpu_uuid), inventory) for grant in held.allocation.grants)
    if rests(held, [view.absent_reason for view in views], burst_seconds):
        assert held.usage is not None
        held.usage = as_of(held.usage, moment)
        return
    totals = held.counters.follow(held.survey.slots if held.survey is not None else ())
    if inventory.sequence != held.read_sequence:
        held.read_sequence = inventory.sequence
        for place, view in enumerate(views):
            memory = held.devices[place]
            follow_overhead(held, place, view, contexts)
            memory.unlisted_readings = memory.unlisted_readings + 1 if _is_unlisted(held, place, view) else 0
            _follow_busy(held, place, view)
            _correct_by_round(held, place, view, totals[place], tell)
    devices = tuple(
        _device_usage(held, place, views[place], totals[place], burst_seconds) for place in range(len(views))
    )
    held.usage = AllocationUsage(
        allocation_id=held.allocation.spec.allocation_id,
        devices=devices,
        processes=held.processes,
        enforcement=_enforcement(held, views),
        tampering=held.finding,
        bypassing_pids=tuple(sorted(held.bypassing)),
    )
    _tell(held, devices, totals, tell)


def _view(held: Held, device: DeviceObservation | None, inventory: Inventory) -> DriverView:
    if device is None:
        return DriverView(None, "the GPU is not in the driver's list", inventory.observed_at)
    listed = device.readings.processes
    if listed is None:
        why = device.readings.processes_absent_reason or "the driver lists no processes"
        return DriverView(None, why, inventory.observed_at)
    pids = {process.host_pid for process in held.processes}
    return DriverView({process.pid: process for process in listed if process.pid in pids}, "", inventory.observed_at)


def _follow_busy(held: Held, place: int, view: DriverView) -> None:
    """Add the GPU time of the last window to the ever increasing word of the control record."""
    memory = held.devices[place]
    seen = [process for process in (view.processes or {}).values() if process.busy_ratio is not None]
    at = max((process.busy_observed_at or view.observed_at for process in seen), default=None)
    busy = _busy(seen)
    if at is None and (witness := _fresh_witness(memory)) is not None:
        at, busy = witness.ended_at, witness.ratio
    last, memory.busy_at = memory.busy_at, at
    if at is None or held.files is None:
        return
    try:
        if memory.busy_ns is None:
            memory.busy_ns = held.files.shm.control(place).measured_busy_ns
        if last is not None and at > last:
            memory.busy_ns += round(busy * (at - last) * _NS)
        held.files.shm.set_measured_busy(place, memory.busy_ns, round(at * _NS))
    except LimitFileError as error:
        held.lose_files(error)


def _busy_at(view: DriverView) -> float:
    """The end of the driver's last window."""
    seen = (view.processes or {}).values()
    return max((process.busy_observed_at or view.observed_at for process in seen), default=view.observed_at)


def _correct_by_round(held: Held, place: int, view: DriverView, counts: Counts, tell: Tell) -> None:
    memory, survey = held.devices[place], held.survey
    memory.a_launch_ns = counts.charged_ns / max(counts.launches, 1)
    busy = _attributed_busy(held, view)
    memory.attributed = busy is not None
    # Where each window is followed (steering.follow), a round says nothing that was not known.
    if survey is not None and memory.window_at is None:
        account = survey.devices[place]
        charged = Charged(
            total_ns=account.charged_ns,
            at=survey.at,
            a_launch_ns=memory.a_launch_ns,
            under_way=is_under_way(held, place, account.charged_ns),
        )
        correct(held, place, busy, _busy_at(view), charged, tell)


def _attributed_busy(held: Held, view: DriverView) -> float | None:
    """The busy share of all processes; None unless the driver tells of each of them."""
    if view.processes is None or any(process.host_pid is None for process in held.processes):
        return None
    seen = list(view.processes.values())
    return None if any(process.busy_ratio is None for process in seen) else _busy(seen)


def _busy(processes: list[ProcessOnGpu]) -> float:
    """Share of GPU time of several processes, 0 to 1: a sum, since the driver gives each its own slices."""
    return min(sum((process.busy_ratio or 0.0 for process in processes), 0.0), 1.0)


def _device_usage(held: Held, place: int, view: DriverView, counts: Counts, burst_seconds: float) -> DeviceUsage:
    grant, memory, survey = held.allocation.grants[place], held.devices[place], held.survey
    memory.over = _is_over(held, place, grant)

    def own(value: int) -> Figure[int]:
        if survey is None:
            return Figure.absent(held.finding or "the usage file has not been read")
        return Figure(value, FigureSource.LIMITER, survey.at)

    waited, busy = own(counts.blocked_ns), _busy_figure(view, memory)
    return DeviceUsage(
        gpu_uuid=grant.gpu_uuid,
        reserved_bytes=own(_reserved(held, place)),
        overhead_bytes=_overhead_figure(memory, view),
        busy_ratio=busy,
        throttled_seconds_total=Figure.absent(waited.absent_reason)
        if waited.value is None
        else Figure(waited.value / _NS, waited.source, waited.observed_at),
        launches_total=own(counts.launches),
        denials_total=own(counts.denials),
        over=memory.over,
        pacing=pacing_of(held, place, busy, burst_seconds=burst_seconds),
    )


def _reserved(held: Held, place: int) -> int:
    """What is accounted, without what stands for contexts whose true size is known and counts as overhead."""
    known = held.devices[place].overhead_by_pid
    return sum(
        account.held + (0 if pid in known and known[pid].measured_bytes is not None else account.context)
        for pid, account in accounts(held, place).items()
    )


def _overhead_figure(memory: DeviceMemory, view: DriverView) -> Figure[int]:
    if view.processes is None:
        return Figure.absent(view.absent_reason)
    if any(process.memory_bytes is None for process in view.processes.values()):
        return Figure.absent("the driver does not say how much memory its processes hold")
    return Figure(memory.overhead_bytes or 0, FigureSource.DRIVER, view.observed_at)


def _busy_figure(view: DriverView, memory: DeviceMemory) -> Figure[float]:
    if view.processes is None:
        return Figure.absent(view.absent_reason)
    if _tells_time(view):
        return Figure(_busy(list(view.processes.values())), FigureSource.DRIVER, _busy_at(view))
    if (witness := _fresh_witness(memory)) is not None:
        return Figure(witness.ratio, FigureSource.GPM, witness.ended_at)
    return Figure.absent("the driver gives no samples of processes")


def _is_over(held: Held, place: int, grant: DeviceGrant) -> bool:
    """More is held than the limit allows: reserved without the stand-ins of contexts, and what was measured."""
    if grant.limit_vram_bytes is None or held.survey is None:
        return False
    accounted = sum(account.held for account in accounts(held, place).values())
    return accounted + (held.devices[place].overhead_bytes or 0) > grant.limit_vram_bytes


def _enforcement(held: Held, views: tuple[DriverView, ...]) -> Enforcement:
    """How sure it is that the limits hold, from the strongest statement to the weakest."""
    if held.allocation.spec.isolation is IsolationMode.SHARED:
        return Enforcement.NONE
    beyond_time = any(memory.correction is not None and memory.correction.does_not_hold for memory in held.devices)
    if held.finding or held.bypassing or beyond_time or _beyond(held, views):
        return Enforcement.VIOLATED
    if not held.processes:
        return Enforcement.NONE
    attributed = all(process.host_pid is not None for process in held.processes) and all(
        view.processes is not None
        and not memory.is_unlisted
        and all(process.memory_bytes is not None for process in view.processes.values())
        and (_tells_time(view) or _fresh_witness(memory) is not None)
        and not (memory.correction is not None and memory.correction.is_unseen)
        for view, memory in zip(views, held.devices, strict=True)
    )
    return Enforcement.VERIFIED if attributed else Enforcement.UNVERIFIED


def _tells_time(view: DriverView) -> bool:
    """Does the driver tell how busy each process is?"""
    return all(process.busy_ratio is not None for process in (view.processes or {}).values())


def _fresh_witness(memory: DeviceMemory) -> Witness | None:
    """GPM's word on the device, where the allocation was alone there a moment ago."""
    return memory.witness if memory.witness is not None and memory.witness.is_fresh(time.monotonic()) else None


def _is_unlisted(held: Held, place: int, view: DriverView) -> bool:
    """Does a process hold memory on the device by its account, and the driver lists it not?"""
    listed = view.processes or {}
    return any(account.held > 0 and pid not in listed for pid, account in accounts(held, place).items())


def _beyond(held: Held, views: tuple[DriverView, ...]) -> bool:
    """Do the processes hold more than limit and contexts explain, at two rounds in a row and with no lowered limit?"""
    found = False
    for grant, memory, view in zip(held.allocation.grants, held.devices, views, strict=True):
        memory.lowered = memory.lowered and memory.over
        if grant.limit_vram_bytes is None or view.processes is None or memory.lowered:
            memory.beyond_rounds = 0
            continue
        driver = sum(process.memory_bytes or 0 for process in view.processes.values())
        explained = grant.limit_vram_bytes + _EXPLAINED_BYTES * len(view.processes)
        memory.beyond_rounds = memory.beyond_rounds + 1 if driver > explained else 0
        found = found or memory.beyond_rounds >= 2
    return found


_ACCOUNTS_LOST = "the accounting of '{}' can't be trusted any more"


def _tell(held: Held, devices: tuple[DeviceUsage, ...], totals: tuple[Counts, ...], tell: Tell) -> None:
    name = held.allocation.spec.allocation_id
    if held.finding and held.finding not in held.reported:
        held.reported.add(held.finding)
        what = "the limits of '{}' can't be written any more" if held.limits_lost else _ACCOUNTS_LOST
        tell.event(
            held.reference,
            EventType.WARNING,
            "LimitFilesUnusable" if held.limits_lost else "UsageTampered",
            f"{what.format(name)}: {held.finding}; its processes keep what is "
            "enforced in them, and nothing is mended behind their back: end them and allocate anew",
            finding=held.finding,
        )
    denials = held.counters.new_denials(totals) if held.survey is not None else ()
    for grant, usage, count in zip(held.allocation.grants, devices, denials, strict=False):
        if count and grant.limit_vram_bytes is not None:
            _tell_denials(held, grant, usage, count, tell)
    for place, usage in enumerate(devices):
        mark = f"over {place}"
        if not usage.over:
            held.reported.discard(mark)
        elif mark not in held.reported:
            held.reported.add(mark)
            _tell_over(held, held.allocation.grants[place], usage, tell)


def _tell_denials(held: Held, grant: DeviceGrant, usage: DeviceUsage, count: int, tell: Tell) -> None:
    assert grant.limit_vram_bytes is not None
    reserved, overhead = usage.reserved_bytes.value or 0, usage.overhead_bytes.value or 0
    tell.event(
        held.reference,
        EventType.WARNING,
        "MemoryDenied",
        f"'{held.allocation.spec.allocation_id}' was refused memory {count} time{'s' if count != 1 else ''} on "
        f"{grant.gpu_uuid}: its limit is {format_bytes(grant.limit_vram_bytes)}, and {format_bytes(reserved)} are "
        f"reserved with {format_bytes(overhead)} of overhead",
        device=grant.gpu_uuid,
        denials=str(count),
        limit_bytes=str(grant.limit_vram_bytes),
        reserved_bytes=str(reserved),
        overhead_bytes=str(overhead),
    )


def _tell_over(held: Held, grant: DeviceGrant, usage: DeviceUsage, tell: Tell) -> None:
    assert grant.limit_vram_bytes is not None
    reserved, overhead = usage.reserved_bytes.value or 0, usage.overhead_bytes.value or 0
    tell.event(
        held.reference,
        EventType.WARNING,
        "OverLimit",
        f"'{held.allocation.spec.allocation_id}' holds {format_bytes(reserved)} and {format_bytes(overhead)} of "
        f"overhead on {grant.gpu_uuid}, more than its limit of {format_bytes(grant.limit_vram_bytes)}; it is granted "
        "nothing more until it gives some back",
        device=grant.gpu_uuid,
        limit_bytes=str(grant.limit_vram_bytes),
        reserved_bytes=str(reserved),
        overhead_bytes=str(overhead),
    )
