"""`hypervisor get`: lists and watches objects of a node or of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from hypervisor.cli.connection import connected, server_option
from hypervisor.cli.event_options import check_kind, event_options, events_wanted
from hypervisor.cli.failure import EXIT_UNREACHABLE, CommandError
from hypervisor.cli.output import aligned, as_dict, fitted, natural_widths, output_option, render, table_width
from hypervisor.cli.source import KINDS, Change, Source, open_source

if TYPE_CHECKING:
    from hypervisor.cli.output import Table

EXIT_INTERRUPTED = 130


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
@click.argument("names", nargs=-1)
@output_option
@click.option("-w", "--watch", is_flag=True, help="Go on printing changes until interrupted")
@event_options
@server_option
def get(
    *,
    kind: str,
    names: tuple[str, ...],
    output: str,
    watch: bool,
    subject: str | None,
    event_type: str | None,
    server: str | None,
) -> int:
    """Print nodes, gpus, pods, workers, events or pools, all or those of NAMES.

    A GPU is named by its index, its UUID or the beginning of its UUID. Pods are all that has a share of a GPU, Pods of
    Kubernetes and plain processes alike. Behind a slash stands what there is, before it what is free.
    """
    wanted = KINDS[kind]
    check_kind(wanted, subject, event_type)
    try:
        with connected(server) as client:
            source = open_source(client)
            events = events_wanted(source, subject, event_type) if wanted == "events" else None
            if watch:
                changes = source.watch(wanted) if events is None else source.watch_events(events)
                _watch(changes, wanted, names, output)
                raise CommandError(f"{client.address} has ended the watch", status=EXIT_UNREACHABLE)
            items = source.objects(wanted) if events is None else source.events(events)
            text = _listed(source, items, wanted, names, output)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if text:
        click.echo(text)
    return 0


def _listed(source: Source, items: Sequence[Any], kind: str, names: Sequence[str], output: str) -> str:
    if names:
        items = [pick(items, kind, name) for name in names]
    if not items and output in ("table", "wide"):
        why = source.why_none(kind)
        click.echo(f"no {kind}: {why}" if why else f"no {kind}", err=True)
        return ""
    return render(items, _table(items, kind), output)


def pick(items: Sequence[Any], kind: str, name: str) -> Any:
    """The object of a name. Raises CommandError when there is none, or more than one."""
    found = [item for item in items if matches(item, kind, name)]
    exact = [item for item in found if _table([item], kind).name(item).lower() == name.lower()]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if found:
        raise CommandError(f"{name!r} is the beginning of the names of {len(found)} {kind}; write more of it")
    known = ", ".join(_table([item], kind).name(item) for item in items[:8]) or "none at all"
    raise CommandError(f"there is no {kind.removesuffix('s')} {name!r}; there are {known}")


def matches(item: Any, kind: str, name: str) -> bool:
    """Whether a name that somebody typed may mean the object."""
    full = _table([item], kind).name(item).lower()
    if kind != "gpus":
        return bool(full == name.lower())
    gpu = item if hasattr(item, "uuid") else item.gpu
    beginning = len(name) >= 4 and full.startswith(name.lower())
    return bool(full == name.lower() or beginning or (name.isdecimal() and str(gpu.index) == name))


def _table(items: Sequence[Any], kind: str) -> Table:
    from hypervisor.cli.tables import EMPTY, table_of

    return table_of(items[0]) if items else EMPTY[kind]


def _watch(changes: Iterable[Change], kind: str, names: Sequence[str], output: str) -> None:
    show = _printer(kind, output)
    for change in changes:
        if not names or any(matches(change.item, kind, name) for name in names):
            show(change)


def _printer(kind: str, output: str) -> Callable[[Change], None]:
    """What prints one change: JSON or YAML documents, names, or rows of which only those that differ are printed."""
    if output in ("json", "yaml"):
        return lambda change: _print_document(change, output)
    if output == "name":
        return lambda change: click.echo(_table([change.item], kind).name(change.item))
    return RowPrinter(kind, wide=output == "wide").show


def _print_document(change: Change, output: str) -> None:
    value = {"type": change.type, "object": as_dict(change.item)}
    if output == "json":
        click.echo(json.dumps(value, ensure_ascii=False))
        return
    import yaml

    click.echo("---\n" + yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


class RowPrinter:
    """Prints a row for each change that can be seen in it; columns only grow."""

    def __init__(self, kind: str, *, wide: bool) -> None:
        self._kind = kind
        self._wide = wide
        self._printed: dict[str, list[str]] = {}
        self._natural: list[int] = []

    def show(self, change: Change) -> None:
        table = _table([change.item], self._kind)
        header, row = table.rows([change.item], wide=self._wide)
        name = table.name(change.item)
        if change.type == "DELETED":
            self._printed.pop(name, None)
            click.echo(f"{name} is gone")
            return
        if self._printed.get(name) == row:
            return
        self._printed[name] = row
        needed = natural_widths([header, row])
        first = not self._natural
        self._natural = needed if first else [max(pair) for pair in zip(self._natural, needed, strict=True)]
        shrinks = [column.shrinks for column in table.shown(wide=self._wide)]
        columns = fitted(self._natural, shrinks, None if self._wide else table_width())
        for line in aligned([header, row] if first else [row], columns):
            click.echo(line)
