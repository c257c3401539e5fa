"""The view as plain text, for pipes and files; pure."""

from __future__ import annotations

from hypervisor.top.cells import Glyphs
from hypervisor.top.content import Content
from hypervisor.top.keyboard import Keyboard, visible
from hypervisor.top.layout import summary, table, title


def plain_frame(content: Content, *, width: int, glyphs: Glyphs) -> str:
    """All rows of both tables, without colours and without cursor."""
    keyboard = Keyboard(focus="")
    lines = [title(content), summary(content)]
    for kind in ("gpus", "nodes" if content.cluster else "pods"):
        rows = visible(keyboard, content, kind)
        lines += [*table(keyboard, content, kind, rows, width=width, rows=max(1, len(rows)), glyphs=glyphs)]
    if content.trouble:
        return "\n".join([*(each.text.rstrip() for each in lines), content.trouble])
    return "\n".join(each.text.rstrip() for each in lines)
