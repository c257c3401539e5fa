"""A bell that many may ring and one listens to; rings while nobody listens are one ring."""

from __future__ import annotations

import trio


class Bell:
    """For the trio main thread."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Wake who listens, or who listens next."""
        self._rung.set()

    async def wait(self, seconds: float) -> bool:
        """Until a ring, at most so long; was there one? Cancelled, it keeps the ring."""
        with trio.move_on_after(seconds):
            await self._rung.wait()
            self._rung = trio.Event()
            return True
        return False
