"""The control protocol: commands on the program's stdin, answers on its stdout, each with a deadline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from hypervisor.workers.asking import ask

_MOST_BYTES = 64 * 1024  # several times the pids of all clients that there may be
_WORDS = 500
_STATUS = "get_server_status"  # not in programs of branch 535
_REFUSED = re.compile(r"fail|invalid|unknown|not found|error|denied|unsupported", re.IGNORECASE)


class ControlError(Exception):
    """A command was not carried out; the text says which, why, and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Memory as the program tells it: from 1 GiB on in whole GiB, rounded down."""

    mebibytes: int
    step: int

    def tells(self, mebibytes: int) -> bool:
        """Whether this is what is told of a limit."""
        return mebibytes - mebibytes % self.step == self.mebibytes


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

    async def ask(self, command: str, *, optional: str = "") -> str:
        """The answer to a command, "" where it has none. optional: a verb that older programs don't know, whose
        refusal is left in the answer. Raises ControlError. Cancelling ends the wait."""
        with trio.move_on_after(self.answer_seconds):
            try:
                status, said = await ask(
                    [self.program], environment=self.variables, told=f"{command}\n".encode(), most_bytes=_MOST_BYTES
                )
            except OSError as error:
                raise ControlError(f"{self.program} can't be run: {error.strerror}") from error
            answer = said.decode(errors="replace").strip()
            judged = answer.replace(_unknown(optional), "") if optional else answer
            if status != 0 or len(said) == _MOST_BYTES or _REFUSED.search(judged):
                raise ControlError(f"'{command}' was answered: {answer[:_WORDS] or f'exit status {status}'}")
            return answer
        raise ControlError(f"'{command}' had no answer within {self.answer_seconds:g} s")

    async def servers(self) -> tuple[int, ...]:
        """Pids of the servers. Raises ControlError."""
        return _pids(await self.ask("get_server_list"))

    async def status(self, server: int) -> str:
        """INITIALIZING, ACTIVE or FAULT. Raises ControlError."""
        return _status(await self.ask(f"get_server_status {server}", optional=_STATUS))

    async def clients(self, server: int) -> tuple[int, ...]:
        """Pids of a server's clients. Raises ControlError."""
        return _pids(await self.ask(f"get_client_list {server}"))

    async def server(self, server: int) -> tuple[str, tuple[int, ...]]:
        """A server's status and its clients, in one run of the program. Raises ControlError."""
        answer = await self.ask(f"get_server_status {server}\nget_client_list {server}", optional=_STATUS)
        status, _, clients = answer.partition("\n")
        return _status(status), _pids(clients)

    async def limits(self, percent: str, memory: str) -> tuple[float, Amount | None]:
        """The percentage and the memory that two commands read; None: no limit, which has no line. Raises
        ControlError."""
        lines = (await self.ask(f"{percent}\n{memory}")).splitlines()
        if not lines:
            raise ControlError(f"'{percent}' had no answer")
        found = re.search(r"\b(\d{1,12})\s*([MG])", lines[-1]) if len(lines) > 1 else None
        step = 1024 if found is not None and found.group(2) == "G" else 1
        amount = None if found is None else Amount(mebibytes=int(found.group(1)) * step, step=step)
        return _number(percent, lines[0]), amount


def _unknown(verb: str) -> str:
    return f'Unknown command "{verb}"'


def _status(answer: str) -> str:
    """A server that is listed and whose program knows no states counts as active."""
    return "ACTIVE" if answer.strip() == _unknown(_STATUS) else answer.strip().upper()


def _pids(answer: str) -> tuple[int, ...]:
    return tuple(int(word) for word in answer.split() if word.isdecimal() and len(word) < 12)


def _number(command: str, answer: str) -> float:
    try:
        return float(answer.rsplit(maxsplit=1)[-1].rstrip("%"))
    except (IndexError, ValueError):
        raise ControlError(f"'{command}' was answered {answer!r}, which is no number") from None
