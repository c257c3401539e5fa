"""Builds hypervisor.limits._abi: the limit-file ABI for Python, from the one C header.

The struct definitions between the header's CFFI markers are read verbatim; the atomic accesses are the inline
functions that the limiter uses too, so both sides have the same layout and the same memory order.
"""

from pathlib import Path

from cffi import FFI

INCLUDE = Path(__file__).resolve().parent / "include"
HEADER = INCLUDE / "hypervisor_limits.h"
ACCESS = Path(__file__).resolve().parent / "daemon" / "access.h"


def marked(path: Path) -> str:
    """The text between the CFFI markers of a header."""
    return path.read_text().split("/* CFFI BEGIN */")[1].split("/* CFFI END */")[0]


def declarations(path: Path) -> str:
    """Prototypes as cffi wants them: what is inline in C is an ordinary function to it."""
    return marked(path).replace("static inline ", "")


builder = FFI()
builder.cdef(marked(HEADER) + declarations(ACCESS))
builder.set_source(
    "hypervisor.limits._abi",
    '#include "hypervisor_limits.h"\n#include "hypervisor_atomics.h"\n#include "access.h"\n',
    include_dirs=["limiter/include", "limiter/daemon"],
    depends=[
        "limiter/include/hypervisor_limits.h",
        "limiter/include/hypervisor_atomics.h",
        "limiter/daemon/access.h",
    ],
    py_limited_api=True,
    extra_compile_args=["-std=c11", "-Wall", "-Wextra"],
)
