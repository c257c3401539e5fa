"""Finds the metric families that a module makes, from its source: the calls of `gauge`, `counter` and `info`.

Reading the source finds also what no test machine has a value for. What is followed: texts that are assigned in the
same function, loops over literal tuples, and labels that are handed to functions of the same module. What can't be
followed raises, so that a family is never left out in silence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

PREFIX = "gpuhv_"
_KINDS = ("gauge", "counter")

# What a name stands for where it is looked at: a text, or names of labels.
Value = str | tuple[str, ...]
Known = Mapping[str, Value]


@dataclass(frozen=True)
class Family:
    """One metric family. name has the prefix, and the ending that its kind asks for."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


class NotUnderstoodError(Exception):
    """A call whose name, text or labels can't be read from the source."""


def families(source: Path) -> list[Family]:
    """The families of a module, in the order of its calls; of two calls of one family the labels are those of both."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called = {call.func.id for call in ast.walk(tree) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    scan = _Scan(source, functions)
    found = chain.from_iterable(scan.function(each, {}) for name, each in functions.items() if name not in called)
    merged: dict[str, Family] = {}
    for family in found:
        before = merged.get(family.name, family)
        labels = tuple(dict.fromkeys((*before.labels, *family.labels)))
        merged[family.name] = Family(family.name, family.kind, before.text, labels)
    return list(merged.values())


class _Scan:
    def __init__(self, source: Path, functions: Mapping[str, ast.FunctionDef]) -> None:
        self._source = source
        self._functions = functions

    def function(self, function: ast.FunctionDef, known: Known) -> Iterator[Family]:
        yield from self._block(function.body, dict(known))

    def _block(self, statements: list[ast.stmt], known: dict[str, Value]) -> Iterator[Family]:
        for statement in statements:
            if isinstance(statement, ast.For):
                for row in self._rows(statement):
                    yield from self._block(statement.body, known | row)
                continue
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            for child in ast.iter_child_nodes(statement):
                if not isinstance(child, ast.stmt):
                    yield from self._calls(child, known)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = self._value(statement.value, known)
                if value is not None:
                    known[statement.targets[0].id] = value
            yield from self._block(inner, known)

    def _rows(self, loop: ast.For) -> list[dict[str, Value]]:
        """What the texts of a loop's variables are in each turn, where they are written in the loop."""
        if not (isinstance(loop.iter, ast.Tuple) and isinstance(loop.target, ast.Tuple)):
            return [{}]
        names = [name.id for name in loop.target.elts if isinstance(name, ast.Name)]
        rows = [row.elts for row in loop.iter.elts if isinstance(row, ast.Tuple)]
        return [
            {
                name: each.value
                for name, each in zip(names, row, strict=True)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
            for row in rows
        ]

    def _calls(self, expression: ast.AST, known: Known) -> Iterator[Family]:
        for call in (node for node in ast.walk(expression) if isinstance(node, ast.Call)):
            function = call.func
            if isinstance(function, ast.Attribute) and function.attr in _KINDS:
                yield self._family(call, function.attr, known)
            elif isinstance(function, ast.Name) and function.id == "info":
                yield self._info(call, known)
            elif isinstance(function, ast.Name) and function.id in self._functions:
                callee = self._functions[function.id]
                names = [argument.arg for argument in callee.args.args]
                values = [self._value(argument, known) for argument in call.args]
                given = {name: value for name, value in zip(names, values, strict=False) if value is not None}
                yield from self.function(callee, given)

    def _family(self, call: ast.Call, kind: str, known: Known) -> Family:
        name, text = (self._text(argument, known) for argument in call.args[:2])
        labels: list[str] = []
        for keyword in call.keywords:
            labels += [keyword.arg] if keyword.arg else self._labels(keyword.value, known)
        return Family(PREFIX + name, kind, text, tuple(labels))

    def _info(self, call: ast.Call, known: Known) -> Family:
        name, text = (self._text(argument, known) for argument in call.args[:2])
        return Family(f"{PREFIX}{name}_info", "info", text, self._labels(call.args[2], known))

    def _text(self, node: ast.expr, known: Known) -> str:
        value = self._value(node, known)
        if not isinstance(value, str):
            raise self._not_understood(node)
        return value

    def _labels(self, node: ast.expr, known: Known) -> tuple[str, ...]:
        value = self._value(node, known)
        if not isinstance(value, tuple):
            raise self._not_understood(node)
        return value

    def _value(self, node: ast.expr, known: Known) -> Value | None:
        """What can be known of an expression: a text, or the keys of a dictionary."""
        found: Value | None = None
        match node:
            case ast.Constant(value=str(text)):
                found = text
            case ast.Name(id=name):
                found = known.get(name)
            case ast.JoinedStr(values=parts):
                texts = [self._value(part, known) for part in parts]
                found = "".join(each for each in texts if isinstance(each, str)) if all(texts) else None
            case ast.FormattedValue(value=inner):
                found = self._value(inner, known)
            case ast.Dict(keys=keys):
                found = tuple(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                both = self._value(left, known), self._value(right, known)
                found = both[0] + both[1] if isinstance(both[0], tuple) and isinstance(both[1], tuple) else None
            case ast.List(elts=[first, *_]):
                found = self._value(first, known)
            case ast.GeneratorExp(elt=element):
                found = self._value(element, known)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                found = self._returned(self._functions[name])
        return found

    def _returned(self, function: ast.FunctionDef) -> Value | None:
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        return next((value for each in returns if (value := self._value(each, {})) is not None), None)

    def _not_understood(self, node: ast.AST) -> NotUnderstoodError:
        return NotUnderstoodError(f"{self._source}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")
