"""python answers.py LIBRARY: what a libcuda answers to the queries on stdin, as JSON on stdout.

In: {"symbols": [...], "queries": [[name, version, flags], ...]}. Out: for each query what cuGetProcAddress_v2 gave
with a status [result, status, index into "addresses"], whether it gave the same pointer without a status, and the
result of cuGetProcAddress; and for each address the symbols that lie there. Nothing is initialised.
"""

from __future__ import annotations

import ctypes
import json
import sys

UNTOUCHED = 0x5A5A


def main() -> None:
    asked = json.load(sys.stdin)
    library = ctypes.CDLL(sys.argv[1])
    names: dict[int, list[str]] = {}
    for symbol in asked["symbols"]:
        address = (
            ctypes.cast(getattr(library, symbol, None), ctypes.c_void_p).value if hasattr(library, symbol) else None
        )
        if address is not None:
            names.setdefault(address, []).append(symbol)
    newer, older = library.cuGetProcAddress_v2, library.cuGetProcAddress
    newer.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
    older.argtypes = newer.argtypes[:4]
    pointer, status = ctypes.c_void_p(), ctypes.c_int()
    where, which = ctypes.addressof(pointer), ctypes.addressof(status)
    answers = []
    for name, version, flags in asked["queries"]:
        text = name.encode()
        pointer.value, status.value = UNTOUCHED, 77
        result = newer(text, where, version, flags, which)
        given = pointer.value
        pointer.value = UNTOUCHED
        bare_result = newer(text, where, version, flags, None)
        bare = pointer.value
        pointer.value = UNTOUCHED
        old_result = older(text, where, version, flags)
        old = pointer.value
        answers.append(
            [
                [result, status.value, names.get(given, ["?"]) if given not in (None, UNTOUCHED) else given],
                [bare_result, "same" if bare == given else bare],
                [old_result, "same" if old == given else "untouched" if old == UNTOUCHED else "other"],
            ]
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
