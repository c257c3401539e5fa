"""The state of the keyboard: which table, which row, which prompt; one pure step for each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from hypervisor.model.quantity import format_bytes
from hypervisor.top.columns import sortable
from hypervisor.top.content import Content
from hypervisor.top.rows import GpuRow, NodeRow, PodRow

_LONGEST_INPUT = 120


class Mode(Enum):
    """What the keys mean."""

    LIST = auto()
    FILTER = auto()
    DETAIL = auto()
    LIMITS = auto()
    CONFIRM = auto()
    HELP = auto()


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave."""


@dataclass(frozen=True, slots=True)
class ShowDetail:
    """Fetch the page of an object."""

    kind: str
    key: str
    message: Any


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Understand what was typed as limits of a Pod's device."""

    name: str
    gpu_uuid: str
    text: str
    # What it has until then, for the confirmation.
    present: str


@dataclass(frozen=True, slots=True)
class ApplyLimits:
    """Make the change that was confirmed."""


Action = Quit | ShowDetail | ReadLimits | ApplyLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyboard:
    """What the user has chosen so far."""

    mode: Mode = Mode.LIST
    # "gpus", and "pods" or "nodes".
    focus: str = "gpus"
    # Table -> key of the selected row; the first row where there is none.
    selected: Mapping[str, str] = field(default_factory=dict)
    # Table -> header of the column that it is sorted by.
    sorted_by: Mapping[str, str] = field(default_factory=dict)
    reversed: frozenset[str] = frozenset()
    # Words that a row must contain, all of them.
    filter: str = ""
    # What is being typed at a prompt.
    typed: str = ""
    detail: tuple[str, ...] = ()
    # What the page is about is no longer there.
    gone: bool = False
    scroll: int = 0
    # One line for the user; gone with the next key.
    notice: str = ""
    # What a confirmation is about.
    question: str = ""


def visible(keyboard: Keyboard, content: Content, kind: str) -> list[Any]:
    """The rows of a table, filtered and in order."""
    tables: Mapping[str, tuple[Any, ...]] = {"gpus": content.gpus, "pods": content.pods, "nodes": content.nodes}
    words = (keyboard.typed if keyboard.mode is Mode.FILTER else keyboard.filter).lower().split()
    kept = [row for row in tables[kind] if all(word in searched(row) for word in words)]
    if kind == "gpus" and words:
        # Who looks for a Pod wants to see its card too.
        cards = {row.gpu_uuid.lower() for row in visible(keyboard, content, "pods")}
        found = {row.key for row in kept}
        kept += [row for row in content.gpus if row.key in cards - found]
    by = keyboard.sorted_by.get(kind)
    column = next((each for each in sortable(kind, cluster=content.cluster) if each.header == by), None)
    if column is None or column.sort is None:
        column = next(iter(sortable(kind, cluster=content.cluster)))
    assert column.sort is not None
    order = column.sort
    values = {row.key: order(row, content) for row in kept}
    # Numbers are of interest from above, words from their beginning.
    downwards = any(isinstance(value, float) for value in values.values())
    return sorted(kept, key=lambda row: values[row.key], reverse=downwards != (kind in keyboard.reversed))


def searched(row: GpuRow | PodRow | NodeRow) -> str:
    """The text of a row that a filter looks into."""
    parts: tuple[str, ...]
    match row:
        case GpuRow():
            parts = (str(row.index), row.key, row.node, row.model, row.health, row.closed, row.mode)
        case PodRow():
            parts = (row.name, row.owner, str(row.gpu_index), row.gpu_uuid.lower(), row.enforcement, row.phase)
        case NodeRow():
            parts = (row.name, row.liveness, row.driver, row.version, row.ready)
    return " ".join(parts).lower()


def position(keyboard: Keyboard, rows: list[Any], kind: str) -> int:
    """Where the selected row stands; 0 when it is gone."""
    key = keyboard.selected.get(kind)
    return next((at for at, row in enumerate(rows) if row.key == key), 0)


def press(keyboard: Keyboard, key: str, content: Content) -> tuple[Keyboard, Action | None]:
    """The state after a key, and what is to be done about it. Keys: characters, or names such as UP and ENTER."""
    keyboard = replace(keyboard, notice="")
    return _MODES[keyboard.mode](keyboard, key, content)


def _list(keyboard: Keyboard, key: str, content: Content) -> tuple[Keyboard, Action | None]:
    moved = _moved(keyboard, key, content)
    if moved is not None:
        return moved, None
    match key:
        case "q":
            return keyboard, Quit()
        case "ESCAPE":
            return replace(keyboard, filter=""), None
        case "TAB":
            return replace(keyboard, focus=_other(keyboard.focus, content)), None
        case "/":
            return replace(keyboard, mode=Mode.FILTER, typed=keyboard.filter), None
        case "s" | "S":
            return _sorted(keyboard, content, backwards=key == "S"), None
        case "r":
            return replace(keyboard, reversed=keyboard.reversed ^ {keyboard.focus}), None
        case "?" | "h":
            return replace(keyboard, mode=Mode.HELP), None
        case "ENTER":
            return _opened(keyboard, content)
        case "l":
            return _asked_for_limits(keyboard, content), None
    return keyboard, None


def _moved(keyboard: Keyboard, key: str, content: Content) -> Keyboard | None:
    steps = {"UP": -1, "k": -1, "DOWN": 1, "j": 1, "PAGE_UP": -10, "PAGE_DOWN": 10, "HOME": -(10**9), "END": 10**9}
    if key not in steps:
        return None
    kind = keyboard.focus
    rows = visible(keyboard, content, kind)
    if not rows:
        return keyboard
    at = min(max(position(keyboard, rows, kind) + steps[key], 0), len(rows) - 1)
    return replace(keyboard, selected={**keyboard.selected, kind: rows[at].key})


def _other(focus: str, content: Content) -> str:
    lower = "nodes" if content.cluster else "pods"
    return lower if focus == "gpus" else "gpus"


def _sorted(keyboard: Keyboard, content: Content, *, backwards: bool) -> Keyboard:
    kind = keyboard.focus
    headers = [column.header for column in sortable(kind, cluster=content.cluster)]
    now = keyboard.sorted_by.get(kind, headers[0])
    at = headers.index(now) if now in headers else 0
    chosen = headers[(at + (-1 if backwards else 1)) % len(headers)]
    return replace(keyboard, sorted_by={**keyboard.sorted_by, kind: chosen}, notice=f"sorted by {chosen.lower()}")


def chosen(keyboard: Keyboard, content: Content) -> Any:
    """The selected row of the table in focus; None when it is empty."""
    rows = visible(keyboard, content, keyboard.focus)
    return rows[position(keyboard, rows, keyboard.focus)] if rows else None


def _opened(keyboard: Keyboard, content: Content) -> tuple[Keyboard, Action | None]:
    row = chosen(keyboard, content)
    if row is None:
        return replace(keyboard, notice="nothing is selected"), None
    return keyboard, ShowDetail(keyboard.focus, row.key, row.message)


def _asked_for_limits(keyboard: Keyboard, content: Content) -> Keyboard:
    if content.cluster:
        return replace(keyboard, notice="limits are changed on their node: run top there")
    if keyboard.focus != "pods":
        return replace(keyboard, notice="limits belong to Pods: press TAB and choose one")
    row = chosen(keyboard, content)
    if row is None:
        return replace(keyboard, notice="no Pod is selected")
    # The row itself and not its place: the order may change while somebody types.
    return replace(keyboard, mode=Mode.LIMITS, typed="", selected={**keyboard.selected, "pods": row.key})


def _typing(
    then: Callable[[Keyboard, Content], tuple[Keyboard, Action | None]],
) -> Callable[[Keyboard, str, Content], tuple[Keyboard, Action | None]]:
    """Keys at a prompt: what ENTER does is given; ESCAPE leaves without doing it."""

    def step(keyboard: Keyboard, key: str, content: Content) -> tuple[Keyboard, Action | None]:
        match key:
            case "ENTER":
                return then(keyboard, content)
            case "ESCAPE":
                return replace(keyboard, mode=Mode.LIST, typed=""), None
            case "BACKSPACE":
                return replace(keyboard, typed=keyboard.typed[:-1]), None
        if len(key) == 1 and key.isprintable() and len(keyboard.typed) < _LONGEST_INPUT:
            return replace(keyboard, typed=keyboard.typed + key), None
        return keyboard, None

    return step


def _filtered(keyboard: Keyboard, _content: Content) -> tuple[Keyboard, Action | None]:
    return replace(keyboard, mode=Mode.LIST, filter=keyboard.typed, typed=""), None


def _limits_typed(keyboard: Keyboard, content: Content) -> tuple[Keyboard, Action | None]:
    row = chosen(keyboard, content)
    if not isinstance(row, PodRow) or row.key != keyboard.selected.get("pods"):
        return replace(keyboard, mode=Mode.LIST, notice="the Pod has gone"), None
    present = f"{row.limit_share * 100:g}% and {format_bytes(row.vram_limit)}"
    return keyboard, ReadLimits(row.name, row.gpu_uuid, keyboard.typed, present)


def _confirm(keyboard: Keyboard, key: str, _content: Content) -> tuple[Keyboard, Action | None]:
    if key == "y":
        return replace(keyboard, mode=Mode.LIST, typed="", question=""), ApplyLimits()
    return replace(keyboard, mode=Mode.LIST, typed="", question="", notice="nothing was changed"), None


def _detail(keyboard: Keyboard, key: str, _content: Content) -> tuple[Keyboard, Action | None]:
    steps = {"UP": -1, "k": -1, "DOWN": 1, "j": 1, "PAGE_UP": -10, "PAGE_DOWN": 10, "HOME": -(10**9), "END": 10**9}
    if key in steps:
        at = min(max(keyboard.scroll + steps[key], 0), max(0, len(keyboard.detail) - 1))
        return replace(keyboard, scroll=at), None
    if key in ("q", "ESCAPE", "ENTER"):
        return replace(keyboard, mode=Mode.LIST, detail=(), gone=False, scroll=0), None
    return keyboard, None


def told(keyboard: Keyboard, page: tuple[str, ...] | None, *, gone: bool) -> Keyboard:
    """The state after news of the object whose page is shown: its page where there is a newer one."""
    if keyboard.mode is not Mode.DETAIL:
        return keyboard
    page = keyboard.detail if page is None else page
    return replace(keyboard, detail=page, gone=gone, scroll=min(keyboard.scroll, max(0, len(page) - 1)))


def _help(keyboard: Keyboard, _key: str, _content: Content) -> tuple[Keyboard, Action | None]:
    return replace(keyboard, mode=Mode.LIST), None


_MODES: Mapping[Mode, Callable[[Keyboard, str, Content], tuple[Keyboard, Action | None]]] = {
    Mode.LIST: _list,
    Mode.FILTER: _typing(_filtered),
    Mode.LIMITS: _typing(_limits_typed),
    Mode.CONFIRM: _confirm,
    Mode.DETAIL: _detail,
    Mode.HELP: _help,
}

HELP: tuple[str, ...] = (
    "TAB        the other table",
    "up, down   choose a row (also j, k, page keys, home, end)",
    "ENTER      all that is known of it; ESCAPE goes back",
    "/          only rows with these words, and such Pods' GPUs; ESCAPE: all again",
    "s, S       sort by the next or the previous column; r turns the order round",
    "l          other limits for the chosen Pod, for instance: 40% 8Gi",
    "q          leave",
    "",
    "BUSY       share of time with a kernel on the GPU, by the driver",
    "GRANTED    share of the GPU's time that is promised to Pods",
    "SHARE      share of the GPU's time that the Pod had lately, against its limit",
    "WAITS      part of the last seconds in which its launches waited",
    "VRAM       used against the whole or the limit; !: above a lowered limit",
    "ENFORCED   verified: the driver agrees; violated: something gets past the limit",
)
