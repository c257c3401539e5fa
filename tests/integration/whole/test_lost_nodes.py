"""A running container that may no longer open its GPUs' device nodes: row 94 of the field reports, "Failed to
initialize NVML: Unknown Error" after a systemd daemon-reload. The limiter in it tells why, as an event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess, wait_until
from tests.simulated_load import program

CONTROLLER = Path("/sys/fs/cgroup/devices")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CONTROLLER / "devices.list").exists() or os.geteuid() != 0,
        reason="takes root and the devices controller of cgroup v1, which refuses nodes without a program of its own",
    ),
]
LIBRARY_CALLS = {"cuInit": "ctypes.CDLL('libcuda.so.1').cuInit(0)"} | {
    name: f"ctypes.CDLL('libnvidia-ml.so.1').{name}({flags})"
    for name, flags in (("nvmlInit", ""), ("nvmlInit_v2", ""), ("nvmlInitWithFlags", "0"))
}
SOURCE = """
import ctypes, os, stat, sys
group, denied, call = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACE, PRIVATE = 0x20000, 0x44000  # of mounts, with all below
for result in (
    libc.unshare(NEW_NAMESPACE),
    libc.mount(None, b"/", None, PRIVATE, None),
    libc.mount(b"none", b"/dev", b"tmpfs", 0, None),
):
    assert result == 0, os.strerror(ctypes.get_errno())
os.mknod("/dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 255))
for name, text in (("cgroup.procs", "0"), ("devices.deny", denied)):
    with open(f"{group}/{name}", "w") as file:
        file.write(text)
os.environ["SIM_MACHINE"] = "/dev/nowhere"  # so the simulated driver fails too, which opens no node
print(eval(call), eval(call), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    made = CONTROLLER / f"hypervisor-test-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    yield made
    made.rmdir()


@pytest.mark.parametrize("call", LIBRARY_CALLS)
@pytest.mark.parametrize("denied", ["c 195:* rwm", "c 240:* rwm"], ids=["the GPUs' nodes", "other nodes"])
def test_row_94_lost_device_nodes_are_told(daemon: DaemonProcess, group: Path, denied: str, call: str) -> None:
    command = program("exec", "--server", daemon.owner_address, "--gpu", "2", "--vram", "1Gi", "--name", "lost", "--")
    command += [sys.executable, "-c", SOURCE, str(group), denied, LIBRARY_CALLS[call]]
    known = told(daemon)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert 0 not in map(int, process.stdout.readline().split())
        if denied.startswith("c 240"):
            time.sleep(2.5)  # two rounds of the daemon, in which nothing is to be told
            assert told(daemon) == known
        else:
            (event,) = wait_until(lambda: told(daemon)[len(known) :], "the event")
            assert "may no longer open /dev/nvidiactl" in event["message"]
            assert "lost" in json.dumps(event)


def told(daemon: DaemonProcess) -> list[dict[str, object]]:
    items = json.loads(daemon.cli("get", "events", "-o", "json").stdout)["items"]
    return [event for event in items if event["reason"] == "DeviceNodesLost"]
