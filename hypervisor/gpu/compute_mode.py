"""The compute mode of a card: read and set by a short-lived process of its own, for a driver may hang in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import trio

from hypervisor.gpu import library

COMMAND = (sys.executable, "-P", "-m", "hypervisor", "gpu-mode")
EXCLUSIVE = "exclusive-process"
MODES = {0: "default", 2: "prohibited", 3: EXCLUSIVE}
READ = "read"  # in place of a mode: nothing is set
SECONDS = 20.0


class ComputeModeTool:
    """Runs the process and reads its answer. environment: in which NVML is found."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def read(self, uuid: str) -> tuple[str, str]:
        """The mode now, and why it could not be read, "" when it was."""
        answer = await self._run(uuid, READ)
        return answer.get("before", ""), answer.get("error", "")

    async def make_exclusive(self, uuid: str) -> tuple[str, str]:
        """The mode before, and why exclusive-process could not be set ("" when it is set and was read back)."""
        answer = await self._run(uuid, EXCLUSIVE)
        return answer.get("before", ""), answer.get("error", "")

    async def restore(self, uuid: str, mode: str) -> str:
        """Why a mode could not be set, "" when it is."""
        return (await self._run(uuid, mode)).get("error", "")

    async def _run(self, uuid: str, mode: str) -> dict[str, str]:
        with trio.move_on_after(SECONDS):
            done = await trio.run_process(
                [*COMMAND, uuid, mode],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=self._environment,
            )
            try:
                found: dict[str, str] = json.loads(done.stdout)
            except ValueError:
                return {"error": f"the process that sets it ended with {done.returncode}"}
            return found
        return {"error": f"the driver did not answer within {SECONDS:g} s"}


def set_mode(uuid: str, mode: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Set a card's mode and read it back: before, and error where it is not in force. READ only reads."""
    import pynvml  # here, where the process of its own comes: the daemon that starts it has no use for two megabytes

    number = next((number for number, name in MODES.items() if name == mode), None)
    if number is None and mode != READ:
        return {"error": f"{mode[:32]!r} is no mode that can be set"}
    try:
        library.load(environment)
        pynvml.nvmlInit()
    except (library.LibraryNotFoundError, pynvml.NVMLError) as error:
        return {"error": f"NVML can't be used: {error}"}
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        before = pynvml.nvmlDeviceGetComputeMode(handle)
        told = {"before": MODES.get(before, str(before))}
        if number is None:
            return told
        if before != number:
            pynvml.nvmlDeviceSetComputeMode(handle, number)
        after = pynvml.nvmlDeviceGetComputeMode(handle)
        if after != number:
            told["error"] = f"it was set to {mode} and reads {MODES.get(after, str(after))}"
    except pynvml.NVMLError as error:
        return {"error": f"NVML says: {error}"}
    finally:
        pynvml.nvmlShutdown()
    return told
