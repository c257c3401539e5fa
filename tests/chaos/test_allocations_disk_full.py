"""A file system that is really full: a refusal with nothing half done, and everything goes on when there is room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buildsupport.native import ROOT

# Runs in a mount namespace of its own, where it mounts small file systems that nobody else sees.
PROGRAM = """
import subprocess, sys
from pathlib import Path
from hypervisor.model import Refusal
from tests.unit.allocations.builders import *

root, which = Path(sys.argv[1]), sys.argv[2]
node, stock = Node(root), inventory(device(0))
mounted = node.base if which == "limit files" else root / "state"
mounted.mkdir()
size = "4m" if which == "limit files" else "64k"
if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mounted]).returncode:
    sys.exit(77)
allocations = node.start()
ballast = mounted / "ballast"
if which == "state":
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
granted = []
try:
    for number in range(20):
        wanted = request("0", compute=percent(5), vram=GIB)
        granted.append(allocations.allocate(named(f"job-{number}", wanted), stock)[0])
except Refusal as refusal:
    assert refusal.reason.value == "STORAGE_FAILED", refusal
    assert "free space" in refusal.remedy, refusal
else:
    sys.exit("20 allocations fitted")
assert allocations.all == tuple(granted)
uids = sorted(entry.uid for entry in granted)
assert sorted(path.name for path in (node.base / "by-uid").iterdir()) == uids
assert sorted(path.name for path in node.records.iterdir()) == [f"{uid}.json" for uid in uids]
if which == "state":
    assert granted == []
    ballast.unlink()
else:
    assert len(granted) >= 2
    # Every tenant may fill its file to the end, and no page is lacking: that is what admission kept free.
    for entry in granted:
        with open(entry.directory + "/usage", "r+b") as file:
            for page in range(256):
                file.seek(page * 4096 + 8)
                file.write(bytes(8))
    allocations.release("job-0")
allocations.allocate(named("after", request("0", compute=percent(5), vram=GIB)), stock)
allocations.step(stock)
"""


@pytest.mark.parametrize("which", ["limit files", "state"])
def test_a_full_file_system(tmp_path: Path, which: str) -> None:
    ran = subprocess.run(
        ["unshare", "--mount", "--map-root-user", sys.executable, "-c", PROGRAM, str(tmp_path), which],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if ran.returncode == 77 or "unshare" in ran.stderr:
        pytest.skip(f"no file system can be mounted here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
