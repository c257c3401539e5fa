"""The gate of `hypervisor doctor node`: try for a while, and tell Kubernetes when it was in vain."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from hypervisor.cli.failure import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hypervisor.model import CheckResult, Diagnosis

AGAIN_SECONDS = 5.0


def passing(examine: Callable[[], Diagnosis], *, within: float) -> tuple[Diagnosis, Sequence[CheckResult]]:
    """The last diagnosis, and what refuses the node; tried anew until nothing does or the time is over."""
    from hypervisor.doctor.check import gate_failures
    from hypervisor.doctor.checks import NODE_CHECKS

    deadline = time.monotonic() + within
    while True:
        diagnosis = examine()
        refused = gate_failures(NODE_CHECKS, diagnosis)
        left = deadline - time.monotonic()
        if not refused or not left > 0:  # not a number is no time either
            return diagnosis, refused
        time.sleep(min(AGAIN_SECONDS, left))


def refuse(refused: Sequence[CheckResult], *, job: str | None, kubeconfig: str) -> None:
    """End with what refuses the node, told to Kubernetes where a Job is named. Raises CommandError."""
    from hypervisor.model import SkipReason

    first = [each for each in refused if each.skip_reason is not SkipReason.BLOCKED]
    depend = f", and {len(refused) - len(first)} that come after" if len(first) < len(refused) else ""
    if job is not None:
        from hypervisor.node.driver_probe import Job, tell
        from hypervisor.node.failure import StartError

        namespace, name, uid = _job(job)
        node = os.environ.get("HYPERVISOR_NODE_NAME") or socket.gethostname()
        try:
            why = tell(Job(namespace, name, uid), node, first, kubeconfig=kubeconfig)
        except StartError as error:
            why = str(error)
        if why:
            click.echo(f"the event DriverProbeFailed could not be written: {why}", err=True)
    raise CommandError(f"the node does not pass the gate: {', '.join(each.check_id for each in first)}{depend}")


def _job(text: str) -> tuple[str, str, str]:
    parts = text.split("/")
    if len(parts) not in (2, 3) or not parts[0] or not parts[1]:
        raise CommandError(f"--job takes NAMESPACE/NAME or NAMESPACE/NAME/UID, and not {text!r}", status=EXIT_USAGE)
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""
