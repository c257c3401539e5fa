"""The control protocol: commands on the program's stdin, answers on its stdout, each with a deadline."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

_ONE_EACH = 2
_REFUSED = re.compile(r"fail|invalid|unknown|not found|error|denied|unsupported", re.IGNORECASE)


class ControlError(Exception):
    """A command was not carried out; the text says which, why, and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How the control daemon of one card is spoken to."""

    program: str
    pipe_directory: Path
    log_directory: Path
    environment: Mapping[str, str]
    answer_seconds: float

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which daemon and commands run."""
        return {
            **self.environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }

    async def ask(self, command: str) -> str:
        """The answer to a command, "" where it has none. Raises ControlError. Cancelling ends the wait."""
        with trio.move_on_after(self.answer_seconds):
            try:
                done = await trio.run_process(
                    [self.program],
                    stdin=f"{command}\n".encode(),
                    capture_stdout=True,
                    stderr=subprocess.STDOUT,
                    check=False,
                    env=self.variables,
                )
            except OSError as error:
                raise ControlError(f"{self.program} can't be run: {error.strerror}") from error
            answer = done.stdout.decode(errors="replace").strip()
            if done.returncode != 0 or _REFUSED.search(answer):
                raise ControlError(f"'{command}' was answered: {answer or f'exit status {done.returncode}'}")
            return answer
        raise ControlError(f"'{command}' had no answer within {self.answer_seconds:g} s")

    async def servers(self) -> tuple[int, ...]:
        """Pids of the servers. Raises ControlError."""
        return _pids(await self.ask("get_server_list"))

    async def status(self, server: int) -> str:
        """INITIALIZING, ACTIVE or FAULT. Raises ControlError."""
        return (await self.ask(f"get_server_status {server}")).upper()

    async def clients(self, server: int) -> tuple[int, ...]:
        """Pids of a server's clients. Raises ControlError."""
        return _pids(await self.ask(f"get_client_list {server}"))

    async def server(self, server: int) -> tuple[str, tuple[int, ...]]:
        """A server's status and its clients, in one run of the program. Raises ControlError."""
        answer = await self.ask(f"get_server_status {server}\nget_client_list {server}")
        lines = answer.split("\n", 1)
        return lines[0].strip().upper(), _pids(lines[1]) if len(lines) > 1 else ()

    async def limits(self, percent: str, memory: str) -> tuple[float, int | None]:
        """The percentage and the MiB that two commands read, each with one line; MiB None: no limit. Raises
        ControlError."""
        lines = (await self.ask(f"{percent}\n{memory}")).splitlines()
        if len(lines) != _ONE_EACH:
            raise ControlError(f"'{percent}' and '{memory}' were answered by {len(lines)} lines")
        found = re.search(r"(\d+)\s*([MG])", lines[1])
        mebibytes = None if found is None else int(found.group(1)) << (10 if found.group(2) == "G" else 0)
        return _number(percent, lines[0]), mebibytes


def _pids(answer: str) -> tuple[int, ...]:
    return tuple(int(line) for line in answer.split() if line.isdecimal())


def _number(command: str, answer: str) -> float:
    try:
        return float(answer.rsplit(maxsplit=1)[-1].rstrip("%"))
    except (IndexError, ValueError):
        raise ControlError(f"'{command}' was answered {answer!r}, which is no number") from None
