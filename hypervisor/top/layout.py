"""The screen as lines, from the content, the keyboard's state and the size; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypervisor.model.quantity import format_bytes
from hypervisor.model.text import text_width
from hypervisor.top.cells import Glyphs, Line, Span, Style, cut, line
from hypervisor.top.columns import Cell, Column, columns_of, sortable
from hypervisor.top.content import Content
from hypervisor.top.keyboard import HELP, Keyboard, Mode, position, visible

_GAP = 1
_KINDS = {"gpus": "GPUs", "pods": "Pods", "nodes": "nodes"}
_LEAST_WIDTH, _LEAST_HEIGHT = 40, 8
KEYS = "TAB table  ENTER detail  / filter  s sort  r reverse  l limits  ? help  q quit"


def frame(keyboard: Keyboard, content: Content, *, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Exactly height lines of exactly width columns."""
    below = _below(keyboard, content, width, height)
    room = height - len(below)
    if width < _LEAST_WIDTH or height < _LEAST_HEIGHT:
        lines = [line(f"{width}x{height} is too small, {_LEAST_WIDTH}x{_LEAST_HEIGHT} is needed")]
    elif keyboard.mode is Mode.HELP:
        lines = [title(content), line(), *(line(text) for text in HELP)]
    elif keyboard.mode is Mode.DETAIL:
        lines = [title(content), *_detail(keyboard, room - 1)]
    else:
        lines = [title(content), summary(content), *_tables(keyboard, content, width, room - 2, glyphs)]
    lines = [*(lines + [line()] * height)[:room], *below]
    return [each.fitted(width) for each in lines[:height]]


def title(content: Content) -> Line:
    """Whose figures these are."""
    return line(
        Span("hypervisor top ", Style.BOLD), Span(f"{content.about or content.address}  ", Style.ACCENT), content.clock
    )


def summary(content: Content) -> Line:
    """The whole node or cluster in one line."""
    busy = [row.busy for row in content.gpus if row.busy is not None]
    used = sum(row.memory_used or 0 for row in content.gpus)
    total = sum(row.memory_total or 0 for row in content.gpus)
    # Of a node that is not heard of, the last that was known stands; the node itself is counted below.
    ill = sum(row.health.split(" ")[0] != "healthy" for row in content.gpus)
    parts: list[str | Span] = [_count(len(content.gpus), "GPU")]
    if busy:
        parts.append(f"  busy {sum(busy) / len(busy) * 100:.0f}%")
    parts.append(f"  VRAM {format_bytes(used)} of {format_bytes(total)}")
    if content.cluster:
        parts.append("  " + _count(len(content.nodes), "node"))
        ill_nodes = sum(row.liveness != "fresh" for row in content.nodes)
        if ill_nodes:
            parts.append(Span(f"  {ill_nodes} not heard of", Style.BAD))
    else:
        parts.append("  " + _count(len({row.name for row in content.pods}), "Pod"))
        waiting = sum(bool(content.throttled.get(row.key)) for row in content.pods)
        if waiting:
            parts.append(Span(f"  {waiting} waiting for their share", Style.WARNING))
        violated = sum(row.enforcement == "violated" for row in content.pods)
        if violated:
            parts.append(Span(f"  {violated} outside their limits", Style.BAD))
    if ill:
        parts.append(Span(f"  {_count(ill, 'GPU')} not healthy", Style.BAD))
    return line(*parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tables(keyboard: Keyboard, content: Content, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    lower = "nodes" if content.cluster else "pods"
    gpus, others = visible(keyboard, content, "gpus"), visible(keyboard, content, lower)
    room = height - 3  # two headers and the line between
    upper_rows = max(1, min(len(gpus), max(room // 2, room - len(others))))
    lower_rows = max(1, room - upper_rows)
    upper = table(keyboard, content, "gpus", gpus, width=width, rows=upper_rows, glyphs=glyphs)
    below = table(keyboard, content, lower, others, width=width, rows=lower_rows, glyphs=glyphs)
    hidden = [_part(keyboard, "gpus", gpus, upper_rows), _part(keyboard, lower, others, lower_rows)]
    return [*upper, line(Span("  ".join(text for text in hidden if text), Style.DIM)), *below]


def _part(keyboard: Keyboard, kind: str, found: Sequence[Any], rows: int) -> str:
    """Which rows of a table are shown; "" when all are."""
    if len(found) <= rows:
        return ""
    first = _first(position(keyboard, list(found), kind), rows, len(found))
    return f"{_KINDS[kind]} {first + 1} to {first + rows} of {len(found)}"


def _first(at: int, rows: int, count: int) -> int:
    """The row that a table begins with, so that the selected one is in its middle."""
    return min(max(0, at - rows // 2), max(0, count - rows))


def table(
    keyboard: Keyboard, content: Content, kind: str, found: Sequence[Any], *, width: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """A header and at most so many rows, scrolled so that the selected one is among them."""
    columns = fitted(columns_of(kind, cluster=content.cluster), width)
    focused = keyboard.focus == kind and keyboard.mode is not Mode.DETAIL
    at = position(keyboard, list(found), kind)
    first = _first(at, rows, len(found))
    lines = [_header(keyboard, content, kind, columns, glyphs)]
    for offset, row in enumerate(found[first : first + rows]):
        spans: list[Span] = []
        for column, wide in columns:
            drawn = column.draw(Cell(row, content, wide, glyphs))
            space = Span(" " * max(0, wide - sum(text_width(span.text) for span in drawn)))
            spans += [space, *drawn] if column.right else [*drawn, space]
            spans.append(Span(" " * _GAP))
        lines.append(Line(tuple(spans), selected=focused and first + offset == at))
    if not found:
        lines.append(line(Span(_why_empty(keyboard, content, kind), Style.DIM)))
    return lines


def _why_empty(keyboard: Keyboard, content: Content, kind: str) -> str:
    if not content.known:
        return "waiting for the first answer"
    if keyboard.filter or keyboard.typed:
        return f"no {_KINDS[kind]} with these words; ESCAPE shows all"
    return {
        "gpus": "no GPUs: 'hypervisor doctor node' says why",
        "pods": "no Pods yet: start one with 'hypervisor exec --compute 40% --vram 8Gi -- COMMAND'",
        "nodes": "no node has reported yet",
    }[kind]


def _header(
    keyboard: Keyboard, content: Content, kind: str, columns: Sequence[tuple[Column, int]], glyphs: Glyphs
) -> Line:
    by = keyboard.sorted_by.get(kind, sortable(kind, cluster=content.cluster)[0].header)
    spans = []
    for column, wide in columns:
        text = cut(column.header, wide, glyphs)
        text = text.rjust(wide) if column.right else text.ljust(wide)
        spans.append(Span(text, Style.BOLD if column.header == by else Style.HEADER))
        spans.append(Span(" " * _GAP, Style.HEADER))
    return Line(tuple(spans))


def fitted(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit, by rank, in their order, with the spare width given to those that grow."""
    taken: set[int] = set()
    left = width
    for at in sorted(range(len(columns)), key=lambda at: columns[at].rank):
        if columns[at].width + _GAP <= left:
            taken.add(at)
            left -= columns[at].width + _GAP
    weights = sum(columns[at].grows for at in taken)
    shares = {at: (left * columns[at].grows // weights if weights else 0) for at in taken}
    return [(columns[at], columns[at].width + shares[at]) for at in sorted(taken)]


def _detail(keyboard: Keyboard, height: int) -> list[Line]:
    return [line(text) for text in keyboard.detail[keyboard.scroll : keyboard.scroll + height]]


def _below(keyboard: Keyboard, content: Content, width: int, height: int) -> list[Line]:
    """The last lines: what is asked or told in as many as it takes, else the keys in one."""
    asked = keyboard.mode in (Mode.FILTER, Mode.LIMITS, Mode.CONFIRM)
    message = _message(keyboard, content)
    if message is None:
        return [_keys(keyboard)]
    # At most half of the screen. A question has its answers, and a prompt what is being typed, at its end.
    most = max(1, height // 2)
    lines = message.wrapped(width - 1)  # the screen's last cell can't be written
    return lines[-most:] if asked else lines[:most]


def _message(keyboard: Keyboard, content: Content) -> Line | None:
    """The prompt, or what the user should know."""
    match keyboard.mode:
        case Mode.FILTER:
            return line(Span("show rows with: ", Style.BOLD), keyboard.typed, Span("_", Style.DIM))
        case Mode.LIMITS:
            asked = "new limits, for instance 40% 8Gi: "
            return line(
                Span(asked, Style.BOLD), keyboard.typed, Span("_  ", Style.DIM), Span(keyboard.notice, Style.BAD)
            )
        case Mode.CONFIRM:
            return line(Span(f"{keyboard.question}  y: do it, any other key: don't", Style.WARNING))
    if keyboard.notice:
        return line(Span(keyboard.notice, Style.WARNING))
    if content.trouble:
        return line(Span(content.trouble, Style.BAD))
    if keyboard.mode is Mode.DETAIL and keyboard.gone:
        return line(Span("it is no longer there; this is the last that was known  ESCAPE: back", Style.WARNING))
    return None


def _keys(keyboard: Keyboard) -> Line:
    if keyboard.mode is Mode.DETAIL:
        return line(Span("up, down: scroll  ESCAPE: back", Style.HEADER))
    shown = f"filter: {keyboard.filter}  " if keyboard.filter else ""
    return line(Span(shown, Style.ACCENT), Span(KEYS, Style.HEADER))
