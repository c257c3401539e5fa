"""Pieces of a line: spans of text with a style, bars and sparklines; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from hypervisor.model.text import first_columns, text_width


class Style(Enum):
    """What a piece of text means; the screen decides how that looks."""

    NORMAL = auto()
    DIM = auto()
    BOLD = auto()
    HEADER = auto()
    GOOD = auto()
    WARNING = auto()
    BAD = auto()
    ACCENT = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one style."""

    text: str
    style: Style = Style.NORMAL


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen; a selected one is shown reversed."""

    spans: tuple[Span, ...] = ()
    selected: bool = False

    @property
    def text(self) -> str:
        """The line without styles."""
        return "".join(span.text for span in self.spans)

    def fitted(self, width: int) -> Line:
        """The line in exactly so many columns."""
        left, spans = width, []
        for span in self.spans:
            if left <= 0:
                break
            spans.append(replace(span, text=first_columns(span.text, left)))
            left -= text_width(spans[-1].text)
            if spans[-1].text != span.text:
                break  # half of a wide letter's room may be left
        if left > 0:
            spans.append(Span(" " * left))
        return Line(tuple(spans), self.selected)

    def wrapped(self, width: int) -> list[Line]:
        """The line in lines of at most so many columns, broken at spaces where there are any; one at least."""
        letters = [(mark, span.style) for span in self.spans for mark in span.text]
        lines = []
        while letters:
            end = len(first_columns("".join(mark for mark, _ in letters), width)) or 1
            if end < len(letters):
                spaces = [at for at in range(1, end + 1) if letters[at][0] == " "]
                end = spaces[-1] if spaces else end
            lines.append(Line(tuple(_joined(*zip(*letters[:end], strict=True))), self.selected))
            while end < len(letters) and letters[end][0] == " ":
                end += 1
            letters = letters[end:]
        return lines or [self]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The marks that bars and sparklines are drawn with."""

    # From empty to full, evenly spaced.
    spark: str
    full: str
    empty: str
    limit: str
    ellipsis: str


UNICODE = Glyphs(spark=" ▁▂▃▄▅▆▇█", full="█", empty="░", limit="┃", ellipsis="…")
ASCII = Glyphs(spark=" .:-=+*#%", full="#", empty=".", limit="|", ellipsis="~")


def line(*parts: str | Span) -> Line:
    """A line of strings and spans."""
    return Line(tuple(Span(part) if isinstance(part, str) else part for part in parts))


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Printable text in at most so many columns; the cut is marked."""
    text = "".join(mark if mark.isprintable() else " " for mark in text)
    if text_width(text) <= width:
        return text
    return first_columns(text, width - 1) + glyphs.ellipsis[: max(0, width)]


def level(ratio: float, *, warning: float = 0.8, bad: float = 0.95) -> Style:
    """The style of a use of something that should not run full."""
    return Style.BAD if ratio >= bad else Style.WARNING if ratio >= warning else Style.GOOD


def bar(ratio: float | None, width: int, glyphs: Glyphs, *, style: Style, limit: float | None = None) -> list[Span]:
    """A bar of so many columns, full at 1, with a mark at the limit where there is one below 1."""
    if width <= 0:
        return []
    if ratio is None:
        return [Span(" " * width)]
    filled = round(min(max(ratio, 0.0), 1.0) * width)
    marks = [glyphs.full] * filled + [glyphs.empty] * (width - filled)
    styles = [style] * filled + [Style.DIM] * (width - filled)
    if limit is not None and 0 < limit < 1:
        at = min(width - 1, round(limit * width))
        marks[at], styles[at] = glyphs.limit, Style.ACCENT
    return _joined(marks, styles)


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs) -> str:
    """The last values, of 0 to 1, right-aligned; a gap where one is not known."""
    steps = len(glyphs.spark) - 1

    def mark(value: float | None) -> str:
        if value is None:
            return " "
        # What is not zero shows: the lowest visible step is for it.
        return glyphs.spark[max(1 if value > 0 else 0, min(steps, round(value * steps)))]

    return "".join(mark(value) for value in values[-width:]).rjust(width) if width > 0 else ""


def _joined(marks: Iterable[str], styles: Iterable[Style]) -> list[Span]:
    spans: list[Span] = []
    for mark, style in zip(marks, styles, strict=True):
        if spans and spans[-1].style is style:
            spans[-1] = Span(spans[-1].text + mark, style)
        else:
            spans.append(Span(mark, style))
    return spans
