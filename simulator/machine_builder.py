"""Builds hypervisor.simulation._machine: the machine file for Python, from the two C headers and the core.

The headers are the only place where the layout is written down. cffi can't read all of C, so what it needs
not know is taken out first: includes, asserts, inline bodies, the inside of a mutex. The C compiler still
checks each structure against the real headers.
"""

import re
from pathlib import Path

from cffi import FFI

SIMULATOR = Path(__file__).resolve().parent
HEADERS = (SIMULATOR / "include" / "sim_machine.h", SIMULATOR / "core" / "core.h")


def declarations(text: str) -> str:
    """The part of a header that cffi reads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"static inline .*?\n}\n", "", text, flags=re.DOTALL)
    text = re.sub(r"_Static_assert\(.*?\);", "", text, flags=re.DOTALL)
    text = re.sub(r"^#\s*(include|if|ifndef|endif)\b.*$", "", text, flags=re.MULTILINE)
    # cffi asks the compiler for the values of constants; those without one are include guards
    text = re.sub(r"^#define\s+\w+\s*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^#define\s+(\w+)\s+\S.*$", r"#define \1 ...", text, flags=re.MULTILINE)
    return text.replace("64 - sizeof(pthread_mutex_t)", "...")


def array_sizes(text: str) -> str:
    """Sizes given by name or sum become the compiler's business too."""
    return re.sub(r"\[[A-Z][A-Z_0-9 *]*\]", "[...]", text)


builder = FFI()
builder.cdef("typedef struct { ...; } pthread_mutex_t;")
builder.cdef("\n".join(array_sizes(declarations(header.read_text())) for header in HEADERS))
builder.set_source(
    "hypervisor.simulation._machine",
    '#include "core.h"\n',
    sources=[f"simulator/core/{path.name}" for path in sorted((SIMULATOR / "core").glob("*.c"))],
    include_dirs=["simulator/include", "simulator/core"],
    depends=["simulator/include/sim_machine.h", "simulator/core/core.h", "simulator/core/internal.h"],
    py_limited_api=True,
    extra_compile_args=["-std=c11", "-pthread", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
)
