"""Where the demonstration writes: a table redrawn in place on a terminal, and now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

PLAIN_INTERVAL_SECONDS = 5.0


class Screen:
    """Lines that stay, and one table that moves with time."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._terminal = out.isatty()
        self._drawn = 0
        self._shown_at = float("-inf")

    def say(self, line: str) -> None:
        """A line that stays."""
        self._erase()
        print(line, file=self._out, flush=True)

    def show(self, lines: Sequence[str]) -> None:
        """The table as it is now. Where it can't be redrawn, it is printed every few seconds."""
        if self._terminal:
            self._erase()
            print("\n".join(lines), file=self._out, flush=True)
            self._drawn = len(lines)
        elif self._clock() - self._shown_at >= PLAIN_INTERVAL_SECONDS:
            self._shown_at = self._clock()
            print("\n".join(lines), file=self._out, flush=True)

    def _erase(self) -> None:
        if self._drawn:
            # Up to the table's first line, and clear from there to the end of the screen.
            print(f"\x1b[{self._drawn}F\x1b[0J", end="", file=self._out)
            self._drawn = 0
