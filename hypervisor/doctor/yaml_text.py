"""YAML of files that anybody may have written: what is nested without end is refused before it is parsed."""

from __future__ import annotations

import re
from typing import Any

import yaml

# The parser takes the square of the depth; no configuration of a node comes near.
MOST_DEPTH = 50
_BRACKETS = re.compile(r"[\[\]{}]")
_DASHES = re.compile(rf"(?m)^[ \t]*(?:- ?){{{MOST_DEPTH},}}")


def parse(text: str) -> Any:
    """What the text says. Raises yaml.YAMLError, also for what is nested too deeply."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth = depth + 1 if bracket.group() in "[{" else max(depth - 1, 0)
        if depth > MOST_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MOST_DEPTH} deep")
    if _DASHES.search(text):
        raise yaml.YAMLError(f"it is nested more than {MOST_DEPTH} deep")
    try:
        return yaml.safe_load(text)
    except (RecursionError, ValueError) as error:
        raise yaml.YAMLError(str(error)) from error
