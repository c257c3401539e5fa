"""How a subcommand fails: one line that says what, why and what to do, and an exit status."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3


class CommandError(Exception):
    """Ends the command with its text as the only line on stderr."""

    def __init__(self, what: str, *, status: int = EXIT_FAILED) -> None:
        super().__init__(what)
        self.status = status
