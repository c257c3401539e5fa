"""Which nodes a pool selects, by Kubernetes' rules for node selectors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME_FIELD = "metadata.name"
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


class SelectorError(ValueError):
    """A selector that can't be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression over labels, or over the node's name."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it; a label that is missing meets NotIn and DoesNotExist."""
        value = labels.get(self.key)
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        if self.operator == "NotIn":
            return value not in self.values
        if value is None:
            return False
        if self.operator == "In":
            return value in self.values
        try:
            found, bound = int(value), int(self.values[0])
        except ValueError:
            return False
        return found > bound if self.operator == "Gt" else found < bound


@dataclass(frozen=True, slots=True)
class Term:
    """Requirements that must all be met; a term without any selects nothing."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms of which one must be met; None selects every node."""

    terms: tuple[Term, ...] | None

    def matches(self, labels: Mapping[str, str], *, name: str) -> bool:
        """Whether a node of this name with these labels is selected."""
        if self.terms is None:
            return True
        fields = {_NAME_FIELD: name}
        return any(
            (term.labels or term.fields)
            and all(each.matches(labels) for each in term.labels)
            and all(each.matches(fields) for each in term.fields)
            for term in self.terms
        )


EVERY_NODE = NodeSelector(None)


def from_object(selector: Mapping[str, Any] | None) -> NodeSelector:
    """A node selector of a Kubernetes object; None, where there is none, selects every node. Raises SelectorError."""
    if selector is None:
        return EVERY_NODE
    return NodeSelector(
        tuple(
            Term(_requirements(term.get("matchExpressions", ())), _requirements(term.get("matchFields", ())))
            for term in selector.get("nodeSelectorTerms", ())
        )
    )


def from_text(text: str) -> NodeSelector:
    """NAME=VALUE[,NAME=VALUE...], which must all be met. Raises SelectorError."""
    requirements = []
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not (key and equals):
            raise SelectorError(f"{part.strip()!r} is no NAME=VALUE")
        requirements.append(Requirement(key, "In", (value,)))
    return NodeSelector((Term(tuple(requirements)),))


def _requirements(expressions: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    found = []
    for expression in expressions:
        key, operator = str(expression.get("key", "")), str(expression.get("operator", ""))
        values = tuple(str(value) for value in expression.get("values") or ())
        if not key or operator not in _OPERATORS:
            raise SelectorError(f"{key or 'an expression without a key'}: operator {operator!r} is none")
        if operator in ("Gt", "Lt") and len(values) != 1:
            raise SelectorError(f"{key}: {operator} takes one value and has {len(values)}")
        if operator in ("In", "NotIn") and not values:
            raise SelectorError(f"{key}: {operator} has no values")
        found.append(Requirement(key, operator, values))
    return tuple(found)
