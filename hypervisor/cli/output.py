"""How objects are printed: table, wide, json, yaml, name. Pure: messages in, text out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hypervisor.model.text import first_columns, text_width

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LEAST_WIDTH = 80
_GAP = 2
_LEAST = 8  # a column is never narrowed below this

output_option = click.option(
    "-o",
    "--output",
    "output",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="How to print",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its header, its cell of a message, whether only -o wide shows it, and whether it may be cut."""

    header: str
    cell: Callable[[Any], str]
    wide: bool = False
    shrinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How objects of one message type are shown. name is what -o name prints and what people may type."""

    name: Callable[[Any], str]
    columns: tuple[Column, ...]

    def rows(self, items: Sequence[Any], *, wide: bool) -> list[list[str]]:
        """Headers and cells."""
        shown = self.shown(wide=wide)
        return [
            [column.header for column in shown],
            *([one_line(column.cell(item)) for column in shown] for item in items),
        ]

    def shown(self, *, wide: bool) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if wide or not column.wide)


def one_line(text: str) -> str:
    """Text for a cell: printable, on one line; "-" where there is none."""
    return "".join(mark if mark.isprintable() else " " for mark in text) or "-"


def as_dict(item: Message) -> dict[str, Any]:
    """A message as its proto JSON. Plain fields are there when they are zero; what is not known is absent."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(item, always_print_fields_with_no_presence=True)


def structured(value: Mapping[str, Any], output: str) -> str:
    """An object as JSON or YAML."""
    if output == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True)).rstrip("\n")


def render(items: Sequence[Any], table: Table, output: str) -> str:
    """A list of objects; {"items": [...]} as JSON or YAML."""
    match output:
        case "json" | "yaml":
            return structured({"items": [as_dict(item) for item in items]}, output)
        case "name":
            return "\n".join(table.name(item) for item in items)
    wide = output == "wide"
    rows = table.rows(items, wide=wide)
    shrinks = [column.shrinks for column in table.shown(wide=wide)]
    return "\n".join(aligned(rows, fitted(natural_widths(rows), shrinks, None if wide else table_width())))


def natural_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs."""
    return [max(text_width(row[at]) for row in rows) for at in range(len(rows[0]))]


def fitted(natural: Sequence[int], shrinks: Sequence[bool], limit: int | None) -> list[int]:
    """Widths of the columns; the widest that may shrink is narrowed until a row fits into the limit."""
    found = list(natural)
    while limit is not None and sum(found) + _GAP * (len(found) - 1) > limit:
        candidates = [at for at, may in enumerate(shrinks) if may and found[at] > _LEAST]
        if not candidates:
            break
        found[max(candidates, key=lambda at: found[at])] -= 1
    return found


def aligned(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[str]:
    """Rows as lines; what doesn't fit its column is cut and ends with two dots."""
    return [
        (" " * _GAP).join(_filled(cut(cell, width), width) for cell, width in zip(row, columns, strict=True)).rstrip()
        for row in rows
    ]


def cut(text: str, width: int) -> str:
    """Text in at most width columns."""
    return text if text_width(text) <= width else first_columns(text, width - 2) + ".."


def table_width() -> int:
    """The columns of a table: the terminal's, or COLUMNS; 80 where there is neither, and never less."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((_LEAST_WIDTH, 24)).columns)


def _filled(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))
