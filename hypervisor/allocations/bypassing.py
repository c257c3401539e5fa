"""Processes that belong to an allocation, use a GPU, and have not attached: its limits don't bind them.

A process belongs to an allocation by what the kernel says of it: it descends from the owner, it is in the cgroup of the
Pod, or it was started with the allocation's files in its environment. Why it has not attached is told by its memory
map: without the library it was never loaded (a static program, another C library, no preload).
"""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.allocations.foreign import unattributed_pids
from hypervisor.allocations.held import Held
from hypervisor.allocations.processes import ProcessTable
from hypervisor.allocations.telling import Tell
from hypervisor.model import EventType, Inventory, OwnerKind

LIBRARY = "libcuda_limiter.so"


def find_bypassing(
    all_held: list[Held], inventory: Inventory, attached: Iterable[int], table: ProcessTable, tell: Tell
) -> None:
    """Bring `bypassing` of all allocations up to date; each process has its event once.

    attached: host pids of our allocations' processes. One counts at two rounds in a row: what was read before the last
    round may have ended since.
    """
    found: dict[str, set[int]] = {}
    for pid in unattributed_pids(inventory, attached) if all_held else ():
        uid = _allocation_of(pid, all_held, table)
        if uid is not None:
            found.setdefault(uid, set()).add(pid)
    for held in all_held:
        before, held.unattached = held.unattached, frozenset(found.get(held.allocation.uid, ()))
        held.bypassing = before & held.unattached
        for pid in sorted(held.bypassing):
            mark = f"bypass {pid}"
            if mark not in held.reported:
                held.reported.add(mark)
                _tell(held, pid, table, tell)


def owner_pids(all_held: Iterable[Held]) -> dict[int, str]:
    """By pid of an owning process, the uid of its allocation."""
    return {
        held.allocation.spec.owner.pid: held.allocation.uid
        for held in all_held
        if held.allocation.spec.owner.kind is OwnerKind.PROCESS
    }


def _allocation_of(pid: int, all_held: list[Held], table: ProcessTable) -> str | None:
    owners = owner_pids(all_held)
    owner = table.descends_from(pid, owners) if owners else None
    if owner is not None:
        return owners[owner]
    pods = {held.allocation.spec.owner.pod_uid: held.allocation.uid for held in all_held if _is_pod(held)}
    pod = table.cgroup_names(pid, pods) if pods else None
    if pod is not None:
        return pods[pod]
    entries = {held.environment_entry: held.allocation.uid for held in all_held}
    started_with = table.environment_names(pid, entries)
    return entries[started_with] if started_with is not None else None


def _is_pod(held: Held) -> bool:
    owner = held.allocation.spec.owner
    return owner.kind is OwnerKind.POD and bool(owner.pod_uid)


def _tell(held: Held, pid: int, table: ProcessTable, tell: Tell) -> None:
    name = held.allocation.spec.allocation_id
    loaded = table.has_library(pid, LIBRARY)
    why = {
        True: "has the limiter in its memory and has not attached",
        False: "does not have the limiter in its memory",
        None: "has not attached",
    }[loaded]
    tell.event(
        held.reference,
        EventType.WARNING,
        "LimiterBypassed",
        f"process {pid} of '{name}' uses a GPU and {why}, so the limits don't bind it; start it under "
        "/etc/ld.so.preload or with LD_PRELOAD, or use partitioned isolation for programs that are linked statically",
        pid=str(pid),
    )
