"""The command line: one file a subcommand, no logic.

Subcommands are imported when they are called, so that each starts as fast as its own imports allow.
"""

from hypervisor.cli.main import main

__all__ = ["main"]
