"""What the rest of the node reads of the Kubernetes mode; nothing where it is off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hypervisor.kube.pod import Pod
from hypervisor.model import Condition, Inventory


class KubernetesView(Protocol):
    """Plain reads, for the trio main thread."""

    @property
    def conditions(self) -> tuple[Condition, ...]: ...

    @property
    def used_by(self) -> Mapping[str, str]: ...

    def overlaid(self, inventory: Inventory) -> Inventory:
        """The inventory with what is in other hands."""
        ...


class HasStatistics(Protocol):
    """A feed or a queue; statistics() gives a frozen dataclass of numbers."""

    def statistics(self) -> object: ...


class Pods(Protocol):
    """The Pods of this node, as they are known."""

    @property
    def pods(self) -> Mapping[str, Pod]: ...

    @property
    def complete(self) -> bool: ...

    @property
    def failing(self) -> str: ...
