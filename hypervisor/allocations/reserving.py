"""Reserved limit files: made before it is known whose they are, and empty until then.

They are not armed, so that a process in them waits; the limits come with the grant. Who reserved them keeps account of
them and discards those that nobody gets; adoption leaves them alone.
"""

from __future__ import annotations

import os

from hypervisor.allocations.adoption import Ground, is_reserved
from hypervisor.allocations.storing import storage_failed
from hypervisor.limits import Access, FileIsolation, LimitFileError, LimitSet

_NOTHING = LimitSet(isolation=FileIsolation.SOFT, devices=(), host_memory_limit_bytes=None, revision=0)


def reserve(ground: Ground, uid: str) -> str:
    """Make the files of a name; those that are there and of this boot stay as they are. Gives the directory.

    Raises Refusal (STORAGE_FAILED).
    """
    if not is_reserved(uid):
        raise ValueError(f"{uid!r} is no name for reserved files")
    try:
        ground.directory.open(uid).close()
    except LimitFileError:
        try:
            # Not there, half made, or of an earlier boot: nobody is in them.
            ground.directory.remove(uid)
            ground.directory.create(
                uid,
                uid,
                _NOTHING,
                access=Access(owner_uid=None, mounted_only=os.geteuid() == 0),
                context_bytes=(),
            ).close()
        except LimitFileError as second:
            raise storage_failed(second) from second
    return str(ground.directory.path(uid))


def discard(ground: Ground, uid: str) -> None:
    """Remove the files of a name that was granted to nobody. Raises Refusal (STORAGE_FAILED)."""
    try:
        ground.directory.remove(uid)
    except LimitFileError as error:
        raise storage_failed(error) from error
