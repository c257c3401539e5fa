"""A simulated driver of the tests' own that also answers what a CUDA runtime of before 11.2 asks a driver privately.

The simulator as it is shipped answers no private table; this one is linked by the test, into the cache.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from buildsupport.native import LIBRARIES, ROOT, build_library

FOLDER = ROOT / ".cache" / "native"


def driver_folder() -> Path:
    """The folder of its libcuda.so.1, linked anew when an input is newer."""
    shipped = next(library for library in LIBRARIES if library.output == "simulator/libcuda.so.1")
    with_tables = dataclasses.replace(
        shipped,
        output="driver-with-tables/libcuda.so.1",
        sources=(*shipped.sources, "tests/clients/private_tables.c"),
    )
    made = build_library(with_tables, FOLDER)
    assert made is not None
    return made.parent
