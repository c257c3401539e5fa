"""The checkpoint interface of libcuda.so.1, from CUDA 12.8 on; called in a process of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

SONAME = "libcuda.so.1"
SINCE = "CUDA 12.8 (driver 570)"
LOCK_MILLISECONDS = 5000
_OUT_OF_MEMORY = 2


class State(IntEnum):
    """States of a process, as the driver numbers them."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class CheckpointError(Exception):
    """The driver has not done it; the text says what and why."""


class _LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs: a time limit in milliseconds, and reserved words that are zero."""

    _fields_ = (
        ("timeout", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


@dataclass(frozen=True, slots=True)
class Driver:
    """The library, initialised. Methods raise CheckpointError."""

    library: ctypes.CDLL

    @classmethod
    def open(cls) -> Driver:
        """Load and initialise the driver."""
        try:
            library = ctypes.CDLL(SONAME)
        except OSError as error:
            raise CheckpointError(f"{SONAME} can't be loaded: {error}") from error
        if not hasattr(library, "cuCheckpointProcessLock"):
            raise CheckpointError(f"the driver is older than {SINCE}, from which on it can checkpoint processes")
        code = library.cuInit(0)
        if code != 0:
            raise CheckpointError(f"cuInit gives CUDA error {code}")
        return cls(library)

    def state(self, pid: int) -> State:
        """Where a process is."""
        found = ctypes.c_int(-1)
        self._done("GetState", pid, self.library.cuCheckpointProcessGetState(pid, ctypes.byref(found)))
        return State(found.value)

    def freeze(self, pid: int) -> None:
        """Lock a process and move what it holds on GPUs to host memory; unlocked again when that fails."""
        arguments = _LockArguments(timeout=LOCK_MILLISECONDS)
        self._done("Lock", pid, self.library.cuCheckpointProcessLock(pid, ctypes.byref(arguments)))
        try:
            self._done("Checkpoint", pid, self.library.cuCheckpointProcessCheckpoint(pid, None))
        except CheckpointError:
            self.library.cuCheckpointProcessUnlock(pid, None)
            raise

    def thaw(self, pid: int) -> None:
        """Bring back what a process held, and let it go on, as one that runs does. Without room it stays frozen."""
        state = self.state(pid)
        if state is State.RUNNING:
            return
        if state is State.CHECKPOINTED:
            self._done("Restore", pid, self.library.cuCheckpointProcessRestore(pid, None))
        self._done("Unlock", pid, self.library.cuCheckpointProcessUnlock(pid, None))

    def _done(self, what: str, pid: int, code: int) -> None:
        if code == 0:
            return
        why = "there is no room for it on its GPU" if code == _OUT_OF_MEMORY else f"CUDA error {code}"
        raise CheckpointError(f"cuCheckpointProcess{what} of process {pid}: {why}")


def carry_out(action: str, pids: Sequence[int]) -> dict[str, object]:
    """Freeze or thaw all processes or none. Gives done, and error where it was not: then done are those for which it
    could not be undone."""
    done: list[int] = []
    try:
        driver = Driver.open()
        act, undo = (driver.freeze, driver.thaw) if action == "freeze" else (driver.thaw, driver.freeze)
        try:
            for pid in pids:
                act(pid)
                done.append(pid)
        except CheckpointError:
            for pid in tuple(reversed(done)):
                with suppress(CheckpointError):
                    undo(pid)
                    done.remove(pid)
            raise
    except CheckpointError as error:
        return {"done": done, "error": str(error)}
    return {"done": done}
