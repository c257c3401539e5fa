"""The tree of cgroups as it is seen from within a cgroup namespace of its own, as containers have it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.workers.placing import tree_root

TELL = """
import sys
from hypervisor.workers.placing import tree
found = tree()
told = next(line[3:] for line in open(f"/proc/{sys.argv[1]}/cgroup") if line.startswith("0::")).strip()
print(None if found is None else (found.base, found.at(told), told))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    root = tree_root()
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("there is no tree of cgroups to write to")
    made = root / f"hypervisor-placing-{os.getpid()}"
    for each in ("pod/container", "other"):
        (made / each).mkdir(parents=True)
    yield made
    for each in ("pod/container", "pod", "other", ""):
        (made / each).rmdir()


@pytest.mark.slow
def test_a_container_finds_its_place_in_the_machines_tree(folder: Path) -> None:
    root = tree_root()
    other = subprocess.Popen(["sh", "-c", f"echo $$ > {folder}/other/cgroup.procs && exec sleep 60"])

    def tell(mounts: str) -> str:
        script = f'echo $$ > {folder}/pod/container/cgroup.procs && exec unshare --cgroup --mount sh -c "$0" "$@"'
        inside = f'{mounts} && exec "$@"'
        command = ["sh", "-c", script, inside, "sh", sys.executable, "-c", TELL, str(other.pid)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        container = f"/{folder.name}/pod/container"
        # The runtime's own mount over it: only the container's part.
        part = f"mount -t tmpfs none /sys/fs/cgroup && mkdir {root}/x && mount -t cgroup2 none {root}/x"
        if str(root) == "/sys/fs/cgroup/unified":
            part = f"umount {root} && mount -t cgroup2 none {root}"
        assert tell(part) == "None"
        # The machine's tree, as the chart mounts it.
        assert tell("true") == repr((container, f"{folder.name}/other", "/../../other"))
    finally:
        other.kill()
        other.wait()
