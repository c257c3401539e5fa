"""From one start of NVML to the next without a gap: for a card that came back, which only a new start sees as it is.

The reader that stands by starts NVML anew and takes over when it has; until then the other one reads on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from hypervisor.gpu.fleet import Fleet
from hypervisor.gpu.spare import Spare

# So long the one that stands by may take. Then it hangs in the card that came back, which has to come after the others.
PATIENCE_SECONDS = 5.0


class ChangeOver:
    """At most one at a time. For the trio main thread."""

    def __init__(
        self, spare: Spare, fleet: Fleet, *, end_readers: Callable[[], None], renew: Callable[[], None]
    ) -> None:
        """end_readers lets the one that stands by take over; renew starts a new process, for which all cards wait."""
        self._spare = spare
        self._fleet = fleet
        self._end_readers = end_readers
        self._renew = renew
        self._wanted = trio.Event()
        self._scope = trio.CancelScope()

    def begin(self) -> None:
        """Have it done soon; what is wanted again meanwhile is done with it."""
        self._spare.renew()
        self._wanted.set()

    def cancel(self) -> None:
        """It has become needless: NVML is started anew in another way."""
        self._scope.cancel()

    async def run(self) -> None:
        """For ever. Cancelling leaves all as it is."""
        while True:
            await self._wanted.wait()
            with trio.CancelScope() as self._scope:
                await self._change()
            self._wanted = trio.Event()

    async def _change(self) -> None:
        if not await self._is_ready():
            for card in self._fleet.cards.values():
                if card.let_go and not card.detached:
                    self._fleet.on_suspect(card.slot, until=time.monotonic())
            await self._spare.discard()
            self._spare.renew()
            if not await self._is_ready():
                self._renew()
                return
        self._end_readers()

    async def _is_ready(self) -> bool:
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._spare.wait_ready()
        return self._spare.ready
