"""A program that reaches the driver past the limiter is seen from outside: event, metric and a field of its Pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.limiter.conftest import build
from tests.simulated_load import program

__all__ = ["build"]
SIMULATOR = ROOT / "hypervisor" / "native" / "simulator"
# How a program that the daemon limits comes to the plugin's own call of the driver.
WAYS = {
    "plainly": "plugin = ctypes.CDLL(path)",
    "without the library": "plugin = ctypes.CDLL(path)",  # as a static program, and one of another C library
    "RTLD_DEEPBIND": "plugin = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)",
    "dlmopen": """
libc = ctypes.CDLL(None)
libc.dlmopen.restype, libc.dlmopen.argtypes = ctypes.c_void_p, [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
plugin = ctypes.CDLL(path, handle=libc.dlmopen(-1, path.encode(), os.RTLD_NOW))
""",
    "chroot": """
plugin = ctypes.CDLL(path)
for name in ("TF_SHM_PATH", "TF_ISOLATION_MODE"):
    os.environ.pop(name, None)
libc, root = ctypes.CDLL(None, use_errno=True), sys.argv[2].encode()
NEW_NAMESPACE, PRIVATE, BIND = 0x20000, 0x44000, 0x5000  # of mounts; each with all below
for result in (
    libc.unshare(NEW_NAMESPACE),
    libc.mount(None, b"/", None, PRIVATE, None),
    libc.mount(b"/proc", root + b"/proc", None, BIND, None),  # the simulated driver knows processes by it
):
    assert result == 0, os.strerror(ctypes.get_errno())
os.chroot(root)
""",
}
SOURCE = """
import ctypes, os, sys
path = sys.argv[1]
{way}
print(plugin.allocate(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_gets_past_the_limiter_is_told(
    daemon: DaemonProcess, build: Callable[..., Path], tmp_path: Path, way: str
) -> None:
    if way == "chroot":
        if os.geteuid() != 0:
            pytest.skip("only root can change its root")
        inside = tmp_path / "root" / daemon.machine.relative_to("/")
        inside.parent.mkdir(parents=True)
        (tmp_path / "root" / "proc").mkdir()
        os.link(daemon.machine, inside)  # the simulated driver is a file, and a real one isn't
    plugin = build("deepbind.so", "deepbind.c", flags=("-shared", "-fPIC", str(SIMULATOR / "libcuda.so.1")))
    command = program("exec", "--server", daemon.owner_address, "--gpu", "2", "--vram", "1Gi", "--name", "past", "--")
    command += ["env", "-u", "LD_PRELOAD"] if way == "without the library" else []
    command += [sys.executable, "-c", SOURCE.format(way=WAYS[way]), str(plugin), str(tmp_path / "root")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = int(process.stdout.readline())

        def pod() -> dict[str, object]:
            (item,) = json.loads(daemon.cli("get", "pods", "past", "-o", "json").stdout)["items"]
            return dict(item)

        def events() -> list[dict[str, str]]:
            items = json.loads(daemon.cli("get", "events", "-o", "json").stdout)["items"]
            return [event for event in items if event["reason"] == "LimiterBypassed"]

        if way == "plainly":  # the control: it is refused by its limit, and nothing is told
            assert answer == 2
            wait_until(lambda: pod().get("processes"), "an attached process")
            assert pod()["bypassingPids"] == []
            assert events() == []
            return
        assert answer == 0
        wait_until(lambda: pod().get("bypassingPids") == [process.pid], "the field of the Pod")
        assert pod()["enforcement"] == "ENFORCEMENT_VIOLATED"
        has = "does not have" if way == "without the library" else "has"
        assert f"uses a GPU and {has} the limiter in its memory" in wait_until(events, "the event")[0]["message"]
        _, metrics = daemon.get("/metrics")
        lines = [line for line in metrics.splitlines() if line.startswith("gpuhv_limiter_bypassing_processes{")]
        assert [float(line.split()[-1]) for line in lines] == [1.0]
