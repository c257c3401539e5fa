"""The overhead of an allocation on a device: what the driver attributes to its processes beyond what they account."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.allocations.contexts import ContextSizes
from hypervisor.allocations.held import DeviceMemory, Held
from hypervisor.allocations.overhead import Overhead
from hypervisor.limits import LimitFileError, RecountResult, UsageSurvey
from hypervisor.model import ProcessOnGpu

_NS = 1_000_000_000
# A reading of all GPUs is stamped at its end; it began at most so long before, or it does not count as quiet.
LONGEST_READING_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class DriverView:
    """What the driver says of the processes of an allocation on one device; None and why, where it says nothing."""

    processes: dict[int, ProcessOnGpu] | None
    absent_reason: str
    observed_at: float


@dataclass(frozen=True, slots=True)
class Account:
    """What a process accounts on a device, in bytes: without what stands for contexts, and what of that still counts
    because they are not measured yet."""

    held: int = 0
    context: int = 0


def accounts(held: Held, place: int) -> dict[int | None, Account]:
    """By host pid; under None what processes account that could not be found on the host."""
    if held.survey is None:
        return {}
    by_slot = {slot.number: slot for slot in held.survey.slots}
    found: dict[int | None, Account] = {}
    for process in held.processes:
        slot = by_slot.get(process.slot)
        if slot is None or not slot.devices:
            continue
        device, before = slot.devices[place], found.get(process.host_pid, Account())
        # A process may have two slots: a fork that has not called exec, for instance.
        found[process.host_pid] = Account(
            before.held + max(0, device.held_bytes - device.context_bytes),
            # What is given up is whole units: the little that is left of it waits for nothing.
            before.context + (0 if device.given_up_bytes else device.context_bytes),
        )
    return found


def follow_overhead(held: Held, place: int, view: DriverView, contexts: ContextSizes) -> None:
    """Bring the overhead word up to date, and then give up what stands for contexts that are in it. The word's time
    tells a process the same, which gives up by itself where the file has no place for us to say it; so the time moves
    on only when every process that has such a stand-in is measured."""
    memory, survey = held.devices[place], held.survey
    if survey is None or held.files is None:
        return
    if memory.overhead_bytes is None:
        memory.overhead_bytes = _overhead_in_file(held, place)
    by_pid, word = accounts(held, place), survey.devices[place].total_word
    began = view.observed_at - LONGEST_READING_SECONDS
    quiet = _only_we_changed(memory, survey, place) and memory.surveyed_at <= began and view.observed_at <= survey.at
    before, memory.accounted_by_pid = (
        memory.accounted_by_pid,
        {pid: account.held for pid, account in by_pid.items() if pid is not None},
    )
    contexts_before, memory.contexts_by_slot = (
        memory.contexts_by_slot,
        {slot.number: slot.devices[place].contexts_word for slot in survey.slots if slot.devices},
    )
    memory.total_word, memory.surveyed_at = word, survey.at
    memory.own_changes = [at for at in memory.own_changes if at >= survey.at]
    if view.processes is None:
        return
    memory.overhead_by_pid = {
        pid: memory.overhead_by_pid.get(pid, Overhead()).after(
            driver_bytes=view.processes[pid].memory_bytes or 0,
            accounted_before=before.get(pid),
            accounted_now=account.held,
            quiet=quiet,
            awaited=account.context > 0,
        )
        for pid, account in by_pid.items()
        if pid is not None and pid in view.processes and view.processes[pid].memory_bytes is not None
    }
    _learn_contexts(held, place, by_pid, contexts)
    measured = {pid: known.measured_bytes for pid, known in memory.overhead_by_pid.items()}
    if any(value is None and not by_pid[pid].context for pid, value in measured.items()):
        return  # an earlier daemon has measured it: what it wrote holds until we have
    awaited = [pid for pid, account in by_pid.items() if account.context]
    complete = all(pid is not None and measured.get(pid) is not None for pid in awaited)
    total = sum(value or 0 for value in measured.values())
    _write_overhead(held, place, total, view.observed_at if complete else None)
    if quiet:
        _give_up(held, place, contexts_before)


def _only_we_changed(memory: DeviceMemory, survey: UsageSurvey, place: int) -> bool:
    """Has no process changed the total since the survey before? Recounts of ours change nobody's account."""
    ours = sum(memory.surveyed_at <= at < survey.at for at in memory.own_changes)
    account = survey.devices[place]
    if memory.total_word is None or account.changes_since(memory.total_word) != ours:
        return False
    return ours > 0 or memory.total_word == account.total_word


def _give_up(held: Held, place: int, contexts_before: dict[int, int | None]) -> None:
    """Let the stand-ins of processes whose contexts were all there before this quiet reading count no more."""
    assert held.survey is not None
    known = held.devices[place].overhead_by_pid
    measured = {pid for pid, overhead in known.items() if overhead.measured_bytes is not None}
    of_measured = {process.slot for process in held.processes if process.host_pid in measured}
    try:
        for slot in held.survey.slots:
            if slot.number not in of_measured or not slot.devices or held.files is None or held.files.usage is None:
                continue
            device = slot.devices[place]
            if (
                device.context_bytes
                and device.contexts_word is not None
                and contexts_before.get(slot.number) == device.contexts_word
                and held.files.usage.give_up_context(slot, place)
            ):
                # Raced at every try: the next round does it.
                outcome, _, _ = held.files.usage.recount(place)
                held.devices[place].own_changes += [held.survey.at] * (outcome is RecountResult.CHANGED)
    except LimitFileError as error:
        held.finding = held.finding or error.message


def _learn_contexts(held: Held, place: int, by_pid: dict[int | None, Account], contexts: ContextSizes) -> None:
    """Processes whose stand-in is that of one context tell by their overhead what a context takes."""
    assert held.files is not None
    try:
        stand_in = held.files.shm.control(place).context_bytes
    except LimitFileError as error:
        held.lose_files(error)
        return
    for pid, known in held.devices[place].overhead_by_pid.items():
        if known.exact_bytes is not None and by_pid[pid].context == stand_in:
            contexts.learn(held.allocation.grants[place].gpu_uuid, known.exact_bytes)


def _overhead_in_file(held: Held, place: int) -> int | None:
    """What an earlier daemon has written."""
    assert held.files is not None
    try:
        return held.files.shm.control(place).overhead_bytes
    except LimitFileError as error:
        held.lose_files(error)
        return None


def _write_overhead(held: Held, place: int, overhead: int, measured_at: float | None) -> None:
    assert held.files is not None
    memory = held.devices[place]
    try:
        if overhead != memory.overhead_bytes:
            held.files.shm.set_overhead(place, overhead)
            memory.overhead_bytes = overhead
        if measured_at is not None and held.processes:
            held.files.shm.set_overhead_time(place, round(measured_at * _NS))
    except LimitFileError as error:
        held.lose_files(error)
