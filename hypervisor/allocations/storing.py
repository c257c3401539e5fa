"""Brings allocations to the disk and away from it, in an order that a kill at any point leaves usable."""

from __future__ import annotations

import errno
import time

from hypervisor.allocations.adoption import Ground, bring_up_to_date, is_reserved, link, make_limit_files, unlink
from hypervisor.allocations.held import Held
from hypervisor.allocations.records import StoreError
from hypervisor.limits import Finding, LimitFileError, LimitFiles
from hypervisor.model import Allocation, EventType, OwnerKind, Refusal, RefusalReason


def make(ground: Ground, allocation: Allocation) -> Held:
    """Files, then the record, then armed: killed in between, nobody has been told, and the rest is removed or finished
    at the next start. Raises Refusal (STORAGE_FAILED); then nothing is left, or of reserved files all, not armed."""
    try:
        files = (
            _fill_reserved(ground, allocation) if is_reserved(allocation.uid) else make_limit_files(ground, allocation)
        )
    except LimitFileError as error:
        raise storage_failed(error) from error
    held = Held.of(allocation, files, fresh=True)
    try:
        ground.store.save(allocation, boot_id=ground.boot_id)
        files.shm.beat(time.monotonic_ns())
        files.shm.arm()
    except (StoreError, LimitFileError) as error:
        try:
            ground.store.remove(allocation.uid)
        except StoreError:
            pass  # the first error is told; a record without files is a finding at the next start
        if is_reserved(allocation.uid):
            files.close()  # a container has them already; they wait for another try
        else:
            _discard_files(ground, held)
        raise storage_failed(error) from error
    return held


def _fill_reserved(ground: Ground, allocation: Allocation) -> LimitFiles:
    """Limits in force in files that were reserved, the symlink of a Pod, not armed. Raises LimitFileError."""
    files = ground.directory.open(allocation.uid)
    try:
        bring_up_to_date(ground, allocation, files)
        for device, grant in enumerate(allocation.grants):
            files.shm.set_context(device, ground.context_bytes(grant.gpu_uuid))
        link(ground, allocation)
    except LimitFileError:
        files.close()
        raise
    return files


def put_in_force(ground: Ground, held: Held, after: Allocation) -> None:
    """The record, then the file: killed in between, the next start publishes what the record says. Raises Refusal
    (STORAGE_FAILED), and then what was in force is."""
    if held.files is None:
        raise Refusal(
            RefusalReason.STORAGE_FAILED,
            f"the limit file of '{after.spec.allocation_id}' can't be used: {held.finding}",
            remedy="release it and allocate anew",
        )
    before = held.allocation
    try:
        ground.store.save(after, boot_id=ground.boot_id)
    except StoreError as error:
        raise storage_failed(error) from error
    try:
        bring_up_to_date(ground, after, held.files)
    except LimitFileError as error:
        held.lose_files(error)
        try:
            ground.store.save(before, boot_id=ground.boot_id)
        except StoreError as second:
            raise storage_failed(second) from error
        raise storage_failed(error) from error
    held.allocation = after
    for memory, old, new in zip(held.devices, before.grants, after.grants, strict=True):
        if new.limit_vram_bytes is not None and (
            old.limit_vram_bytes is None or new.limit_vram_bytes < old.limit_vram_bytes
        ):
            memory.lowered = True


def remove(ground: Ground, held: Held) -> None:
    """The record, then the files: killed in between, they are removed as orphans. Raises Refusal (STORAGE_FAILED) when
    the record can't be removed, and then all is as it was."""
    try:
        ground.store.remove(held.allocation.uid, of_pod=held.allocation.spec.owner.kind is OwnerKind.POD)
    except StoreError as error:
        raise storage_failed(error) from error
    _discard_files(ground, held)


def _discard_files(ground: Ground, held: Held) -> None:
    unlink(ground, held.allocation)
    try:
        if held.files is not None:
            # For a process that opened them a moment ago: it gets no memory from an allocation that is gone.
            held.files.shm.set_revoked(True)
    except LimitFileError:
        pass  # it has lost its pages, and nobody can be in it for long
    try:
        if held.files is not None:
            held.files.close()
        ground.directory.remove(held.allocation.uid)
    except LimitFileError as error:
        ground.tell.event(
            held.reference,
            EventType.WARNING,
            "LimitFilesUnusable",
            f"the limit files of '{held.allocation.spec.allocation_id}' could not be removed, which the next start "
            f"tries again: {error}",
        )


def storage_failed(error: StoreError | LimitFileError) -> Refusal:
    """The refusal that trouble with a disk is."""
    full = isinstance(error, LimitFileError) and error.finding is Finding.NO_SPACE
    cause = error.__cause__
    full = full or (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT))
    return Refusal(
        RefusalReason.STORAGE_FAILED,
        str(error),
        remedy="free space there and try again" if full else "mend it and try again",
    )
