"""What the driver says of the GPUs, made into inventories.

In: NVML, asked only by the child process `hypervisor gpu-reader` (nvml.py and its neighbours nvml_*.py are the only
importers of pynvml), and sysfs. Out: model.Inventory, judged by this side (judge.py), with the last good figures
standing where the driver fails. catalogue.py is pure and usable alone. Nothing here changes a GPU.

The way of a reading: nvml.py asks, survey.py gathers, child.py tells it through wire.py; session.py of the daemon
receives it, fleet.py and device.py keep it, judge.py and processes.py decide what is believed, topology.py and
catalogue.py add what follows from it, observe.py makes the inventory, reader.py publishes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypervisor.gpu.reader import GpuReader, GpuReaderStatistics, open_gpu_reader

__all__ = ["GpuReader", "GpuReaderStatistics", "open_gpu_reader"]


def __getattr__(name: str) -> Any:
    """Import the daemon's side only when it is asked for: the child has no use for trio, and must stay small."""
    if name in __all__:
        from hypervisor.gpu import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
