"""A diagnosis, with the daily inspection, as one HTML page that needs nothing else; pure. All text is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from hypervisor.doctor.inspection import Inspection
from hypervisor.doctor.report import one_line, summary
from hypervisor.model import CheckResult, Diagnosis, Verdict

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5em }
th, td { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #ddd }
td.verdict { font-weight: 600; white-space: nowrap }
.pass { color: #176f2c } .warn { color: #8a5a00 } .fail { color: #b00020 } .skip { color: #777 }
p.summary { font-size: 1.15em; font-weight: 600 }
"""


def as_html(diagnosis: Diagnosis, inspection: Inspection | None = None) -> str:
    """The page."""
    return "\n".join(_page(diagnosis, inspection)) + "\n"


def _page(diagnosis: Diagnosis, inspection: Inspection | None) -> Iterator[str]:
    title = f"hypervisor doctor: {diagnosis.subject}"
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>"
    verdict = "fail" if diagnosis.first_broken else "pass"
    yield f'<p class="summary {verdict}">{escape(summary(diagnosis))}</p>'
    if inspection is not None:
        yield from _inspection(inspection)
    yield "<h2>Checks</h2>"
    yield from _table(("", "Check", "Seen", "Cause and remedy"), (_check(result) for result in diagnosis.results))
    yield "</body>\n</html>"


def _check(result: CheckResult) -> Sequence[str]:
    why = ""
    if result.verdict in (Verdict.WARN, Verdict.FAIL):
        why = f"<p>{_text(result.cause)}</p><p><b>{_text(result.remedy)}</b></p>"
    name = result.verdict.value
    return (
        f'<span class="{name}">{name}</span>',
        f"<code>{_text(result.check_id)}</code><br>{_text(result.looked_at)}",
        "<br>".join(_text(line) for line in result.evidence),
        why,
    )


def _inspection(inspection: Inspection) -> Iterator[str]:
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(inspection.taken_at))
    since = ""
    if inspection.since is not None:
        since = f", compared with {duration(inspection.taken_at - inspection.since)} before"
    yield f"<h2>Inspection</h2>\n<p>{escape(taken + since)}</p>"
    yield "<h3>Memory errors and faults</h3>"
    if inspection.growth:
        grown = (
            (_text(each.uuid), _text(each.name), f"{each.value:g}", _increase(each.increase))
            for each in inspection.growth
        )
        yield from _table(("GPU", "Counter", "Value", "Increase"), grown)
    else:
        yield f"<p>Not known: {_text(inspection.counters_absent or 'the daemon counts none')}.</p>"
    yield "<h3>Up for</h3>"
    yield from _table(("What", "For"), ((_text(name), duration(seconds)) for name, seconds in inspection.up))
    yield "<h3>Memory by several sources (more than 15 % apart)</h3>"
    yield from _list(inspection.deviations, "None.")
    yield "<h3>Most frequent reasons of failed scheduling</h3>"
    yield from _table(("Times", "Reason"), ((str(count), _text(reason)) for reason, count in inspection.reasons))


def _increase(increase: float | None) -> str:
    if increase is None:
        return "first seen"
    return f'<span class="{"warn" if increase else "pass"}">+{increase:g}</span>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    body = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    if not body:
        yield "<p>None.</p>"
        return
    yield "<table>\n<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"
    yield from body
    yield "</table>"


def _list(items: Sequence[str], none: str) -> Iterator[str]:
    if not items:
        yield f"<p>{none}</p>"
        return
    yield "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"


def _text(text: str) -> str:
    return escape(one_line(text))


def duration(seconds: float) -> str:
    """For people: 3 d 4 h, 4 h 10 min, 10 min, 5 s."""
    whole = int(max(0.0, seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{left} s"
