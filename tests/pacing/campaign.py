"""Runs of the whole matrix: in an order by chance, in parts, and on from where the last one stopped."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.pacing.cell import Cell, Load
from tests.pacing.matrix import Choice, cell_of, every_choice, like, words_of
from tests.pacing.outcome import Outcome, keep, outcome_of, revision
from tests.pacing.result import Result
from tests.pacing.run import run

CHANCE = 7
MEMORY = Path("/dev/shm")  # machines and limit files lie there, as the daemon's do


def in_order(*, seed: int = CHANCE) -> list[Choice]:
    """The whole matrix in an order by chance, the same each time: however far a run gets, it says something of all."""
    choices = list(every_choice())
    random.Random(seed).shuffle(choices)
    return choices


def part(choices: Sequence[Choice], text: str) -> list[Choice]:
    """Part k of n, for text "k/n"; all for "". Raises ValueError."""
    if not text:
        return list(choices)
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"part {text!r} of the matrix: k/n is needed, with k from 1 to n")
    return list(choices[int(number) - 1 :: int(count)])


def left(choices: Iterable[Choice], known: Iterable[Outcome]) -> list[Choice]:
    """Those of which nothing is known, or only that they could not be measured."""
    done = {_key(each.values) for each in known if not each.why}
    return [choice for choice in choices if _key(words_of(choice)) not in done]


def distinct(choices: Iterable[Choice], known: Iterable[Outcome]) -> list[Choice]:
    """The first of those that have the same figures in the simulator; none where one of them is known."""
    seen = {like(choice) for choice, each in _of_the_matrix(known) if not each.why}
    found = []
    for choice in choices:
        if like(choice) not in seen:
            seen.add(like(choice))
            found.append(choice)
    return found


def with_those_alike(known: Sequence[Outcome]) -> list[Outcome]:
    """What was run, and what follows for cells that have the same figures in the simulator."""
    ran = {_key(each.values) for each in known}
    by_kind = {like(choice): each for choice, each in _of_the_matrix(known)}
    follows = [
        replace(by_kind[like(choice)], cell=str(cell_of(choice)), values=words_of(choice))
        for choice in every_choice()
        if like(choice) in by_kind and _key(words_of(choice)) not in ran
    ]
    return [*known, *follows]


def _of_the_matrix(known: Iterable[Outcome]) -> list[tuple[Choice, Outcome]]:
    """Those of cells that are in the matrix, with their values."""
    choices = {_key(words_of(choice)): choice for choice in every_choice()}
    return [(choices[_key(each.values)], each) for each in known if _key(each.values) in choices]


def to_repeat(choices: Iterable[Choice], known: Iterable[Outcome], now: str) -> list[Choice]:
    """Those that missed their target under another revision than this one."""
    again = {_key(each.values) for each in known if not each.holds and each.revision != now}
    return [choice for choice in choices if _key(words_of(choice)) in again]


def _key(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))


def outcomes(
    choices: Sequence[Choice], *, workers: int, seconds: float = float("inf"), file: Path | None = None
) -> Iterator[Outcome]:
    """Run these cells on the virtual clock, which does not see that others run, side by side; each outcome when it is
    there, and appended to the file. None is begun when so many seconds are over."""
    if not choices:
        return
    until, now = time.monotonic() + seconds, revision()
    measured(Cell(pods=(Load(percent=50),), seconds=1.0))  # builds what all need

    def one(choice: Choice) -> Outcome | None:
        if time.monotonic() >= until:
            return None
        cell = cell_of(choice)
        outcome = outcome_of(cell, measured(cell), values=words_of(choice), revision=now)
        if outcome.stall_ms > outcome.stall_bound_ms:
            outcome = with_control(cell, outcome)
        if file is not None:
            keep(file, outcome)
        return outcome

    pool = ThreadPoolExecutor(workers)
    try:
        yield from (outcome for outcome in pool.map(one, choices) if outcome is not None)
    finally:
        pool.shutdown(cancel_futures=True)  # what has begun ends


def with_control(cell: Cell, outcome: Outcome) -> Outcome:
    """With the longest stall of the same load without the limiter: the driver's queue has an end as well."""
    control = measured(cell, limited=False)
    return outcome if isinstance(control, str) else replace(outcome, stall_without_ms=control.longest_stall_ms)


def measured(cell: Cell, *, real: bool = False, limited: bool = True) -> Result | str:
    """A cell's result, or why there is none: one that fails does not hide the others."""
    try:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            return run(cell, Path(folder), real=real, limited=limited)
    except Exception as error:  # noqa: BLE001 - whatever it is belongs into the table
        return f"{type(error).__name__}: {error}"
