"""Which objects a node may tell of: itself, its GPUs, and what it runs. Pure.

An event about anything else is not lost; it is shown on the node that told it, with what it said it was about.
"""

from __future__ import annotations

from hypervisor.aggregator.records import NodeRecord
from hypervisor.aggregator.registry import Registry
from hypervisor.aggregator.store import EventRow
from hypervisor.model import ObjectKind

# An event about one of these is shown with the name of the node that told it; its store knows no others by that name.
_RUN_BY_NODES = frozenset({ObjectKind.ALLOCATION.value, ObjectKind.WORKER.value, ObjectKind.POD.value})


def own(row: EventRow, node: NodeRecord, registry: Registry) -> EventRow:
    """The event as the node may tell it."""
    if row.kind in _RUN_BY_NODES:
        return row
    if row.kind == ObjectKind.NODE.value:
        return row if row.name == node.name else _on_node(row, node)
    if row.kind == ObjectKind.GPU.value:
        holder = registry.gpus.get(row.name.lower())
        # One that nobody holds may be its own from before.
        return row if holder is None or holder.node is node else _on_node(row, node)
    return _on_node(row, node)


def _on_node(row: EventRow, node: NodeRecord) -> EventRow:
    said = "/".join(part for part in (row.kind, row.namespace, row.name) if part)
    return row._replace(
        kind=ObjectKind.NODE.value,
        namespace="",
        name=node.name,
        object_uid=node.uid,
        message=f"{said or 'no object'}: {row.message}",
    )
