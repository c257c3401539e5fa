"""Cards divided by MIG: what was wished, what is there, and the way from one to the other.

geometry has the nouns, placing and matching decide (pure), journal keeps what was begun on the disk, partitions does
it through the gpu room's MigControl. Instances that we did not make are never touched.
"""

from hypervisor.workers.mig.partitions import Partitions

__all__ = ["Partitions"]
