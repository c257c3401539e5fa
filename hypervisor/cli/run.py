"""`hypervisor run`: the daemon. Its options are made from the settings, so that a new setting is one field there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_origin

import click

from hypervisor import config
from hypervisor.cli.failure import EXIT_USAGE, CommandError

Command = Callable[..., Any]


def setting_options(command: Command) -> Command:
    """Give a command one option a setting; what is not given is None, or () where there may be several."""
    for name in reversed(config.setting_names()):
        command = _option(name)(command)
    return command


def _option(name: str) -> Callable[[Command], Command]:
    text, reloadable = config.describe(name)
    default, flag = config.default(name), "--" + name.replace("_", "-")
    shown = f"  [{config.ENVIRONMENT_PREFIX}{name.upper()}{_default_words(default)}{'; SIGHUP' if reloadable else ''}]"
    if config.kind(name) is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text + shown)
    multiple = get_origin(config.kind(name)) is tuple
    value = str if multiple else config.kind(name)
    return click.option(
        flag, name, type=value, multiple=multiple, default=None, help=text + shown, metavar=_kind(value)
    )


def _default_words(default: object) -> str:
    return "" if default in ("", (), False) else f"; default {default}"


def _kind(value: type) -> str:
    return {int: "N", float: "NUMBER"}.get(value, "TEXT")


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="HYPERVISOR_CONFIG",
    metavar="FILE",
    help="TOML file of settings; environment and options win over it.",
)
@setting_options
def run(file: Path | None, **given: Any) -> None:
    """Run the daemon of this node.

    Every option is also a key of the settings file and an environment variable. SIGHUP reads the settings again and
    takes those marked so; SIGTERM ends the daemon, and what runs stays limited.
    """
    flags = {name: value for name, value in given.items() if value not in (None, ())}

    def read_settings() -> config.Settings:
        return config.load(file=file, environment=os.environ, flags=flags)

    try:
        settings = read_settings()
    except config.SettingsError as error:
        raise CommandError(str(error), status=EXIT_USAGE) from None
    _run(settings, read_settings)


def _run(settings: config.Settings, read_settings: Callable[[], config.Settings]) -> None:
    # structlog takes rich wherever it is installed (for `top`): four megabytes for colours that the daemon never shows.
    # None is how an import is refused.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    import structlog
    import trio

    from hypervisor.node import daemon, logs

    logs.set_up(settings.log_level)
    surroundings = daemon.Surroundings(read_settings=read_settings, environment=dict(os.environ), announce=_announce)
    try:
        trio.run(daemon.run, settings, surroundings)
    except KeyboardInterrupt:
        raise CommandError("interrupted", status=130) from None
    except Exception as error:
        expected = _expected(error)
        if expected is not None:
            raise CommandError(expected) from error
        structlog.get_logger("node").critical("the daemon has failed", exc_info=error)
        cause = next(_leaves(error))
        raise CommandError(
            f"the daemon has failed ({type(cause).__name__}: {cause}); workloads stay limited; the log above has the"
            " traceback, and a restart adopts what runs"
        ) from error


def _announce(addresses: Any) -> None:
    if not sys.stderr.isatty():
        return
    machine = f", on the simulated machine {addresses.machine}" if addresses.machine else ""
    click.echo(f"hypervisor serves {', '.join(addresses.grpc)} and {addresses.http}{machine}", err=True)


def _expected(error: BaseException) -> str | None:
    """The words of an error that users are meant to meet; None for a defect."""
    from hypervisor.http import AddressInUse
    from hypervisor.model import Refusal
    from hypervisor.node.failure import StartError, storage_error
    from hypervisor.rpc import ListenError

    for leaf in _leaves(error):
        if isinstance(leaf, (StartError, AddressInUse, ListenError, Refusal, config.SettingsError)):
            return str(leaf)
        if isinstance(leaf, OSError) and leaf.filename is not None:
            return str(storage_error("use", Path(os.fsdecode(leaf.filename)), leaf))
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The single errors of a group, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
