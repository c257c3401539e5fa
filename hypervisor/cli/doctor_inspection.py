"""The daily inspection of `hypervisor doctor node -o html`: counters of the daemon's metrics, and the last time's."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hypervisor.cli.failure import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hypervisor.doctor.inspection import Inspection
    from hypervisor.doctor.subject import NodeSubject

_SECONDS = 2.0


def inspected(subject: NodeSubject, *, metrics: str, since: Path | None) -> Inspection:
    """One inspection; where since is given it is compared with that file, which then holds this one."""
    from hypervisor.doctor.inspection import InspectionError, Kept, counters_of, inspect, read_last, write_last

    text, why = _fetch(metrics) if subject.root.live else ("", "these are files of another machine")
    counters = counters_of(text)
    try:
        last = read_last(since) if since is not None else None
        found = inspect(subject, counters, counters_absent=why, last=last)
        if since is not None and counters:
            write_last(since, Kept(taken_at=subject.now, counters=counters))
    except InspectionError as error:
        raise CommandError(f"--since: {error}") from error
    except OSError as error:
        raise CommandError(f"--since: can't write {since}: {error.strerror or error}") from error
    return found


def _fetch(url: str) -> tuple[str, str]:
    """The page, or why there is none."""
    place = urlsplit(url)
    if place.scheme != "http" or not place.hostname:
        raise CommandError(f"--metrics takes http://HOST:PORT/PATH, and not {url!r}", status=EXIT_USAGE)
    connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=_SECONDS)
    try:
        connection.request("GET", place.path or "/metrics")
        response = connection.getresponse()
        body = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return "", f"{url} can't be read ({error})"
    finally:
        connection.close()
    return (body, "") if response.status == http.client.OK else ("", f"{url} answered {response.status}")
