"""Writes every page that is made from the code; --check writes nothing, and ends with 1 when one is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from buildsupport.reference.pages import PAGES

DOCS = Path(__file__).parents[2] / "docs"


def main(arguments: list[str]) -> int:
    """The exit status."""
    texts = {DOCS / name: document() for name, document in PAGES.items()}
    if arguments == ["--check"]:
        stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
        for name in stale:
            sys.stderr.write(f"docs/{name} is not what the code says; run 'make reference' and commit it\n")
        return 1 if stale else 0
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
