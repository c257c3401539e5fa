"""What the view shows at one moment: rows, their recent past, and what is wrong with the connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypervisor.top.rows import GpuRow, NodeRow, PodRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """An immutable picture; the layout and the keyboard read nothing else."""

    address: str
    cluster: bool
    clock: str
    # For the title: what is known of the node, or how many nodes are fresh.
    about: str = ""
    gpus: tuple[GpuRow, ...] = ()
    pods: tuple[PodRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    # Key of a GPU -> busy ratios; key of a Pod -> achieved shares. Oldest first.
    past: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    # Key of a Pod -> part of the last seconds in which its launches waited; above 1 when several processes did.
    throttled: Mapping[str, float | None] = field(default_factory=dict)
    # Why there is nothing newer; "" while all is well.
    trouble: str = ""
    # False until the server has answered once.
    known: bool = False

    @property
    def lower(self) -> tuple[PodRow, ...] | tuple[NodeRow, ...]:
        """The rows of the second table."""
        return self.nodes if self.cluster else self.pods
