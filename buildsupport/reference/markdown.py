"""Markdown tables, one line a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

MADE = "<!-- Made from the code by `make reference`; changes here are lost. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; what would end a cell is escaped."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"


def code(text: str) -> str:
    """Text as it is typed; nothing for none."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
