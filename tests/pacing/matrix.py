"""The matrix of cells, and choices from it in which every pair (or triple) of values comes together."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.pacing.cell import MIXED, Cell, Load

FACTORS: Mapping[str, Sequence[Any]] = {
    "percent": (10, 25, 50, 75, 90),
    "kernels": ((20,), (100,), (1000,), (20000,), MIXED),
    "grid": (1, 108, 10_000),
    "form": ("plain", "graph", "cooperative"),
    "processes": (1, 2, 8),
    "streams": (1, 4),
    "devices": (1, 4),
    "beside": ("nobody", "a Pod without a limit", "a limited Pod"),
    "daemon_seconds": (None, 2.0),
}
# None of them is in the matrix: what holds only there is fitted to it.
OTHER_VALUES: Mapping[str, Sequence[Any]] = {
    "percent": (15, 35, 60, 82),
    "kernels": ((35,), (240,), (2_500,), (7_000,), (60, 60, 900)),
    "grid": (27, 216, 432),
    "form": ("plain", "graph", "cooperative"),
    "processes": (1, 3, 5),
    "streams": (1, 2, 3),
    "devices": (1, 2),
    "beside": ("nobody", "a Pod without a limit", "a limited Pod"),
    "daemon_seconds": (None, 3.5),
}
RESIDENT_BLOCKS = 864  # of 256 threads on the simulated card: no cooperative grid is larger

Choice = tuple[Any, ...]


def why_not(choice: Choice) -> str:
    """Why a cell can't exist; "" when it can."""
    values = dict(zip(FACTORS, choice, strict=True))
    if values["form"] == "cooperative" and values["grid"] > RESIDENT_BLOCKS:
        return "a cooperative grid beyond residency is refused by the driver"
    if values["devices"] > 1 and values["processes"] > 1:
        return "one process drives all devices of the exchange"
    if values["devices"] > 1 and values["form"] == "graph":
        return "the client's graphs are of one device"
    if values["devices"] > 1 and values["beside"] != "nobody":
        return "the neighbours use one device"
    return ""


def cell_of(choice: Choice) -> Cell:
    """The cell of one choice of values."""
    values = dict(zip(FACTORS, choice, strict=True))
    beside, daemon = values.pop("beside"), values.pop("daemon_seconds")
    pods = [Load(**values)]
    if beside == "a Pod without a limit":
        pods.append(Load(percent=None))
    elif beside == "a limited Pod":
        pods.append(Load(percent=100 - values["percent"]))
    return Cell(pods=tuple(pods), daemon_seconds=daemon)


@functools.cache
def every_choice() -> tuple[Choice, ...]:
    """The whole matrix, as values of its factors."""
    return tuple(choice for choice in itertools.product(*FACTORS.values()) if not why_not(choice))


def other_choices(count: int, *, seed: int = 3) -> list[Choice]:
    """So many cells by chance, the same each time, all of whose values are not in the matrix."""
    choices = [choice for choice in itertools.product(*OTHER_VALUES.values()) if not why_not(choice)]
    random.Random(seed).shuffle(choices)
    return choices[:count]


def every_cell() -> Iterator[Cell]:
    """The whole matrix."""
    return map(cell_of, every_choice())


def words_of(choice: Choice) -> dict[str, str]:
    """The values of a choice by factor, as people and files know them."""
    return {factor: _word(factor, value) for factor, value in zip(FACTORS, choice, strict=True)}


def _word(factor: str, value: Any) -> str:
    if factor == "kernels":
        return "mix" if value == MIXED else ",".join(map(str, value)) + " us"
    if factor == "percent":
        return f"{value:g} %"
    if factor == "daemon_seconds":
        return "stays" if value is None else f"{value:g} s"
    return str(value)


def like(choice: Choice) -> Choice:
    """The one that stands for all cells that the simulator gives the same figures.

    A cooperative launch takes the way of a plain one; kernels of one stream run one after the other however wide they
    are, and those of four streams beside each other while they fit.
    """
    values = dict(zip(FACTORS, choice, strict=True))
    narrow = values["streams"] == 1 or values["streams"] * values["grid"] <= RESIDENT_BLOCKS
    values["grid"] = 108 if narrow else values["grid"]
    values["form"] = "plain" if values["form"] == "cooperative" else values["form"]
    return tuple(values.values())


def covering(strength: int, *, seed: int = 1) -> list[Cell]:
    """Cells in which all values of any `strength` factors come together; greedy, and the same each time."""
    return [cell_of(choice) for choice in covering_choices(strength, seed=seed)]


def covering_choices(strength: int, *, seed: int = 1, candidates: int = 40) -> list[Choice]:
    """The same as values of the factors."""
    chance = random.Random(seed)
    columns = list(itertools.combinations(range(len(FACTORS)), strength))
    factors = list(FACTORS.values())
    possible = [
        {(columns_of, values) for values in itertools.product(*(factors[column] for column in columns_of))}
        for columns_of in columns
    ]
    missing = set().union(*possible)
    chosen: list[Choice] = []
    while missing:
        best: Choice | None = None
        gain: set[Any] = set()
        for target in itertools.islice(_shuffled(missing, chance), candidates):
            choice = _around(target, factors, chance)
            if choice is None:
                missing.discard(target)  # these values can't come together
                continue
            new = {(c, tuple(choice[column] for column in c)) for c in columns} & missing
            if len(new) > len(gain):
                best, gain = choice, new
        if best is not None:
            chosen.append(best)
            missing -= gain
    return chosen


def _shuffled(missing: set[Any], chance: random.Random) -> Iterator[Any]:
    ordered = sorted(missing, key=repr)
    chance.shuffle(ordered)
    yield from ordered


def _around(target: Any, factors: Sequence[Sequence[Any]], chance: random.Random) -> Choice | None:
    """A cell that can exist with the values of the target."""
    columns, values = target
    for _ in range(60):
        choice = [chance.choice(list(factor)) for factor in factors]
        for column, value in zip(columns, values, strict=True):
            choice[column] = value
        if not why_not(tuple(choice)):
            return tuple(choice)
    return None
