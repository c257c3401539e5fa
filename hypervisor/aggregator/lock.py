"""One aggregator to a store: a lock beside its file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypervisor.aggregator.store import StoreError


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the store until the block is left; the kernel lets go when we die in any way.

    Makes the directory where it is missing. Raises StoreError that names the holder when there is one.
    """
    place = store.with_name(store.name + ".lock")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StoreError(
            f"can't use the store {store}: {error.strerror}; name a file in another directory with --store"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreError(
                f"the store {store} is in use by the aggregator that runs as {who}; stop it, or name another with "
                "--store"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise StoreError(f"can't write the lock {place}: {error.strerror}; free some space") from error
        yield
    finally:
        os.close(descriptor)
