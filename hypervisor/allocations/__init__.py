"""Allocations: who may use what. Admission, the store, and the watch over those who use it.

In: requests and inventories as values of hypervisor.model. Out: allocations, usages, events, refusals. On disk: one
record per allocation in the state directory, and the limit files through hypervisor.limits.
"""

from hypervisor.allocations.registry import Allocations
from hypervisor.allocations.telling import AllocationsStatistics, EmitEvent

__all__ = ["Allocations", "AllocationsStatistics", "EmitEvent"]
