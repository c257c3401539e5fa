"""The right of way of short requests: what can wait lets them pass before its next piece of work.

A request that somebody waits for comes on the asyncio loop and is answered in trio, where long rounds are made of many
small pieces. Between two of them the rounds call give(). Until the answer is out, trio then rests, so that the loop's
thread gets the interpreter as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

# What takes longer waits for a driver or a server itself, and has nothing from it when others wait too.
LONGEST_SECONDS = 0.05
_REST_SECONDS = 0.0005


class RightOfWay:
    """asked() on the loop, give() in trio."""

    def __init__(self) -> None:
        # By request, when it came. Changed on the loop only; one operation of a dict at a time is safe from trio.
        self._asked: dict[object, float] = {}

    @contextmanager
    def asked(self) -> Iterator[None]:
        """A request is under way while the block runs."""
        request = object()
        self._asked[request] = time.monotonic()
        try:
            yield
        finally:
            del self._asked[request]

    @property
    def is_asked(self) -> bool:
        """Is there a request, and not for long?"""
        if not self._asked:
            return False
        youngest = max(tuple(self._asked.values()), default=float("-inf"))
        return time.monotonic() - youngest < LONGEST_SECONDS

    async def give(self) -> None:
        """Let others run, and return when no short request waits, or soon where they never end. Cancel-safe."""
        await trio.lowlevel.checkpoint()
        began = time.monotonic()
        # An event would have to be set from the thread of the loop, which takes as long as it is waited for.
        while self.is_asked and time.monotonic() - began < LONGEST_SECONDS:  # noqa: ASYNC110
            await trio.sleep(_REST_SECONDS)
