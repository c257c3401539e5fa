"""The table of pages that are made from the code: one row a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from buildsupport.reference import commands, events, metrics, settings
from hypervisor.doctor import documentation


def _doctor() -> str:
    return documentation.document() + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands.document,
    "doctor.md": _doctor,
    "events.md": events.document,
    "metrics.md": metrics.document,
    "settings.md": settings.document,
}
