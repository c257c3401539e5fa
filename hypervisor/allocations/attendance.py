"""Who is attached: surveys the usage file, returns the slots of the dead and sets totals right."""

from __future__ import annotations

import os
from typing import Any

from hypervisor.allocations.held import Held
from hypervisor.allocations.processes import Life, ProcessName, ProcessTable
from hypervisor.allocations.telling import Tell
from hypervisor.limits import LimitFileError, RecountResult, Slot, SlotPhase
from hypervisor.model import AttachedProcess, EventType
from hypervisor.model.quantity import format_bytes

HOST_ACCOUNT = 16  # the account of pinned host memory, after those of the devices


def survey(held: Held, buffer: Any) -> None:
    """Read the usage file; a file that was tampered with is not read any more, and nothing in it is mended."""
    if held.files is None or held.files.usage is None or held.finding:
        held.survey = None
        return
    try:
        held.survey = held.files.usage.survey(buffer, device_count=len(held.allocation.grants))
    except LimitFileError as error:
        held.survey = None
        held.finding = error.message


def settle(held: Held, table: ProcessTable, tell: Tell) -> None:
    """Judge the slots of the last survey: processes that live, slots to return, totals to set right."""
    if held.survey is None:
        # What was attached stays attached, as far as the processes themselves can be asked.
        held.processes = tuple(process for process in held.processes if _still_lives(process, table))
        held.unknown_slots = 0
        return
    living: list[AttachedProcess] = []
    dead: list[Slot] = []
    renamed: list[tuple[Slot, int]] = []
    unknown = 0
    for slot in held.survey.slots:
        life, host_pid = table.find(ProcessName(slot.pid_namespace, slot.pid, slot.start_time_ticks))
        if life is Life.OTHER_CLOCK:
            _tell_other_clock(held, slot, tell)
        if life is Life.DEAD:
            dead.append(slot)
        elif slot.phase is SlotPhase.LIVE:
            if host_pid is None or _speaks_for_itself(held, slot, host_pid, table):
                living.append(_process(slot, host_pid))
                if host_pid is not None and slot.told_host_pid != host_pid and slot.pid != host_pid:
                    renamed.append((slot, host_pid))
        else:
            unknown += 1  # is being claimed right now
    held.processes, held.unknown_slots = tuple(living), unknown
    try:
        returned = [slot for slot in dead if _return(held, slot, table)]
        _recount(held, returned, tell)
        _tell_pids(held, renamed)
    except LimitFileError as error:
        held.finding = error.message
    else:
        tell.count.slots_returned += len(returned)


def _tell_pids(held: Held, renamed: list[tuple[Slot, int]]) -> None:
    """NVML lists pids of the host; these are what a Pod with a PID namespace of its own knows them by."""
    for slot, host_pid in renamed:
        assert held.files is not None
        assert held.files.usage is not None
        held.files.usage.tell_host_pid(slot, host_pid)


def _tell_other_clock(held: Held, slot: Slot, tell: Tell) -> None:
    mark = f"clock {slot.pid_namespace} {slot.pid}"
    if mark in held.reported:
        return
    held.reported.add(mark)
    tell.event(
        held.reference,
        EventType.WARNING,
        "TimeNamespaceDiffers",
        f"process {slot.pid} of '{held.allocation.spec.allocation_id}' is in a time namespace of its own, so its waits "
        "and its life can't be judged by this node's clock; run it without one",
        pid=str(slot.pid),
    )


def _speaks_for_itself(held: Held, slot: Slot, host_pid: int, table: ProcessTable) -> bool:
    """False for a slot that names a process which has not mapped the file: somebody wrote another's name into it, so
    that what the driver attributes to that one would count here, or so that the allocation would never end."""
    assert held.files is not None
    assert held.files.usage is not None
    # Where the kernel names a mapped file otherwise than stat does (some layered file systems), it says nothing. Our
    # own mapping of the other file shows it.
    if not table.has_mapped(os.getpid(), table.own_start_time, held.files.shm.inode):
        return True
    return table.has_mapped(host_pid, slot.start_time_ticks, held.files.usage.inode)


def _still_lives(process: AttachedProcess, table: ProcessTable) -> bool:
    life, _ = table.find(ProcessName(process.pid_namespace, process.pid, process.start_time_ticks))
    return life is not Life.DEAD


def _process(slot: Slot, host_pid: int | None) -> AttachedProcess:
    return AttachedProcess(
        slot=slot.number,
        pid=slot.pid,
        pid_namespace=slot.pid_namespace,
        start_time_ticks=slot.start_time_ticks,
        host_pid=host_pid,
        reserved_bytes=tuple(device.counted_bytes for device in slot.devices),
    )


def _return(held: Held, slot: Slot, table: ProcessTable) -> bool:
    assert held.files is not None
    assert held.files.usage is not None
    return held.files.usage.return_slot(slot, own_identity=table.own_owner_word)


def _recount(held: Held, returned: list[Slot], tell: Tell) -> None:
    """Set right each total that is not what the living slots hold; the recount itself decides by a fresh reading."""
    assert held.files is not None
    assert held.files.usage is not None
    assert held.survey is not None
    gone = {slot.number for slot in returned}
    slots = [slot for slot in held.survey.slots if slot.number not in gone and slot.devices]
    accounts = [
        (place, account.total_bytes, sum(slot.devices[place].counted_bytes for slot in slots))
        for place, account in enumerate(held.survey.devices)
    ]
    accounts.append((HOST_ACCOUNT, held.survey.host_bytes, sum(slot.host_bytes for slot in slots)))
    for account, total, held_bytes in accounts:
        if total == held_bytes:
            continue
        outcome, before, after = held.files.usage.recount(account)
        if outcome is not RecountResult.CHANGED:
            continue
        tell.count.recounts_changed += 1
        if account != HOST_ACCOUNT:
            held.devices[account].own_changes.append(held.survey.at)
        what = "host memory" if account == HOST_ACCOUNT else held.allocation.grants[account].gpu_uuid
        because = f"{len(returned)} of its processes had ended" if returned else "a process had ended between two steps"
        tell.event(
            held.reference,
            EventType.NORMAL,
            "LedgerHealed",
            f"reserved memory of '{held.allocation.spec.allocation_id}' on {what} is set from {format_bytes(before)} "
            f"to {format_bytes(after)}: {because}",
            device=what,
            before_bytes=str(before),
            after_bytes=str(after),
        )
