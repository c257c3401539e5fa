"""hypervisor preload merge: the limiter first, nothing of the image lost, and nothing outside its root touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.preload import LIBRARY_LINE, PreloadError, merge_into, merged

OURS = LIBRARY_LINE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{OURS}\n"),
        ("/usr/lib/libfake.so\n", f"{OURS}\n/usr/lib/libfake.so\n"),
        ("/a.so:/b.so /c.so", f"{OURS}\n/a.so /b.so /c.so\n"),
        (f"/a.so\n{OURS}\n", f"{OURS}\n/a.so\n"),
        ("# why\n/a.so # this\n\n", f"{OURS}\n# why\n/a.so # this\n"),
    ],
)
def test_what_the_image_had_is_kept_behind_ours(before: str, after: str) -> None:
    assert merged(before, OURS) == after
    assert merged(after, OURS) == after


def test_the_file_is_made_and_merged_and_left_alone(tmp_path: Path) -> None:
    assert merge_into(tmp_path)
    file = tmp_path / "etc/ld.so.preload"
    assert file.read_text() == f"{OURS}\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert not merge_into(tmp_path)
    assert [entry.name for entry in file.parent.iterdir()] == ["ld.so.preload"]


@pytest.mark.parametrize("hostile", ["etc", "etc/ld.so.preload"])
def test_a_symlink_of_the_image_leads_nowhere_else(tmp_path: Path, hostile: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ld.so.preload").write_text("/theirs.so\n")
    root = tmp_path / "root"
    (root / hostile).parent.mkdir(parents=True)
    (root / hostile).symlink_to(outside if hostile == "etc" else outside / "ld.so.preload")
    with pytest.raises(PreloadError, match="mount a file there"):
        merge_into(root)
    assert (outside / "ld.so.preload").read_text() == "/theirs.so\n"


def test_as_a_hook_it_takes_the_root_from_the_runtime(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "rootfs/etc").mkdir(parents=True)
    (bundle / "rootfs/etc/ld.so.preload").write_text("/image.so\n")
    (bundle / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    command = [sys.executable, "-m", "hypervisor", "preload", "merge"]
    done = subprocess.run(
        command, input=json.dumps({"bundle": str(bundle)}), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (bundle / "rootfs/etc/ld.so.preload").read_text() == f"{OURS}\n/image.so\n"
    done = subprocess.run(command, input="nothing", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--root" in done.stderr


def test_a_read_only_root_is_told_in_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with pytest.raises(PreloadError, match="can't be merged"):
            merge_into(Path("/proc/self"))
    else:
        tmp_path.chmod(0o555)
        with pytest.raises(PreloadError, match="can't be merged"):
            merge_into(tmp_path)
