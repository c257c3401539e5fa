"""Hard isolation by MPS: one control daemon a card, whose server has the limits that no client can loosen.

In come cards and allocations; out go why a card can't be used so, the environment and mounts of a client, and how sure
it is that its limits hold. Everything that the daemon of a card is told is read back before the card is offered.
"""

from hypervisor.workers.mps.card import OURS
from hypervisor.workers.mps.cards import MpsCards
from hypervisor.workers.mps.settings import MpsSettings

__all__ = ["OURS", "MpsCards", "MpsSettings"]
