"""Finds event reasons in the source: the texts that follow an EventType in a call or in a row of a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path


def reasons(package: Path) -> dict[str, set[str]]:
    """By reason, the modules that tell of it, below the package's folder. A reason that reaches its event by another
    way (a variable, an enumeration) is not found."""
    found: dict[str, set[str]] = {}
    for source in sorted(package.rglob("*.py")):
        text = source.read_text(encoding="utf-8")
        for reason in _reasons(ast.parse(text)) if "EventType" in text else ():
            found.setdefault(reason, set()).add(source.relative_to(package).as_posix())
    return found


def stands_in(package: Path, reason: str) -> bool:
    """Does a reason stand in the package as a text by itself, whichever way it takes to its event?"""
    return any(f'"{reason}"' in source.read_text(encoding="utf-8") for source in package.rglob("*.py"))


def _reasons(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            sequence: list[ast.expr] = node.args
        elif isinstance(node, ast.Tuple):
            sequence = node.elts
        else:
            continue
        for first, second in pairwise(sequence):
            if _is_type(first):
                yield from _constants(second)


def _is_type(node: ast.expr) -> bool:
    """Is it EventType.X, or a choice between two of them?"""
    if isinstance(node, ast.IfExp):
        return _is_type(node.body) and _is_type(node.orelse)
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "EventType"


def _constants(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _constants(node.body)
        yield from _constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
