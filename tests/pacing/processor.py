"""A processor for each cell: on the virtual clock one thread runs at a time; to wake it on another one costs most."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.pacing.build import FOLDER


@contextmanager
def one_processor() -> Iterator[None]:
    """What the calling thread starts meanwhile stays on one processor, that no other cell has if there are enough."""
    before = os.sched_getaffinity(0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        numbers = sorted(before)
        first = os.getpid() % len(numbers)  # other checkouts have locks of their own
        for number in numbers[first:] + numbers[:first]:
            lock = stack.enter_context((FOLDER / f"processor{number}").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.sched_setaffinity(0, {number})
            stack.callback(os.sched_setaffinity, 0, before)
            break
        yield
