"""The commands of docs/runbooks.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

RUNBOOKS = Path(__file__).parents[2] / "docs/runbooks.md"


def commands() -> list[list[str]]:
    """Each command once, as its words, in the order of the page."""
    blocks = re.findall(r"```sh\n(.*?)```", RUNBOOKS.read_text(), re.DOTALL)
    lines = dict.fromkeys(line for block in blocks for line in block.splitlines())
    return [shlex.split(line) for line in lines]
