"""Probes: one look at a worker, and the verdict over several looks."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from hypervisor.model import Probe
from hypervisor.workers.asking import ask

# One look: "" when all is well, else what is wrong. Cancelled when it takes too long.
Look = Callable[[], Awaitable[str]]
_WORDS = 200
_MOST_BYTES = 4096
_turns: dict[Path, trio.CapacityLimiter] = {}  # one thread a file, also where it never comes back


def look_of(probe: Probe, environment: Mapping[str, str]) -> Look:
    """The look that a probe describes; a command runs in the worker's environment."""
    if probe.command:
        return lambda: _command(probe.command, environment)
    if probe.unix_socket:
        return lambda: _socket(probe.unix_socket)
    return lambda: _file(Path(probe.file))


async def once(look: Look, timeout_seconds: float) -> str:
    """One look with its deadline; a look that can't be made is one that failed. Cancelling ends it."""
    with trio.move_on_after(timeout_seconds):
        try:
            return await look()
        except (OSError, ValueError) as error:
            # What is to be looked at is the user's word: a name that is too long, or that nobody may look up.
            return f"it can't be looked at: {getattr(error, 'strerror', None) or error}"
    return f"no answer within {timeout_seconds:g} s"


@dataclass(slots=True)
class Strikes:
    """Counts failures in a row; what is wrong counts from the threshold on."""

    threshold: int
    count: int = 0
    reason: str = ""

    def note(self, wrong: str) -> bool:
        """Note one look; True when the threshold is reached."""
        self.count, self.reason = (self.count + 1, wrong) if wrong else (0, "")
        return self.count >= self.threshold

    def words(self, what: str) -> str:
        """For people, once the threshold is reached."""
        return f"{what} probe failed {self.count} times in a row: {self.reason}"


async def _command(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    try:
        status, said = await ask(command, environment=environment, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        return f"{command[0]} can't be run: {getattr(error, 'strerror', None) or error}"
    if status == 0:
        return ""
    words = " ".join(said.decode(errors="replace").split())[:_WORDS]
    return f"{Path(command[0]).name} ended with {status}" + (f": {words}" if words else "")


async def _socket(path: str) -> str:
    try:
        async with await trio.open_unix_socket(path) as stream:
            # Where nobody takes connections and the queue of them is full, connecting has failed and was not told.
            stream.socket.getpeername()
            return ""
    except OSError as error:
        why = "its queue is full" if error.errno == errno.ENOTCONN else error.strerror or error
        return f"{path[:_WORDS]} takes no connection: {why}"


async def _file(path: Path) -> str:
    """In a thread: a file system that does not answer holds up this look, and one thread, and nothing else."""
    turn = _turns.setdefault(path, trio.CapacityLimiter(1))
    try:
        there = await trio.to_thread.run_sync(path.exists, abandon_on_cancel=True, limiter=turn)
    finally:
        if not turn.borrowed_tokens and not turn.statistics().tasks_waiting:
            _turns.pop(path, None)
    return "" if there else f"{path} is not there"
