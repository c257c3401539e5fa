"""What the view needs from outside: objects to watch, pages to show, limits to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

# The type of the change, without an item, that follows the last of the objects that were there at the beginning.
LISTED = "LISTED"


class Change(Protocol):
    """One change of a watch: ADDED, MODIFIED or DELETED, and the message; or LISTED."""

    @property
    def type(self) -> str: ...

    @property
    def item(self) -> Any: ...


class Unavailable(Exception):  # noqa: N818 - it is an answer, not a fault
    """The server could not be asked, or refused; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of limits that was understood but not made yet."""

    # What will happen, for the confirmation.
    words: str
    # Makes it; returns what to tell the user. Raises Unavailable.
    apply: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The callables of the caller; each may be called from any thread and raises Unavailable."""

    # The address, for the title.
    address: str
    # All objects of a kind ("gpus", "pods" or "nodes") as ADDED, then LISTED, then each change.
    watch: Callable[[str], Iterator[Change]]
    # The page of an object, as `hypervisor describe` prints it.
    describe: Callable[[str, Any], list[str]]
    # Name of an allocation, UUID of its device, and what the user typed. Raises ValueError with what is wrong.
    limit_change: Callable[[str, str, str], LimitChange]
    # A cluster has nodes where a node has Pods.
    cluster: bool
