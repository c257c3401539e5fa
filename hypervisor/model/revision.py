"""A point in the history of one node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Revision:
    """epoch counts the starts of the daemon, revision the changes of state; both only grow, also over restarts."""

    epoch: int
    revision: int
