"""python -m tests.bench [SUBJECT ...]: measure and print the table; status 1 when a bench could not run."""

from __future__ import annotations

import importlib
import platform
import sys
import traceback
from pathlib import Path

from tests.bench.figure import Figure, table
from tests.bench.peer import NoSuchLimiterError, peer_limiter


def subjects() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(wanted: list[str]) -> int:
    known = subjects()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"bench: there is no subject {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        peer_limiter()
    except NoSuchLimiterError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    failed = False
    for name in wanted or known:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            figures += importlib.import_module(f"tests.bench.bench_{name}").measure()
        except Exception:  # noqa: BLE001 - one bench that fails must not hide the others' figures
            traceback.print_exc()
            failed = True
    print(f"{platform.platform()}, {platform.machine()}, Python {platform.python_version()}")
    print("\n".join(table(figures)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
