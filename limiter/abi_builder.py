"""Builds hypervisor.limits._abi: the limit-file ABI for Python, from the one C header.

The struct definitions between the header's CFFI markers are read verbatim; the daemon's accessors in limiter/daemon/
use the same atomic accesses as the limiter, so both sides have the same layout and the same memory order.
"""

from pathlib import Path

from cffi import FFI

LIMITER = Path(__file__).resolve().parent
HEADER = LIMITER / "include" / "hypervisor_limits.h"
ACCESSORS = LIMITER / "daemon" / "files.h"
SOURCES = ("guard.c", "shm.c", "usage.c")


def marked(path: Path) -> str:
    """The text between the CFFI markers of a header."""
    return path.read_text().split("/* CFFI BEGIN */")[1].split("/* CFFI END */")[0]


builder = FFI()
builder.cdef(marked(HEADER) + marked(ACCESSORS))
builder.set_source(
    "hypervisor.limits._abi",
    '#include "hypervisor_limits.h"\n#include "files.h"\n',
    sources=[f"limiter/daemon/{name}" for name in SOURCES],
    include_dirs=["limiter/include", "limiter/daemon"],
    depends=[
        "limiter/include/hypervisor_limits.h",
        "limiter/include/hypervisor_atomics.h",
        "limiter/include/hypervisor_contexts.h",
        "limiter/include/hypervisor_flip.h",
        "limiter/daemon/files.h",
        "limiter/daemon/guard.h",
    ],
    py_limited_api=True,
    extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-pthread"],
)
