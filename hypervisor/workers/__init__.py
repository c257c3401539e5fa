"""Hard isolation: commands that are supervised, and what the driver and the kernel enforce for them.

In come specs of workers and what allocations came to; out go workers as they are, events with the cause in them, and
the environment of those who are limited. A worker's parent is a small program of its own (shim/), outside the daemon's
cgroup, so that a worker survives the daemon and is adopted by the next one.
"""

from hypervisor.workers.settings import WorkerSettings
from hypervisor.workers.supervisor import Supervisor, SupervisorStatistics, open_supervisor

__all__ = ["Supervisor", "SupervisorStatistics", "WorkerSettings", "open_supervisor"]
