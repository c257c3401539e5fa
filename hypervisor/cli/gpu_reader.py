"""`hypervisor gpu-reader`: the child process that owns NVML; the daemon starts it."""

from __future__ import annotations

import sys

import click

from hypervisor.cli.failure import EXIT_USAGE, CommandError


@click.command(name="gpu-reader", hidden=True)
def gpu_reader() -> None:
    """Answer the daemon's questions about the GPUs, in frames over stdin and stdout; ends when stdin closes."""
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise CommandError(
            "gpu-reader speaks frames over pipes with the daemon that started it; run 'hypervisor run' instead",
            status=EXIT_USAGE,
        )
    from hypervisor.gpu.child import serve_pipes

    serve_pipes()
