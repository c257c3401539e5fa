"""Sums over GPUs, for a node or a pool. Pure.

A card that is missing counts nowhere, a MIG instance as its card; a figure that is not known adds nothing. On a node
that is lost nothing is available, and its capacity stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypervisor.aggregator.records import GpuObject
from hypervisor.v1 import cluster_pb2


@dataclass(slots=True)
class Sums:
    """TFLOPS and bytes. virtual: capacity times the ratio of requests to capacity that the nodes grant; available:
    what the nodes would still grant of it."""

    gpus: int = 0
    tflops: float = 0.0
    vram_bytes: int = 0
    virtual_tflops: float = 0.0
    virtual_vram_bytes: int = 0
    available_tflops: float = 0.0
    available_vram_bytes: int = 0

    def add(self, gpu: GpuObject) -> bool:
        """Count a GPU; False when it counts nowhere."""
        if gpu.missing_since is not None or gpu.partition:
            return False
        self.gpus += 1
        if gpu.tflops is not None:
            self.tflops += gpu.tflops
            self.virtual_tflops += gpu.tflops * gpu.tflops_ratio
        if gpu.vram_bytes is not None:
            self.vram_bytes += gpu.vram_bytes
            self.virtual_vram_bytes += int(gpu.vram_bytes * gpu.vram_ratio)
        if gpu.liveness != cluster_pb2.LIVENESS_LOST:
            self.available_tflops += gpu.available_tflops or 0.0
            self.available_vram_bytes += gpu.available_vram_bytes or 0
        return True

    def merge(self, other: Sums) -> None:
        """Add the sums over other GPUs."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def sums_of(gpus: Iterable[GpuObject]) -> Sums:
    """The sums over these."""
    found = Sums()
    for gpu in gpus:
        found.add(gpu)
    return found
