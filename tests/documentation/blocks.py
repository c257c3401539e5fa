"""Blocks of commands in a page.

A block that is to be run stands after a comment, `<!-- run -->`; its lines are

    $ command            run by a shell; with & at its end it goes on while the page lasts
    > more of it         the command's next line, as a shell asks for it
    anything else        must be in what the command writes, spaces apart; … stands for anything without a space

`<!-- run: fails N -->`: the last command ends with the status N. Other words after the colon are for readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_MARK = re.compile(r"<!-- run(?:: (?P<how>.*?))? -->\n```console\n(?P<body>.*?)\n```", re.DOTALL)
_ANY_MARK = re.compile(r"^<!-- run", re.MULTILINE)


@dataclass
class Command:
    """One command of a page. line: where it stands. status: how it must end; None for one in the background."""

    text: str
    line: int
    status: int | None = 0
    expected: list[str] = field(default_factory=list)


def commands(page: str) -> list[Command]:
    """The commands of a page, in its order. Raises ValueError for a mark without a block."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found: list[Command] = []
    blocks = list(_MARK.finditer(text))
    if len(blocks) != len(_ANY_MARK.findall(text)):
        raise ValueError(f"{page}: a mark to run stands before something else than a console block")
    for block in blocks:
        first = text.count("\n", 0, block.start("body")) + 1
        made = _commands(block["body"].splitlines(), first)
        early = [command for command in made[:-1] if command.status is None]
        if early:
            raise ValueError(
                f"{page}: line {early[0].line} goes on in the background, and who pastes the block types the next one "
                "too early; begin a new block behind it, and say what to wait for"
            )
        how = block["how"] or ""
        if how.startswith("fails "):
            made[-1].status = int(how.removeprefix("fails "))
        found += made
    return found


def _commands(lines: list[str], first: int) -> list[Command]:
    made: list[Command] = []
    for number, line in enumerate(lines, start=first):
        if line.startswith("$ "):
            made.append(Command(line.removeprefix("$ "), number))
        elif line.startswith("> "):
            made[-1].text += "\n" + line.removeprefix("> ")
        else:
            made[-1].expected.append(line)
    for command in made:
        if command.text.endswith(" &"):
            command.text, command.status = command.text.removesuffix(" &"), None
    return made


def table_after(page: str, mark: str) -> list[list[str]]:
    """The cells of the table that stands after a comment, by row, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = text.partition(f"<!-- {mark} -->\n")[2].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
