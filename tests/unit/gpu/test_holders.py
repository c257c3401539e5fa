"""Who holds a card open, by a prepared /proc and by the real one."""

from __future__ import annotations

import os
from pathlib import Path

from hypervisor.gpu.holders import holders_of


def process(root: Path, pid: int, *targets: str) -> None:
    descriptors = root / "proc" / str(pid) / "fd"
    descriptors.mkdir(parents=True)
    for number, target in enumerate(targets):
        (descriptors / str(number)).symlink_to(target)


def test_holders_are_who_has_the_node_open(tmp_path: Path) -> None:
    process(tmp_path, 10, "/dev/null", "/dev/nvidiactl")
    process(tmp_path, 30, "/dev/nvidia1")
    process(tmp_path, 20, "/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm")
    process(tmp_path, 40, "/dev/nvidia11")
    process(tmp_path, os.getpid(), "/dev/nvidia1")
    (tmp_path / "proc" / "self").symlink_to("20")
    assert holders_of(1, root=tmp_path) == (20, 30)
    assert holders_of(0, root=tmp_path) == ()
    assert holders_of(1, root=tmp_path / "nowhere") == ()
