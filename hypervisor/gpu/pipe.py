"""The daemon's end of a gpu-reader: starts the process, asks one thing at a time, ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from hypervisor.gpu import wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMMAND = (sys.executable, "-P", "-m", "hypervisor", "gpu-reader")

# A process that was killed and is still there sits in the driver; it is left behind after this.
END_SECONDS = 1.0
READ_BYTES = 65536


class ReaderGoneError(Exception):
    """The process ended, or said something that is no reply."""


class ReaderWasGoneError(ReaderGoneError):
    """The process had ended before it was asked: what was to be asked has no part in that."""


class ReaderHungError(Exception):
    """No reply came in time."""


class ReaderProcess:
    """A running gpu-reader. Not for use by several tasks at a time.

    It is asked a dozen times a second, so its pipes are read and written without trio's streams, which take three turns
    of the loop for what is one here. They stay the streams' to close.
    """

    def __init__(
        self, process: trio.Process, requests: trio.lowlevel.FdStream, replies: trio.lowlevel.FdStream
    ) -> None:
        self.process = process
        self._requests = requests
        self._replies = replies
        self._received = bytearray()
        self._schedules: list[int] | None = None  # open files, one a thread
        self.owes = False  # a reply to a request whose asker was cancelled, or waited in vain

    @classmethod
    def of(cls, process: trio.Process) -> ReaderProcess:
        """By the pipes of a process that start_process gave."""
        requests, replies = process.stdin, process.stdout
        # Both were asked for as pipes.
        assert isinstance(requests, trio.lowlevel.FdStream)
        assert isinstance(replies, trio.lowlevel.FdStream)
        return cls(process, requests, replies)

    @property
    def name(self) -> str:
        """Which reader it is, beside others of the same daemon."""
        return f"reader {self.process.pid}"

    def starved_seconds(self) -> float:
        """How long its threads have waited for a CPU so far, which no driver is to blame for; 0 where that is not told.

        To be asked after the first reply only: by then it has all its threads.
        """
        if self._schedules is None:
            self._schedules = _schedules(self.process.pid)
        try:
            return sum(int(os.pread(each, 64, 0).split()[1]) for each in self._schedules) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        """Let go of what was opened to watch the process."""
        for each in self._schedules or ():
            os.close(each)
        self._schedules = []

    async def ask(self, request: wire.Request, *, timeout: float) -> wire.Reply:
        """The reply to a request.

        Raises ReaderHungError after `timeout` seconds and ReaderGoneError when the process is gone, ReaderWasGoneError
        when it was before the request could be sent. After any of them, and after a cancellation, the process has to be
        ended, or its reply taken with `reply` where it owes one.
        """
        try:
            self._send(wire.frame(request))
        except (OSError, trio.ClosedResourceError) as error:
            raise ReaderWasGoneError("it ended while nothing was asked of it") from error
        try:
            with trio.move_on_after(timeout):
                self.owes = True
                return await self._receive()
        except (OSError, trio.ClosedResourceError) as error:
            raise ReaderGoneError("it ended while it was asked") from error
        raise ReaderHungError(f"no answer within {timeout:g} s")

    def _send(self, frame: bytes) -> None:
        """Far smaller than a pipe, which is empty between two requests: this is sent whole or not at all."""
        if os.write(self._requests.fileno(), frame) != len(frame):
            raise BrokenPipeError("the pipe is full of requests that nobody takes")

    async def reply(self, *, timeout: float) -> wire.Reply:
        """Go on waiting for the reply to a request for which `ask` raised ReaderHungError. Raises as `ask` does."""
        with trio.move_on_after(timeout):
            return await self._receive()
        raise ReaderHungError(f"no answer within further {timeout:g} s")

    async def _receive(self) -> wire.Reply:
        """The next reply. Cancelling loses nothing of it: what has come stays for the next call."""
        while True:
            if len(self._received) >= wire.LENGTH.size:
                (length,) = wire.LENGTH.unpack_from(self._received)
                if length > wire.MAX_FRAME_BYTES:
                    raise ReaderGoneError(f"a reply of {length} bytes can't be one")
                if len(self._received) >= wire.LENGTH.size + length:
                    return self._take(length)
            await trio.lowlevel.wait_readable(self._replies.fileno())
            try:
                part = os.read(self._replies.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            if not part:
                raise ReaderGoneError("it ended without an answer")
            self._received += part

    def _take(self, length: int) -> wire.Reply:
        end = wire.LENGTH.size + length
        body = bytes(self._received[wire.LENGTH.size : end])
        del self._received[:end]
        self.owes = False
        try:
            return wire.reply_decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ReaderGoneError(f"its reply can't be read: {error}") from error


def _schedules(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC) for task in tasks]
    except OSError:
        return []  # it is gone, or the kernel keeps no such account


async def start_process(environment: Mapping[str, str]) -> trio.Process:
    """A gpu-reader that waits to be asked. Raises OSError."""
    return await trio.lowlevel.open_process(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(environment),
        # An interrupt from the terminal is for the daemon, which ends its reader itself.
        start_new_session=True,
    )


@asynccontextmanager
async def open_reader_process(
    environment: Mapping[str, str], lingering: LingeringProcesses, *, taken: ReaderProcess | None = None
) -> AsyncIterator[ReaderProcess]:
    """A gpu-reader for the length of the block, killed at its end: the one that was taken over from a spare, or a new
    one. Raises OSError. The end is that of end()."""
    reader = taken or ReaderProcess.of(await start_process(environment))
    try:
        yield reader
    finally:
        reader.close()
        await end(reader.process, lingering)


async def end(process: trio.Process, lingering: LingeringProcesses) -> None:
    """Kill a process and wait a second for it to be gone, also when cancelled; then it is handed to `lingering`: one
    that hangs in the driver can't be ended before the driver lets it go."""
    process.kill()
    with trio.CancelScope(shield=True):
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()
        with trio.move_on_after(END_SECONDS):
            await process.wait()
    if process.returncode is None:
        lingering.add(process)


class LingeringProcesses:
    """Killed processes that have not ended yet, and with them their handles of the driver."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._processes: set[trio.Process] = set()
        self._changed = trio.Event()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._processes)

    def add(self, process: trio.Process) -> None:
        """Wait for a process in the background, until the nursery ends."""
        self._processes.add(process)
        self._nursery.start_soon(self._reap, process)

    async def _reap(self, process: trio.Process) -> None:
        await process.wait()
        self._processes.discard(process)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_none(self) -> None:
        """Wait until all have ended. Cancelling stops the waiting and nothing else."""
        while self._processes:
            await self._changed.wait()
