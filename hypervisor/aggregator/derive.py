"""What follows from a report: pure functions, each field of an object derived in one place."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.aggregator.selectors import NodeSelector
from hypervisor.model.health import HealthCode
from hypervisor.v1 import cluster_pb2, types_pb2

PHASE_PENDING = "Pending"
PHASE_RUNNING = "Running"
PHASE_UNKNOWN = "Unknown"

DEFAULT_POOL = "default"
POOL_LABEL = "tensor-fusion.ai/pool-"

_USABLE = frozenset({types_pb2.HEALTH_STATE_HEALTHY, types_pb2.HEALTH_STATE_DEGRADED, types_pb2.HEALTH_STATE_DRAINING})


def is_starting(node: types_pb2.Node) -> bool:
    """Whether the node's driver has not answered yet: that it names no GPUs then says nothing of them."""
    return any(
        condition.type == "Ready" and condition.status != "True" and condition.reason == HealthCode.STARTING.value
        for condition in node.conditions
    )


def phase(health: int, *, missing: bool) -> str:
    """Phase of a GPU object: Unknown when the card is lost or no longer reported while something runs on it, Pending
    when it takes no work now, Running otherwise. A node that is not heard of freezes it: see node_liveness."""
    if missing or health == types_pb2.HEALTH_STATE_LOST:
        return PHASE_UNKNOWN
    return PHASE_RUNNING if health in _USABLE else PHASE_PENDING


def liveness(silent_seconds: float, *, late_after: float, lost_after: float) -> cluster_pb2.Liveness:
    """Stage of a node that was last heard of so long ago."""
    if silent_seconds >= lost_after:
        return cluster_pb2.LIVENESS_LOST
    if silent_seconds >= late_after:
        return cluster_pb2.LIVENESS_LATE
    return cluster_pb2.LIVENESS_FRESH


def pools(
    labels: Mapping[str, str], *, name: str = "", selectors: Mapping[str, NodeSelector] | None = None
) -> tuple[str, ...]:
    """Pools of a node: those that select it by its labels or its name, and each that a label
    tensor-fusion.ai/pool-NAME=true names; in none of them it is in "default"."""
    found = {
        key.removeprefix(POOL_LABEL)
        for key, value in labels.items()
        if key.startswith(POOL_LABEL) and value == "true" and len(key) > len(POOL_LABEL)
    }
    found.update(pool for pool, selector in (selectors or {}).items() if selector.matches(labels, name=name))
    return tuple(sorted(found)) or (DEFAULT_POOL,)


def worst_tier(gpu: types_pb2.Gpu) -> int:
    """Greatest tier from this GPU to any other of its node; 0 for a card that is alone."""
    return max((link.tier for link in gpu.topology.links), default=0)
