"""The columns of the three tables. A new column is one row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypervisor.model.quantity import format_bytes
from hypervisor.top.cells import Glyphs, Span, Style, bar, cut, level, sparkline
from hypervisor.top.content import Content
from hypervisor.top.rows import GpuRow, NodeRow, PodRow

UNKNOWN = "-"
_HOT_CELSIUS, _VERY_HOT_CELSIUS = 80.0, 90.0
# Achieved above the limit by more than the control promises, in shares of GPU time.
_POINT = 0.01


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell may look at."""

    row: Any
    content: Content
    width: int
    glyphs: Glyphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. Those with the lowest rank are dropped last; spare columns go to those that grow."""

    header: str
    width: int
    rank: int
    draw: Callable[[Cell], list[Span]]
    # None: the table can't be sorted by it. Numbers sort largest first, words in alphabetical order.
    sort: Callable[[Any, Content], float | str] | None = None
    grows: int = 0
    right: bool = False


def _text(value: Callable[[Any], str], style: Callable[[Any], Style] = lambda _row: Style.NORMAL) -> Any:
    return lambda cell: [Span(cut(value(cell.row), cell.width, cell.glyphs), style(cell.row))]


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f}%" if ratio >= 0.0995 else f"{ratio * 100:.1f}%"


def _number(value: float | None, form: str = ".0f") -> str:
    return UNKNOWN if value is None else format(value, form)


def _order(value: float | None) -> float:
    """Unknown sorts after all that is known."""
    return -1.0 if value is None else float(value)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _past(cell: Cell) -> list[Span]:
    return [Span(sparkline(cell.content.past.get(cell.row.key, ()), cell.width, cell.glyphs), Style.ACCENT)]


def _health_style(row: GpuRow) -> Style:
    word = row.health.split(" ")[0]
    if word == "healthy":
        return Style.GOOD if not row.closed else Style.WARNING
    return Style.BAD if word in ("unhealthy", "lost") else Style.WARNING


def _health(row: GpuRow) -> str:
    return f"{row.health}, {row.closed}" if row.closed and row.health == "healthy" else row.health or UNKNOWN


def _temperature_style(row: GpuRow) -> Style:
    value = row.temperature_celsius or 0.0
    return Style.BAD if value >= _VERY_HOT_CELSIUS else Style.WARNING if value >= _HOT_CELSIUS else Style.NORMAL


def _memory(used: int | None, total: int | None) -> str:
    return f"{UNKNOWN if used is None else format_bytes(used)}/{UNKNOWN if total is None else format_bytes(total)}"


def _gpu_memory_bar(cell: Cell) -> list[Span]:
    ratio = _ratio(cell.row.memory_used, cell.row.memory_total)
    return bar(ratio, cell.width, cell.glyphs, style=level(ratio or 0.0))


def _busy_bar(cell: Cell) -> list[Span]:
    row: GpuRow = cell.row
    style = Style.DIM if row.stale else Style.GOOD
    return bar(row.busy, cell.width, cell.glyphs, style=style)


GPU_COLUMNS: tuple[Column, ...] = (
    Column(
        header="GPU",
        width=3,
        rank=0,
        right=True,
        draw=_text(lambda r: str(r.index)),
        sort=lambda r, _c: f"{r.node} {r.index:04}",
    ),
    Column(header="NODE", width=12, rank=3, grows=2, draw=_text(lambda r: r.node), sort=lambda r, _c: r.node),
    Column(header="MODEL", width=10, rank=5, grows=2, draw=_text(lambda r: r.model), sort=lambda r, _c: r.model),
    Column(
        header="BUSY",
        width=5,
        rank=0,
        right=True,
        draw=_text(lambda r: _percent(r.busy)),
        sort=lambda r, _c: _order(r.busy),
    ),
    Column(header="", width=8, rank=7, grows=2, draw=_busy_bar),
    Column(header="HISTORY", width=8, rank=6, grows=3, draw=_past),
    Column(
        header="VRAM",
        width=15,
        rank=1,
        right=True,
        draw=_text(lambda r: _memory(r.memory_used, r.memory_total)),
        sort=lambda r, _c: _order(_ratio(r.memory_used, r.memory_total)),
    ),
    Column(header="", width=8, rank=8, grows=2, draw=_gpu_memory_bar),
    Column(
        header="TEMP",
        width=4,
        rank=4,
        right=True,
        draw=_text(lambda r: _number(r.temperature_celsius), _temperature_style),
        sort=lambda r, _c: _order(r.temperature_celsius),
    ),
    Column(
        header="WATTS",
        width=5,
        rank=9,
        right=True,
        draw=_text(lambda r: _number(r.power_watts)),
        sort=lambda r, _c: _order(r.power_watts),
    ),
    Column(
        header="GRANTED",
        width=7,
        rank=5,
        right=True,
        draw=_text(lambda r: _percent(r.requested_share)),
        sort=lambda r, _c: r.requested_share,
    ),
    Column(
        header="PODS",
        width=4,
        rank=4,
        right=True,
        draw=_text(lambda r: str(r.allocations)),
        sort=lambda r, _c: float(r.allocations),
    ),
    Column(header="MODE", width=6, rank=10, draw=_text(lambda r: r.mode or UNKNOWN), sort=lambda r, _c: r.mode),
    Column(
        header="HEALTH",
        width=10,
        rank=2,
        grows=1,
        draw=_text(_health, _health_style),
        sort=lambda r, _c: f"{r.health == 'healthy'}{r.health}",
    ),
)


def _against_limit(row: PodRow) -> str:
    return f"{_percent(row.achieved)}/{_percent(row.limit_share)}"


def _share_style(row: PodRow) -> Style:
    if row.achieved is None:
        return Style.DIM
    return Style.WARNING if row.achieved > row.limit_share + _POINT else Style.GOOD


def _share_bar(cell: Cell) -> list[Span]:
    row: PodRow = cell.row
    return bar(row.achieved, cell.width, cell.glyphs, style=_share_style(row), limit=row.limit_share)


def _throttled(cell: Cell) -> list[Span]:
    value = cell.content.throttled.get(cell.row.key)
    return [Span(_percent(value), Style.WARNING if value else Style.NORMAL)]


def _pod_memory_bar(cell: Cell) -> list[Span]:
    ratio = _ratio(cell.row.vram_used, cell.row.vram_limit)
    return bar(ratio, cell.width, cell.glyphs, style=Style.BAD if cell.row.over else level(ratio or 0.0))


def _enforcement_style(row: PodRow) -> Style:
    match row.enforcement:
        case "verified":
            return Style.GOOD
        case "violated":
            return Style.BAD
        case "none":
            return Style.DIM
    return Style.WARNING


POD_COLUMNS: tuple[Column, ...] = (
    Column(
        header="NAME",
        width=14,
        rank=0,
        grows=3,
        draw=_text(lambda r: r.name, lambda _r: Style.BOLD),
        sort=lambda r, _c: r.name,
    ),
    Column(
        header="OWNER", width=12, rank=6, grows=2, draw=_text(lambda r: r.owner or UNKNOWN), sort=lambda r, _c: r.owner
    ),
    Column(
        header="GPU",
        width=3,
        rank=1,
        right=True,
        draw=_text(lambda r: str(r.gpu_index)),
        sort=lambda r, _c: f"{r.gpu_index:04}",
    ),
    Column(
        header="SHARE/LIMIT",
        width=11,
        rank=0,
        right=True,
        draw=_text(_against_limit, _share_style),
        sort=lambda r, _c: _order(r.achieved),
    ),
    Column(header="", width=8, rank=5, grows=2, draw=_share_bar),
    Column(header="HISTORY", width=8, rank=7, grows=3, draw=_past),
    Column(
        header="WAITS",
        width=5,
        rank=2,
        right=True,
        draw=_throttled,
        sort=lambda r, c: _order(c.throttled.get(r.key)),
    ),
    Column(
        header="VRAM",
        width=15,
        rank=1,
        right=True,
        draw=_text(lambda r: _memory(r.vram_used, r.vram_limit) + ("!" if r.over else "")),
        sort=lambda r, _c: _order(r.vram_used),
    ),
    Column(header="", width=8, rank=8, grows=2, draw=_pod_memory_bar),
    Column(
        header="DENIED",
        width=6,
        rank=9,
        right=True,
        draw=_text(lambda r: _number(r.denials)),
        sort=lambda r, _c: _order(r.denials),
    ),
    Column(
        header="PROCS",
        width=5,
        rank=9,
        right=True,
        draw=_text(lambda r: str(r.processes)),
        sort=lambda r, _c: float(r.processes),
    ),
    Column(
        header="ENFORCED",
        width=10,
        rank=4,
        grows=1,
        draw=_text(lambda r: r.enforcement if r.phase in ("", "active") else r.phase, _enforcement_style),
        sort=lambda r, _c: r.enforcement,
    ),
)


def _liveness_style(row: NodeRow) -> Style:
    return {"fresh": Style.GOOD, "lost": Style.BAD}.get(row.liveness, Style.WARNING)


NODE_COLUMNS: tuple[Column, ...] = (
    Column(
        header="NODE",
        width=16,
        rank=0,
        grows=3,
        draw=_text(lambda r: r.name, lambda _r: Style.BOLD),
        sort=lambda r, _c: r.name,
    ),
    Column(
        header="HEARD",
        width=6,
        rank=0,
        draw=_text(lambda r: r.liveness, _liveness_style),
        sort=lambda r, _c: r.liveness,
    ),
    Column(
        header="SECONDS AGO",
        width=11,
        rank=4,
        right=True,
        draw=_text(lambda r: _number(r.heard_seconds_ago)),
        sort=lambda r, _c: r.heard_seconds_ago,
    ),
    Column(
        header="GPUS", width=4, rank=1, right=True, draw=_text(lambda r: str(r.gpus)), sort=lambda r, _c: float(r.gpus)
    ),
    Column(
        header="TFLOPS",
        width=8,
        rank=2,
        right=True,
        draw=_text(lambda r: _number(r.tflops)),
        sort=lambda r, _c: _order(r.tflops),
    ),
    Column(
        header="VRAM",
        width=8,
        rank=2,
        right=True,
        draw=_text(lambda r: UNKNOWN if r.vram is None else format_bytes(r.vram)),
        sort=lambda r, _c: _order(r.vram),
    ),
    Column(header="DRIVER", width=12, rank=5, draw=_text(lambda r: r.driver or UNKNOWN), sort=lambda r, _c: r.driver),
    Column(header="VERSION", width=8, rank=6, draw=_text(lambda r: r.version or UNKNOWN), sort=lambda r, _c: r.version),
    Column(
        header="READY",
        width=8,
        rank=3,
        grows=2,
        draw=_text(lambda r: r.ready, lambda r: Style.GOOD if r.ready == "ready" else Style.BAD),
        sort=lambda r, _c: r.ready,
    ),
)

TABLES: Mapping[str, tuple[Column, ...]] = {"gpus": GPU_COLUMNS, "pods": POD_COLUMNS, "nodes": NODE_COLUMNS}


def columns_of(kind: str, *, cluster: bool) -> tuple[Column, ...]:
    """The columns of a table; the node's name is one in a cluster only."""
    found = TABLES[kind]
    return found if cluster or kind != "gpus" else tuple(each for each in found if each.header != "NODE")


def sortable(kind: str, *, cluster: bool) -> tuple[Column, ...]:
    """The columns that a table can be sorted by."""
    return tuple(column for column in columns_of(kind, cluster=cluster) if column.sort is not None)
