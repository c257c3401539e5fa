"""Libraries and limit files of two versions together: an upgrade replaces the one before the other.

The library of the version before is compiled from this repository's own history.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, RELEASE_FLAGS, ROOT, compiler
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls
from tests.integration.upgrade import recorded
from tests.simulated_load import LOAD, Machine, assert_share

pytestmark = pytest.mark.slow
# The last commit of limit files 1.0.
COMMIT_OF_1_0 = "528c0637f1c1ee0cbf84af29ad2ec4e9e8213155"
LIBRARY = LOAD.parents[1] / "libcuda_limiter.so"
SHARE = 0.30


@pytest.fixture(scope="module")
def earlier_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The limiter of limit files 1.0."""
    place = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", COMMIT_OF_1_0, "limiter"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"the history of this repository is not here: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    source, library = place / "limiter", place / "libcuda_limiter.so"
    command = [*compiler(), *BASE_FLAGS, *RELEASE_FLAGS, "-shared", "-o", str(library)]
    command += [f"-I{source / 'include'}", f"-I{source / 'src'}", *map(str, sorted(source.glob("src/*.c")))]
    subprocess.run([*command, f"-Wl,--version-script={source / 'limiter.map'}"], check=True)
    return library


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a program with a library in an allocation's files; all are ended with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(machine: Machine, library: Path, directory: str, group: str) -> subprocess.Popen[bytes]:
        limited = {"LD_PRELOAD": str(library), "TF_SHM_PATH": directory, "TF_ISOLATION_MODE": "soft"}
        running.append(
            subprocess.Popen(
                [str(LOAD), "--kernel-us=1000", "--seconds=300"],
                env=machine.environment(group) | limited,
                stdout=subprocess.DEVNULL,
            )
        )
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.wait(10)


def test_an_earlier_library_and_this_one_share_the_files_of_this_daemon(
    make_daemon: Callable[..., DaemonProcess],
    started: Callable[..., subprocess.Popen[bytes]],
    earlier_library: Path,
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path / "machine", "h100-sxm-80gb")
    daemon = make_daemon(simulate=str(machine.path)).start().wait_ready()
    daemon.cli("allocate", "mixed", "--gpu", "0", "--compute", f"{SHARE:.0%}", "--vram", "8Gi", admin=True)
    (pod,) = calls.list_allocations(daemon)
    earlier = started(machine, earlier_library, pod.directory, "earlier")
    wait_until(lambda: machine.used("earlier").busy_seconds > 1, "the earlier library's program")
    assert_share(lambda: machine.share("earlier"), SHARE)
    started(machine, LIBRARY, pod.directory, "later")
    wait_until(lambda: machine.used("later").busy_seconds > 0.5, "this library's program")
    # At first the daemon takes what this library tells of itself for all (docs/upgrade.md). Never more than the limit.
    assert_share(lambda: machine.share("earlier", "later"), SHARE, attempts=15)
    (pod,) = calls.list_allocations(daemon)
    assert len(pod.processes) == 2
    earlier.kill()
    earlier.wait(10)
    # What the daemon says later reaches it.
    daemon.cli("set-limits", "mixed", "--compute", "60%", admin=True)
    # The correction was for both. It follows, and then the limit is not exceeded again.
    wait_until(lambda: machine.share("later") <= 0.65, "the correction to follow")
    assert_share(lambda: machine.share("later"), 0.6, attempts=10)
    # The control: without a library the card is all theirs.
    free = subprocess.Popen(
        [str(LOAD), "--kernel-us=1000", "--seconds=300"], env=machine.environment("free"), stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: machine.used("free").busy_seconds > 0.5, "the program without limits")
        assert machine.share("later", "free") > 0.8
    finally:
        free.kill()
        free.wait(10)


def recorded_share(name: str) -> tuple[str, float]:
    """UID and share of an allocation of the version before; it is on the machine's first card."""
    found = [json.loads(path.read_text()) for path in (recorded.FOLDER / "first/allocations").iterdir()]
    (record,) = (each["allocation"] for each in found if each["allocation"]["spec"]["allocation_id"] == name)
    return record["uid"], record["grants"][0]["limit_share_ppm"] / 1e6


def test_this_library_and_an_earlier_one_share_the_files_of_an_earlier_daemon(
    started: Callable[..., subprocess.Popen[bytes]], earlier_library: Path, tmp_path: Path
) -> None:
    recorded.lay_out_node("first", tmp_path / "state", tmp_path / "base")
    (uid, share) = recorded_share("soft")
    machine = Machine(tmp_path / "machine", "h100-sxm-80gb")
    place = str(tmp_path / "base/by-uid" / uid)
    started(machine, LIBRARY, place, "later")
    wait_until(lambda: machine.used("later").busy_seconds > 0.5, "this library's program")
    assert_share(lambda: machine.share("later"), share)
    started(machine, earlier_library, place, "earlier")
    wait_until(lambda: machine.used("earlier").busy_seconds > 0.5, "the earlier library's program")
    assert_share(lambda: machine.share("earlier", "later"), share)
