"""TFLOPS of a model that no table knows: multiprocessors x clock x operations per clock.

Right within a few percent for parts that are not capped for export; those are in the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """Dense FP16 operations with FP32 accumulation, per clock and multiprocessor.

    geforce: of consumer parts, which do half. cap_mhz: the clock of data sheets; what NVML calls maximum is above it.
    """

    full: int
    geforce: int
    cap_mhz: int
    cores_per_sm: int


# By compute capability. Before 7.0 there are no tensor cores: the plain cores' FP16 rate at 6.0, FP32 at 6.1.
RATES = {
    (6, 0): Rate(256, 256, 1480, 64),
    (6, 1): Rate(256, 256, 1900, 128),
    (7, 0): Rate(1024, 1024, 1530, 64),
    (7, 5): Rate(1024, 512, 1770, 64),
    (8, 0): Rate(2048, 2048, 1410, 64),
    (8, 6): Rate(1024, 512, 1800, 128),
    (8, 7): Rate(2048, 2048, 1300, 128),
    (8, 9): Rate(1024, 512, 2520, 128),
    (9, 0): Rate(4096, 4096, 1830, 128),
    (10, 0): Rate(8192, 8192, 1860, 128),
    (10, 1): Rate(8192, 8192, 1575, 128),
    (10, 3): Rate(8192, 8192, 1860, 128),
    (11, 0): Rate(8192, 8192, 1575, 128),
    (12, 0): Rate(1024, 512, 2620, 128),
    (12, 1): Rate(1024, 1024, 2500, 128),
}
# Turing's GTX 16 parts have no tensor cores, only the plain cores' FP16 at twice FP32.
TURING_WITHOUT_TENSOR_CORES = 256


def sm_count(cores: int | None, compute_capability: tuple[int, int] | None) -> int | None:
    """Multiprocessors from CUDA cores; None where that can't be said."""
    rate = RATES.get(compute_capability) if compute_capability else None
    if rate is None or not cores or cores % rate.cores_per_sm:
        return None
    return cores // rate.cores_per_sm


def formula_tflops(
    *,
    name: str,
    sm_count: int | None,
    compute_capability: tuple[int, int] | None,
    max_sm_clock_mhz: int | None,
) -> float | str:
    """Dense FP16 TFLOPS, or why they can't be worked out."""
    if compute_capability is None:
        return "the driver does not give its compute capability"
    rate = RATES.get(compute_capability)
    if rate is None:
        return f"no rate is known for compute capability {compute_capability[0]}.{compute_capability[1]}"
    if not sm_count:
        return "the driver does not say how many multiprocessors it has"
    if not max_sm_clock_mhz:
        return "the driver does not give its clock"
    per_clock = rate.geforce if "GEFORCE" in name.upper() else rate.full
    if compute_capability == (7, 5) and "GTX" in name.upper():
        per_clock = TURING_WITHOUT_TENSOR_CORES
    return sm_count * min(max_sm_clock_mhz, rate.cap_mhz) * per_clock / 1e6
