"""Programs that are asked something and end: of what they say little is kept, and nothing is left running of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

_LAST_WORDS_SECONDS = 0.2  # the pipe ends with the process, unless somebody else holds it


async def ask(
    command: Sequence[str], *, environment: Mapping[str, str], told: bytes = b"", most_bytes: int
) -> tuple[int, bytes]:
    """The exit status of a command and the beginning of what it says on stdout and stderr, however much that is.

    told: its input. Raises OSError and ValueError where it can't be run. Cancelling ends it, with all in its session.
    """
    kept, failed = bytearray(), None
    reading, writing = os.pipe()
    async with trio.lowlevel.FdStream(reading) as output, trio.open_nursery() as nursery:
        try:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    list(command),
                    stdin=told or subprocess.DEVNULL,
                    stdout=writing,
                    stderr=subprocess.STDOUT,
                    check=False,
                    env=dict(environment),
                    start_new_session=True,
                    deliver_cancel=_end_group,
                )
            )
        except (OSError, ValueError) as error:
            failed = error  # raised outside of the nursery, which would put it into a group
        finally:
            os.close(writing)
        if failed is None:
            heard = trio.Event()
            nursery.start_soon(_keep, output, kept, most_bytes, heard)
            await process.wait()
            await _end_group(process)
            with trio.move_on_after(_LAST_WORDS_SECONDS):
                await heard.wait()
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return int(process.returncode), bytes(kept)


async def _end_group(process: trio.Process) -> None:
    """What it has started, too; what has left its session lives on."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await trio.lowlevel.checkpoint()


async def _keep(output: trio.lowlevel.FdStream, kept: bytearray, most: int, heard: trio.Event) -> None:
    async for part in output:
        kept += part[: max(most - len(kept), 0)]
    heard.set()
