"""Freezing and thawing in a process of its own, with a deadline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import trio

COMMAND = (sys.executable, "-P", "-m", "hypervisor", "checkpoint")
SECONDS = 60.0  # tens of GiB go over PCI Express


class FreezeError(Exception):
    """It was not done; the text says why. uncertain: it may have been for some of the processes."""

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class Freezer:
    """environment: in which the driver's libcuda.so.1 is found."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def freeze(self, pids: Sequence[int]) -> None:
        """Move the VRAM of processes to host memory, of all or of none. Cancelled, it may have been done. Raises
        FreezeError."""
        await self._run("freeze", pids)

    async def thaw(self, pids: Sequence[int]) -> None:
        """Bring it back, and let them go on. Raises FreezeError."""
        await self._run("thaw", pids)

    async def _run(self, action: str, pids: Sequence[int]) -> None:
        with trio.move_on_after(SECONDS):
            done = await trio.run_process(
                [*COMMAND, action, *map(str, pids)],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=self._environment,
            )
            try:
                answer = json.loads(done.stdout)
            except ValueError as error:
                raise FreezeError(f"the process that does it ended with {done.returncode}", uncertain=True) from error
            if "error" in answer:
                raise FreezeError(str(answer["error"]), uncertain=bool(answer.get("done")))
            return
        raise FreezeError(f"the driver has not done it within {SECONDS:g} s", uncertain=True)
