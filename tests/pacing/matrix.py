"""The matrix of cells, and choices from it in which every pair (or triple) of values comes together."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
Together = tuple[tuple[int, ...], tuple[Any, ...]]  # some columns, and their values


def why_not(choice: Choice) -> str:
    """Why a cell can't exist; "" when it can."""
    values = dict(zip(FACTORS, choice, strict=True))
    if values["form"] == "cooperative" and values["grid"] > RESIDENT_BLOCKS:
        return "a cooperative grid beyond residency is refused by the driver"
    if values["devices"] > 1 and max(values["processes"], values["devices"]) % min(
        values["processes"], values["devices"]
    ):
        return "processes and devices of an exchange that don't come out even"
    return ""


def left_out() -> Mapping[str, int]:
    """How many combinations of the matrix can't exist, by the reason."""
    return Counter(why for choice in itertools.product(*FACTORS.values()) if (why := why_not(choice)))


def cell_of(choice: Choice) -> Cell:
    """The cell of one choice of values."""
    values = dict(zip(FACTORS, choice, strict=True))
    beside, daemon = values.pop("beside"), values.pop("daemon_seconds")
    pods = [Load(**values)]
    if beside == "a Pod without a limit":
        pods.append(Load(percent=None, devices=values["devices"]))
    elif beside == "a limited Pod":
        pods.append(Load(percent=100 - values["percent"], devices=values["devices"]))
    return Cell(pods=tuple(pods), daemon_seconds=daemon)


@functools.cache
def every_choice() -> tuple[Choice, ...]:
    """The whole matrix, as values of its factors."""
    return tuple(choice for choice in itertools.product(*FACTORS.values()) if not why_not(choice))


def other_choices(count: int, *, seed: int = 3) -> list[Choice]:
    """So many cells by chance, the same each time, all of whose values are not in the matrix. First those that were
    there before exchanges had processes, graphs and neighbours, so that figures stay comparable."""
    chance = random.Random(seed)
    possible = [choice for choice in itertools.product(*OTHER_VALUES.values()) if not why_not(choice)]
    later = [choice for choice in possible if _is_wide_exchange(choice)]
    sooner = [choice for choice in possible if not _is_wide_exchange(choice)]
    for choices in (sooner, later):
        chance.shuffle(choices)
    return [*sooner, *later][:count]


def _is_wide_exchange(choice: Choice) -> bool:
    values = dict(zip(FACTORS, choice, strict=True))
    narrow = values["processes"] == 1 and values["form"] != "graph" and values["beside"] == "nobody"
    return values["devices"] > 1 and not narrow


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


def tuples_of(choices: Iterable[Choice], strength: int = 2) -> set[Together]:
    """The values of any `strength` factors that come together in some of these choices."""
    by_factor = list(zip(*choices, strict=True))
    return {
        (columns, values)
        for columns in itertools.combinations(range(len(by_factor)), strength)
        for values in set(zip(*(by_factor[column] for column in columns), strict=True))
    }


def covering(strength: int, *, seed: int = 1) -> list[Cell]:
    """Cells in which all values of any `strength` factors come together; greedy, and the same each time."""
    return [cell_of(choice) for choice in covering_choices(strength, seed=seed)]


def covering_choices(
    strength: int, *, seed: int = 1, candidates: int = 40, among: Sequence[Choice] | None = None
) -> list[Choice]:
    """The same as values of the factors. among: what there is to choose from; as the matrix unless given.

    What is to come together is what does in a cell that there is, and each chosen one is such a cell: so it ends, and
    nothing is missing then.
    """
    among = every_choice() if among is None else among
    chance = random.Random(seed)
    missing = tuples_of(among, strength)
    targets = sorted(missing, key=repr)
    chance.shuffle(targets)
    of_chance = chance.sample(among, len(among))
    chosen: list[Choice] = []
    for columns, values in targets:
        if (columns, values) not in missing:
            continue
        having = (each for each in of_chance if tuple(each[column] for column in columns) == values)
        few = list(itertools.islice(having, candidates))
        some = [tuples_of((each,), strength) for each in few]
        gains = [len(each & missing) for each in some]
        best = gains.index(max(gains))
        chosen.append(few[best])
        missing -= some[best]
    return chosen
