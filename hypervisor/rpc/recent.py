"""Messages that were made a moment ago, for callers that ask for the same at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from hypervisor.rpc.convert import Moment

Message = TypeVar("Message")
SPAN_SECONDS = 0.05  # ages in an answer are exact to this


class RecentMessages(Generic[Message]):
    """Messages by the objects that they are made of; all are forgotten together after SPAN_SECONDS.

    A message that was given out belongs to all who got it: copy it, never change it.
    """

    def __init__(self, make: Callable[..., Message]) -> None:
        self._make = make
        self._moment = Moment.now()
        # The objects are kept beside their message, so that their ids stay theirs.
        self._made: dict[tuple[int, ...], tuple[tuple[object, ...], Message]] = {}

    def get(self, *objects: object) -> Message:
        """make(*objects, moment), or what it gave a moment ago for the same objects."""
        if time.monotonic() - self._moment.monotonic > SPAN_SECONDS:
            self._moment = Moment.now()
            self._made.clear()
        key = tuple(map(id, objects))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (objects, self._make(*objects, self._moment))
        return found[1]
