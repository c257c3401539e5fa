"""The daemon's end of a gpu-reader: starts the process, asks one thing at a time, ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import trio

from hypervisor.gpu import wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMMAND = (sys.executable, "-P", "-m", "hypervisor", "gpu-reader")

# A process that was killed and is still there sits in the driver; it is left behind after this.
END_SECONDS = 1.0


class ReaderGoneError(Exception):
    """The process ended, or said something that is no reply."""


class ReaderHungError(Exception):
    """No reply came in time."""


class ReaderProcess:
    """A running gpu-reader. Not for use by several tasks at a time."""

    def __init__(self, process: trio.Process, requests: trio.abc.SendStream, replies: trio.abc.ReceiveStream) -> None:
        self.process = process
        self._requests = requests
        self._replies = replies
        self._received = bytearray()

    async def ask(self, request: wire.Request, *, timeout: float) -> wire.Reply:
        """The reply to a request.

        Raises ReaderHungError after `timeout` seconds and ReaderGoneError when the process is gone. After either, and
        after a cancellation, the process has to be ended, or its reply taken with `reply`.
        """
        try:
            with trio.move_on_after(timeout):
                # Far smaller than a pipe, which is empty between two requests: this is sent whole or not at all.
                await self._requests.send_all(wire.frame(request))
                return await self._receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ReaderGoneError("it ended while it was asked") from error
        raise ReaderHungError(f"no answer within {timeout:g} s")

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
            part = await self._replies.receive_some()
            if not part:
                raise ReaderGoneError("it ended without an answer")
            self._received += part

    def _take(self, length: int) -> wire.Reply:
        end = wire.LENGTH.size + length
        body = bytes(self._received[wire.LENGTH.size : end])
        del self._received[:end]
        try:
            return wire.reply_decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ReaderGoneError(f"its reply can't be read: {error}") from error


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
    environment: Mapping[str, str], lingering: LingeringProcesses, *, spare: trio.Process | None = None
) -> AsyncIterator[ReaderProcess]:
    """A gpu-reader for the length of the block, killed at its end: the spare where there is one. Raises OSError.

    The end waits a second for the process to be gone, also when cancelled, and then hands it to `lingering`: a process
    that hangs in the driver can't be ended before the driver lets it go.
    """
    process = spare or await start_process(environment)
    if process.stdin is None or process.stdout is None:
        raise AssertionError("pipes were asked for")
    try:
        async with process.stdin, process.stdout:
            yield ReaderProcess(process, process.stdin, process.stdout)
    finally:
        process.kill()
        with trio.move_on_after(END_SECONDS, shield=True):
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
