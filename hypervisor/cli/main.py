"""The program `hypervisor`: finds the subcommand, and turns errors into one line and an exit status."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Mapping

import click

from hypervisor.cli.failure import EXIT_USAGE, CommandError

# Name of the subcommand -> module:attribute. A new subcommand is one file and one row.
SUBCOMMANDS: Mapping[str, str] = {
    "aggregator": "hypervisor.cli.aggregator:aggregator",
    "allocate": "hypervisor.cli.allocate:allocate",
    "certs": "hypervisor.cli.certs:certs",
    "checkpoint": "hypervisor.cli.checkpoint:checkpoint",
    "demo": "hypervisor.cli.demo:demo",
    "describe": "hypervisor.cli.describe:describe",
    "doctor": "hypervisor.cli.doctor:doctor",
    "exec": "hypervisor.cli.exec:exec_command",
    "get": "hypervisor.cli.get:get",
    "gpu-mode": "hypervisor.cli.gpu_mode:gpu_mode",
    "gpu-reader": "hypervisor.cli.gpu_reader:gpu_reader",
    "kube": "hypervisor.cli.kube:kube",
    "preload": "hypervisor.cli.preload:preload",
    "release": "hypervisor.cli.release:release",
    "resume": "hypervisor.cli.snapshot:resume",
    "run": "hypervisor.cli.run:run",
    "set-limits": "hypervisor.cli.set_limits:set_limits",
    "sim": "hypervisor.cli.sim:sim",
    "top": "hypervisor.cli.top:top",
    "snapshot": "hypervisor.cli.snapshot:snapshot",
    "version": "hypervisor.cli.version:version",
    "worker": "hypervisor.cli.worker:worker",
}


class Subcommands(click.Group):
    """A group whose members are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = SUBCOMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{target} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click looks for names that are close among the commands it has loaded, and here it has loaded none.
        name = args[0]
        if name not in SUBCOMMANDS and not name.startswith("-"):
            import difflib  # here only: the start of every command would wait for it

            close = " or ".join(f"'{each}'" for each in difflib.get_close_matches(name, SUBCOMMANDS, n=2))
            ctx.fail(f"No such command '{name}'." + (f" Did you mean {close}?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="gpu-hypervisor", message="%(version)s")
def hypervisor(*, debug: bool) -> None:
    """Share the GPUs of this machine, each workload with the TFLOPS and VRAM that it was promised."""
    del debug  # read by main() from the context, when something goes wrong


# What a write to our output may fail with: a full disk or quota, a file that is too large, a terminal that has gone.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _open_streams() -> None:
    """Put /dev/null where our input or outputs were closed: what is opened next would be written to as one of them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for the rest of our life


def _drop_output() -> None:
    """What is left of our output goes nowhere; the interpreter would try again at its end, and say so."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 3 the server can't be reached."""
    _open_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = hypervisor.main(args=arguments, prog_name="hypervisor", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_USAGE)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hypervisor"
        # A list of choices comes with a line each.
        message = " ".join(error.format_message().split())
        ending = "" if message.endswith((".", "?", ")")) else "."
        click.echo(f"{command}: {message}{ending} See '{command} --help'.", err=True)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        click.echo(f"hypervisor: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except CommandError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"hypervisor: {error}", err=True)
        sys.exit(error.status)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # One without a file's name is of a stream that was open before.
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None or "--debug" in arguments:
            raise
        _drop_output()
        click.echo(f"hypervisor: can't write the output: {error.strerror}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
