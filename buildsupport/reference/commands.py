"""docs/cli.md, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from buildsupport.reference.markdown import MADE, code, table
from hypervisor.cli.main import hypervisor
from hypervisor.config import setting_names

_HEAD = f"""# The command line

{MADE}

One program, `hypervisor`. Without root, sockets and state lie in your own directories, and every command finds them there; with `--server` it asks another node or an aggregator.

- Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server can't be reached. `exec` ends with its child's status, an end by signal N with 128 + N.
- What goes wrong is one line on stderr: what, why, and what to do. `hypervisor --debug COMMAND` shows the traceback.
- Amounts: `8Gi`, `8192Mi`, `24G` are bytes of VRAM; `40%` is a share of a card's GPU time; `312` are TFLOPS.
- `-o json` has the field names of the gRPC API in JSON form, so that scripts can rely on them.
"""  # noqa: E501 - Markdown has one line a paragraph


def document() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_command(hypervisor, "hypervisor", None, depth=1)))


def _command(command: click.Command, path: str, parent: click.Context | None, *, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=path.rsplit(" ", 1)[-1], parent=parent)
    if depth > 1:
        yield from (f"{'#' * min(depth, 4)} {path}", "")
    yield from ("```", f"{path} {' '.join(command.collect_usage_pieces(context))}".rstrip(), "```", "")
    if command.help:
        yield from (_paragraphs(command.help), "")
    rows = [_row(each, context) for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if path == "hypervisor run":
        yield from ("Each [setting](settings.md) is an option too.", "")
        settings = set(setting_names())
        rows = [_row(each, context) for each in command.params if each.name not in settings]
    if rows:
        yield from (*table(("option", "meaning"), rows), "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None and not member.hidden:
                yield from _command(member, f"{path} {name}", context, depth=depth + 1)


def _row(option: click.Parameter, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None, option.name
    return code(record[0]), record[1]


def _paragraphs(text: str) -> str:
    """The help without its indentation and without marks for click's own line breaks; what was typed as an example
    stays one."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [paragraph.replace("<", "&lt;").replace("\n", " "), ""]
    return "\n".join(lines).rstrip()
