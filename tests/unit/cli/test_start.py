"""What people wait for when they type a command: the modules that a client imports."""

from __future__ import annotations

import subprocess
import sys

# Of servers, or heavy: logs with their colours, the event loop of the daemon, HTTP, the compiled parts.
NOT_FOR_CLIENTS = {"structlog", "rich", "trio", "h11", "prometheus_client", "yaml", "cffi", "lightkube", "pynvml"}


def test_a_client_imports_nothing_that_only_servers_need() -> None:
    program = (
        "import sys, hypervisor.cli.main, hypervisor.cli.top, hypervisor.cli.get, hypervisor.cli.node_source, "
        "hypervisor.cli.cluster_source, hypervisor.rpc.client, hypervisor.top; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert NOT_FOR_CLIENTS & set(done.stdout.split()) == set()
