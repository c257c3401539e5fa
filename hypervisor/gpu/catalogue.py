"""What a model of GPU can do: dense FP16 TFLOPS and nameplate memory, from a table, a site's own table or a formula.

Pure after the files are read, and usable alone. The order is: the site's override by model name or PCI id; the
built-in table by name, where PCI id and memory choose among rows of one name; the formula; else absent with a reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hypervisor.config import SettingsError
from hypervisor.gpu.formula import formula_tflops
from hypervisor.model.figure import Figure, FigureSource

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
DeviceId = Annotated[str, msgspec.Meta(pattern="^(10[dD][eE]:)?[0-9a-fA-F]{4}$")]
GIBIBYTE = 2**30

# What the driver's total may be of the nameplate: a tenth goes to ECC and firmware, names count 10^9 or 2^30.
PLAUSIBLE_MEMORY = (0.5, 1.05)
MOST_MEMORY_BYTES = 2**44
# Within this a total points to one of two rows of the same name.
SAME_MEMORY = (0.8, 1.1)


class CatalogueError(SettingsError):
    """A catalogue file that can't be used; the text names the file, the key and what is allowed."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row. Units: tflops 10^12 a second, vram GiB, bandwidth and nvlink 10^9 bytes a second."""

    names: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()
    pci_device_ids: tuple[DeviceId, ...] = ()
    tflops: Positive
    basis: Literal["tensor", "fp16", "fp32"] = "tensor"
    fp32_tflops: Positive | None = None
    sm_count: Annotated[int, msgspec.Meta(gt=0, le=10_000)] | None = None
    vram_gib: Positive | None = None
    bandwidth_gb_per_second: Positive | None = None
    nvlink_gb_per_second: Positive | None = None
    approximate: bool = False

    @property
    def vram_bytes(self) -> int | None:
        """Nameplate memory in bytes."""
        return None if self.vram_gib is None else int(self.vram_gib * GIBIBYTE)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: tuple[Model, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of a GPU when its rating is asked for; None where the driver did not say."""

    name: str | None
    pci_identifier: str = ""  # vendor:device
    memory_bytes: int | None = None
    sm_count: int | None = None
    compute_capability: tuple[int, int] | None = None
    max_sm_clock_mhz: int | None = None
    virtual: bool = False  # a vGPU: a share of a card that the guest can't know


@dataclass(frozen=True, slots=True)
class Rating:
    """What is published of a GPU: its TFLOPS, and the row that they come from, if any."""

    tflops: Figure[float]
    model: Model | None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The built-in rows and those of the site."""

    built_in: tuple[Model, ...]
    site: tuple[Model, ...] = ()

    @classmethod
    def load(cls, override: Path | None = None) -> Catalogue:
        """The built-in table, with a site's file before it. Raises CatalogueError about that file."""
        return cls(_built_in(), _read_override(override) if override else ())

    def rate(self, card: Card, *, now: float) -> Rating:
        """The rating of a card; now is the time of observation of the figure."""
        override = _choose([row for row in self.site if _named(row, card) or _identified(row, card)], card)
        if override is not None:
            return Rating(Figure(override.tflops, FigureSource.OVERRIDE, now), override)
        if card.virtual:
            return Rating(
                Figure.absent("a vGPU can't tell which share of its card it has; set tflops in a site catalogue"), None
            )
        row = _choose([row for row in self.built_in if _named(row, card)], card)
        if row is not None:
            return Rating(Figure(row.tflops, FigureSource.CATALOGUE, now), row)
        computed = formula_tflops(
            name=card.name or "",
            sm_count=card.sm_count,
            compute_capability=card.compute_capability,
            max_sm_clock_mhz=card.max_sm_clock_mhz,
        )
        if isinstance(computed, str):
            name = card.name or card.pci_identifier or "a model without a name"
            return Rating(Figure.absent(f"{name} is not in the catalogue, and {computed}"), None)
        return Rating(Figure(computed, FigureSource.FORMULA, now), None)

    def memory_bounds(self, card: Card) -> tuple[int, int]:
        """Least and most bytes that the total memory of a card can be, by the nameplates of all rows that match."""
        rows = [row for row in self.site if _named(row, card) or _identified(row, card)]
        rows = rows or [row for row in self.built_in if _named(row, card)]
        plates = [row.vram_bytes for row in rows]
        known = [plate for plate in plates if plate is not None]
        if not known or len(known) < len(plates) or card.virtual:
            return 1, MOST_MEMORY_BYTES
        low, high = PLAUSIBLE_MEMORY
        return int(min(known) * low), int(max(known) * high)


def normalise(name: str) -> str:
    """A model name as it is compared: no maker in front, capitals, one blank for each run of blanks and dashes."""
    text = re.sub(r"[\s_-]+", " ", name).strip().upper()
    for maker in ("NVIDIA ", "TESLA "):
        text = text.removeprefix(maker)
    return text


def part_of_parent(parent: Figure[float], part_sm_count: int | None, parent_sm_count: int | None) -> Figure[float]:
    """TFLOPS of a MIG device: by its part of the multiprocessors."""
    if parent.value is None:
        return parent
    if not part_sm_count or not parent_sm_count:
        return Figure.absent("the driver does not say how many multiprocessors the instance has")
    share = min(part_sm_count / parent_sm_count, 1.0)
    return Figure(parent.value * share, parent.source, parent.observed_at, parent.stale)


def _named(row: Model, card: Card) -> bool:
    return card.name is not None and normalise(card.name) in map(normalise, row.names)


def _identified(row: Model, card: Card) -> bool:
    vendor, _, device = card.pci_identifier.lower().partition(":")
    return vendor == "10de" and device in (known.lower().removeprefix("10de:") for known in row.pci_device_ids)


def _choose(rows: Sequence[Model], card: Card) -> Model | None:
    """One of several rows that match: by PCI id, then by the nearest memory. None when memory speaks against all."""
    identified = [row for row in rows if _identified(row, card)]
    left = identified or list(rows)
    if len(left) < 2:
        return left[0] if left else None
    if card.memory_bytes is None:
        # The least of them: a wrong guess then promises less than there is, never more.
        return min(left, key=lambda row: row.tflops)
    low, high = SAME_MEMORY
    memory = card.memory_bytes
    fitting = [row for row in left if row.vram_bytes is None or low <= memory / row.vram_bytes <= high]
    return min(fitting, key=lambda row: abs((row.vram_bytes or memory) - memory), default=None)


@cache
def _built_in() -> tuple[Model, ...]:
    text = resources.files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File).model


def _read_override(file: Path) -> tuple[Model, ...]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogueError(f"can't read the catalogue {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"the catalogue {file} is not TOML: {error}") from error
    try:
        rows = msgspec.convert(values, _File).model
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        where = path.rstrip("`").removeprefix(".") or "the top level"
        raise CatalogueError(
            f"the catalogue {file}, {where}: {problem}; write [[model]] with {', '.join(Model.__struct_fields__)}"
        ) from error
    for number, row in enumerate(rows):
        if not row.names and not row.pci_device_ids:
            raise CatalogueError(
                f"the catalogue {file}, model[{number}]: names and pci_device_ids are both empty; give the full model"
                " name as NVML spells it, or the PCI device id such as 2330"
            )
    return rows
