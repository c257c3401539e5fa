"""What of a folder a builder of images gets to see: the rules of .dockerignore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def patterns(text: str) -> list[str]:
    """The patterns of a .dockerignore, in their order."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def ignored(name: str, rules: Sequence[str]) -> bool:
    """Whether a file is left out: the last pattern counts that is true of it or of a folder that it lies in."""
    parts = name.split("/")
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    found = False
    for rule in rules:
        wanted, pattern = not rule.startswith("!"), rule.removeprefix("!").strip("/")
        if any(re.fullmatch(_expression(pattern), each) for each in above):
            found = wanted
    return found


def _expression(pattern: str) -> str:
    """A pattern as a regular expression: * and ? stay within a name, ** is any number of folders."""
    found = ""
    for part in re.split(r"(\*\*/?|\*|\?|\[[^]]*\])", pattern):
        match part:
            case "**/":
                found += "(?:.*/)?"
            case "**":
                found += ".*"
            case "*":
                found += "[^/]*"
            case "?":
                found += "[^/]"
            case _:
                found += part if part.startswith("[") else re.escape(part)
    return found


def files(folder: Path) -> Iterator[str]:
    """The names of all files and links of a folder that its .dockerignore leaves in."""
    rules = patterns((folder / ".dockerignore").read_text())
    back = any(rule.startswith("!") for rule in rules)
    for place, folders, names in os.walk(folder):
        within = Path(place).relative_to(folder)
        folders[:] = [each for each in folders if back or not ignored((within / each).as_posix(), rules)]
        links = [each for each in folders if (Path(place) / each).is_symlink()]
        yield from (name for each in names + links if not ignored(name := (within / each).as_posix(), rules))
