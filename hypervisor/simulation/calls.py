"""The functions of the simulated libraries, by the names that a fault may strike."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Collection
from pathlib import Path

import hypervisor

# Each stands as a whole string in its library, among the names that it exports.
_NAME = re.compile(rb"\0((?:cu|nvml)[A-Z][A-Za-z0-9_]{2,77})(?=\0)")
_CLOSE = 3


@functools.cache
def known_calls() -> frozenset[str]:
    """The functions of all branches' libraries; none where the simulator is not installed."""
    libraries = (Path(hypervisor.__file__).resolve().parent / "native").glob("simulator*/lib*.so.1")
    return frozenset(name.decode() for library in libraries for name in _NAME.findall(library.read_bytes()))


def why_no_call(name: str, calls: Collection[str]) -> str:
    """Why a name, or a pattern with * and ?, strikes none of the calls; "" when it strikes one."""
    pattern = re.compile(fnmatch.translate(name.replace("[", "[[]")))
    if any(map(pattern.match, calls)):
        return ""
    close = difflib.get_close_matches(name.strip("*?"), calls, _CLOSE)
    hint = f"close to it are {', '.join(close)}" if close else "write an exported name, with * and ? where needed"
    return f"no function of the simulated libraries is called {name!r}; {hint}"
