"""Snapshot and resume: a process's VRAM is moved to host memory and brought back, by the driver's checkpoint interface.

In come pids; out go states, or why it can't be done. The driver is spoken to by a short-lived process of our program,
for its calls may hang.
"""

from hypervisor.workers.checkpoint.freezer import FreezeError, Freezer

__all__ = ["FreezeError", "Freezer"]
