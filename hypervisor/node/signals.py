"""Signals: SIGTERM and SIGINT end the daemon in time, SIGHUP reads the settings again."""

from __future__ import annotations

import signal
from collections.abc import Callable

import structlog
import trio

from hypervisor.config import Settings
from hypervisor.node.core import NodeCore
from hypervisor.node.notify import Notifier
from hypervisor.node.stopping import Deadline

log = structlog.get_logger("node")


async def serve_signals(
    node: NodeCore,
    *,
    read_settings: Callable[[], Settings],
    notifier: Notifier,
    deadline: Deadline,
    stop: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Until told to stop; then stop is cancelled. A second signal to stop has the system's own effect."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as arrivals:
        task_status.started()
        async for number in arrivals:
            if number == signal.SIGHUP:
                notifier.reloading()
                node.reload(read_settings)
                notifier.ready(node.status())
                continue
            name = signal.Signals(number).name
            deadline.start(name, status=1)
            log.info("stopping", signal=name)
            notifier.stopping()
            node.stopping()
            stop.cancel()
            return
