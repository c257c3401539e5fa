"""What a start finds on disk, and what becomes of it. A file that says what it should is not touched.

By allocation: record and files of this boot are adopted; of another boot, what a process owned has ended and the rest
is made anew; a record that can't be read is replaced from the limit file, which goes on being enforced; files without
a record are removed, unless a process lives in them.
"""

from __future__ import annotations

import grp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypervisor.allocations.contexts import LARGEST_BYTES, ContextSizes
from hypervisor.allocations.environment import limit_file_variable
from hypervisor.allocations.held import Held
from hypervisor.allocations.processes import Life, ProcessName, ProcessTable
from hypervisor.allocations.records import DamagedRecord, Record, RecordStore, StoreError
from hypervisor.allocations.telling import Tell
from hypervisor.allocations.translation import limit_set, recovered
from hypervisor.config import Settings
from hypervisor.limits import (
    Access,
    Finding,
    LimitDirectory,
    LimitFileError,
    LimitFiles,
    checked_name,
    new_survey_buffer,
)
from hypervisor.model import (
    Allocation,
    AllocationPhase,
    EventType,
    ObjectKind,
    ObjectReference,
    OwnerKind,
    Revision,
)

_MEBIBYTE = 2**20
GROUP = "hypervisor"
_RESERVED_PREFIX = "grant-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where allocations are kept, and by which rules: what adoption and the registry share."""

    settings: Settings
    boot_id: str
    directory: LimitDirectory
    store: RecordStore
    table: ProcessTable
    next_revision: Callable[[], Revision]
    tell: Tell
    contexts: ContextSizes

    def known_context_bytes(self, gpu_uuid: str) -> int | None:
        """What a context on a GPU is taken to need: the setting, else by the GPU; None before it was seen."""
        return self.settings.context_mebibytes * _MEBIBYTE or self.contexts.bytes_for(gpu_uuid)

    def context_bytes(self, gpu_uuid: str) -> int:
        """The same, and the largest there is where the GPU was not seen yet."""
        known = self.known_context_bytes(gpu_uuid)
        return LARGEST_BYTES if known is None else known


def is_reserved(uid: str) -> bool:
    """Is this the name of files that are made before it is known whose they are?"""
    return uid.startswith(_RESERVED_PREFIX)


def access_of(allocation: Allocation) -> Access:
    """Who may write the usage file: the owner's user for a process, a Pod through its mount. Who will use a name is not
    known, so its file is for the daemon's user and for the group whose members may use such shares."""
    owner = allocation.spec.owner
    named = owner.kind in (OwnerKind.NAMED, OwnerKind.DECLARED)
    return Access(
        owner_uid=owner.uid if owner.kind is OwnerKind.PROCESS else None,
        mounted_only=owner.kind is OwnerKind.POD and os.geteuid() == 0,
        ours=named,
        group_gid=_group_gid() if named else None,
    )


def _group_gid() -> int | None:
    """The group of the product, where there is one that the daemon may give files to."""
    try:
        gid = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return None
    return gid if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()) else None


def make_limit_files(ground: Ground, allocation: Allocation) -> LimitFiles:
    """Files with the limits in force, the symlink of a Pod, not armed. Raises LimitFileError with nothing left."""
    files = ground.directory.create(
        allocation.uid,
        allocation.spec.allocation_id,
        limit_set(allocation, ground.settings),
        access=access_of(allocation),
        context_bytes=tuple(ground.context_bytes(grant.gpu_uuid) for grant in allocation.grants),
    )
    try:
        link(ground, allocation)
    except LimitFileError:
        files.close()
        ground.directory.remove(allocation.uid)
        raise
    return files


def link(ground: Ground, allocation: Allocation) -> None:
    """The symlink <namespace>/<pod> for people."""
    owner = allocation.spec.owner
    if owner.kind is OwnerKind.POD:
        ground.directory.link(owner.namespace, owner.name, allocation.uid)


def unlink(ground: Ground, allocation: Allocation) -> None:
    """Take that symlink away, if it is still this allocation's."""
    owner = allocation.spec.owner
    if owner.kind is OwnerKind.POD:
        ground.directory.unlink(owner.namespace, owner.name, allocation.uid)


def adopt(ground: Ground) -> dict[str, Held]:
    """All that is held from now on, by uid. Raises StoreError or LimitFileError when nothing can be read at all."""
    records, damaged = ground.store.load()
    found: dict[str, Held] = {}
    for record in records:
        try:
            held = _adopt_record(ground, record)
        except (LimitFileError, StoreError) as error:
            held = Held.of(record.allocation, None, fresh=False, finding=str(error))
        if held is not None:
            found[record.allocation.uid] = held
    for damaged_record in damaged:
        held = _recover(ground, damaged_record)
        if held is not None:
            found[held.allocation.uid] = held
    # The files of a record that could not be read are not orphans, even where they can't be read either.
    spoken_for = found.keys() | {damaged_record.uid for damaged_record in damaged}
    for uid in ground.directory.uids():
        if uid in spoken_for:
            continue
        try:
            held = _orphan(ground, uid)
        except (LimitFileError, StoreError) as error:
            _tell_unusable(ground, uid, str(error))
            continue
        if held is not None:
            found[uid] = held
    return found


def bring_up_to_date(ground: Ground, allocation: Allocation, files: LimitFiles) -> None:
    """Make the file say what the allocation and the settings say; writes nothing that is so already."""
    if files.shm.publish(limit_set(allocation, ground.settings)):
        ground.tell.count.published += 1
    bring_contexts_up_to_date(ground, allocation, files)


def bring_contexts_up_to_date(ground: Ground, allocation: Allocation, files: LimitFiles) -> None:
    """The same for what a new context is taken to need; of a GPU that was not seen yet the file's word stands."""
    for device, grant in enumerate(allocation.grants):
        wanted = ground.known_context_bytes(grant.gpu_uuid)
        if wanted is not None and files.shm.control(device).context_bytes != wanted:
            files.shm.set_context(device, wanted)


def spread_contexts(ground: Ground, held: Held) -> None:
    """The same where that has changed since it was last asked; the file is ours alone to write."""
    assert held.files is not None
    wanted = [ground.known_context_bytes(grant.gpu_uuid) for grant in held.allocation.grants]
    if wanted != held.context_bytes:
        bring_contexts_up_to_date(ground, held.allocation, held.files)
        held.context_bytes = wanted


def _adopt_record(ground: Ground, record: Record) -> Held | None:
    allocation = record.allocation
    if record.boot_id != ground.boot_id:
        return _after_reboot(ground, allocation)
    try:
        files = ground.directory.open(allocation.uid)
    except LimitFileError as error:
        return Held.of(allocation, None, fresh=False, finding=error.message)
    held = Held.of(allocation, files, fresh=False, finding=files.finding.message if files.finding else "")
    try:
        state = files.shm.state
        bring_up_to_date(ground, allocation, files)
        link(ground, allocation)
        if not state.armed:
            files.shm.arm()  # a daemon that was killed before it could, and whose caller never had an answer
        if state.revoked:
            held.allocation = replace(allocation, phase=AllocationPhase.REVOKED)
    except LimitFileError as error:
        held.lose_files(error)
    ground.tell.count.adopted += 1
    return held


def _after_reboot(ground: Ground, allocation: Allocation) -> Held | None:
    """No process of another boot lives, so nothing is changed behind anybody's back."""
    unlink(ground, allocation)
    ground.directory.remove(allocation.uid)
    owned = allocation.spec.owner.kind is OwnerKind.PROCESS
    if owned or allocation.phase is not AllocationPhase.ACTIVE:
        ground.store.remove(allocation.uid)
        ground.tell.count.ended += 1
        ground.tell.event(
            Held.of(allocation, None, fresh=False).reference,
            EventType.NORMAL,
            "AllocationEnded",
            f"'{allocation.spec.allocation_id}' has ended: its owner was a process of an earlier boot",
        )
        return None
    renewed = replace(allocation, revision=ground.next_revision())
    files = make_limit_files(ground, renewed)
    try:
        ground.store.save(renewed, boot_id=ground.boot_id)
        files.shm.arm()
    except (StoreError, LimitFileError):
        files.close()
        ground.directory.remove(allocation.uid)
        raise
    return Held.of(renewed, files, fresh=True)


def _recover(ground: Ground, damaged: DamagedRecord) -> Held | None:
    """An allocation from its limit file, whose record was set aside."""
    ground.tell.count.records_set_aside += 1
    held: Held | None = None
    why = ""
    try:
        held = _from_limit_file(ground, checked_name(damaged.uid), AllocationPhase.ACTIVE)
    except (LimitFileError, StoreError, ValueError) as error:
        why = str(error)
    kept = (
        f"its limits stay enforced, and it is kept as '{held.allocation.spec.allocation_id}' until it is released"
        if held is not None
        else f"what it was is not known, since its limit file can't be used either ({why})"
    )
    ground.tell.event(
        held.reference if held is not None else ObjectReference(kind=ObjectKind.ALLOCATION, name="", uid=damaged.uid),
        EventType.WARNING,
        "RecordSetAside",
        f"the record of an allocation could not be read and is now {damaged.path}: {damaged.reason}; {kept}",
        path=str(damaged.path),
    )
    return held


def _orphan(ground: Ground, uid: str) -> Held | None:
    """Files without a record: of an Allocate that was killed on its way, of a Release that was, or of a lost store."""
    try:
        files = ground.directory.open(uid)
    except LimitFileError as error:
        if error.finding is not Finding.OTHER_BOOT and ground.table.mapping(ground.directory.inodes(uid)):
            raise
        inhabited = False
    else:
        armed = files.shm.state.armed
        inhabited = armed and _is_inhabited(ground, files)
        files.close()
        if is_reserved(uid) and not armed:
            return None  # a container may have been told of them; who reserved them discards them
    if not inhabited:
        ground.directory.remove(uid)
        ground.tell.count.orphans_removed += 1
        return None
    held = _from_limit_file(ground, uid, AllocationPhase.ENDING)
    ground.tell.event(
        held.reference,
        EventType.WARNING,
        "AllocationRecovered",
        f"limit files without a record have processes in them; they are kept as "
        f"'{held.allocation.spec.allocation_id}' until those have ended",
    )
    return held


def _tell_unusable(ground: Ground, uid: str, why: str) -> None:
    ground.tell.event(
        ObjectReference(kind=ObjectKind.ALLOCATION, name="", uid=uid),
        EventType.WARNING,
        "LimitFilesUnusable",
        f"limit files without a record are left as they are: {why}",
    )


def _is_inhabited(ground: Ground, files: LimitFiles) -> bool:
    """May a process live in these files?"""
    if files.usage is None:
        return True  # it was tampered with, so somebody has had it
    try:
        survey = files.usage.survey(new_survey_buffer(), device_count=0)
    except LimitFileError:
        return True
    ground.table.forget()  # after the survey, so that who attached meanwhile is seen
    names = (ProcessName(slot.pid_namespace, slot.pid, slot.start_time_ticks) for slot in survey.slots)
    if any(ground.table.find(name)[0] is not Life.DEAD for name in names):
        return True
    entry = "=".join(limit_file_variable(str(files.directory))).encode()
    return bool(ground.table.with_environment([entry]) or ground.table.mapping([files.usage.inode]))


def _from_limit_file(ground: Ground, uid: str, phase: AllocationPhase) -> Held:
    """Raises LimitFileError or StoreError; the files are then closed and stay as they are."""
    files = ground.directory.open(uid)
    try:
        state, limits = files.shm.state, files.shm.limits
        allocation = recovered(
            limits,
            uid=uid,
            allocation_id=files.shm.identity.allocation_id,
            directory=str(files.directory),
            created_at=time.time(),
            # As the file says, so that the file need not be written.
            revision=Revision(ground.next_revision().epoch, limits.revision),
        )
        allocation = replace(allocation, phase=AllocationPhase.REVOKED if state.revoked else phase)
        ground.store.save(allocation, boot_id=ground.boot_id)
    except (LimitFileError, StoreError):
        files.close()
        raise
    ground.tell.count.recovered += 1
    return Held.of(allocation, files, fresh=False, finding=files.finding.message if files.finding else "")
