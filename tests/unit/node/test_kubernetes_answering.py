"""An answer for a Pod that is not known waits for nothing, and lets the watch read what has come already."""

from __future__ import annotations

import trio
import trio.testing

from hypervisor.node.kubernetes_answering import CATCH_UP_TURNS, catch_up


def turns(*, known_after: int) -> int:
    """How often somebody else has run before the answer."""
    seen = 0

    async def watch() -> None:
        nonlocal seen
        while True:
            seen += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await catch_up(lambda: seen >= known_after)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())  # on which nothing that is waited for would ever come
    return seen


def test_what_is_known_is_answered_at_once() -> None:
    assert turns(known_after=0) <= 1  # as it is ended


def test_what_the_watch_has_to_read_still_is_known_for_the_answer() -> None:
    assert 3 <= turns(known_after=3) <= 4


def test_what_does_not_come_is_not_waited_for() -> None:
    assert CATCH_UP_TURNS - 1 <= turns(known_after=10**6) <= CATCH_UP_TURNS + 1
