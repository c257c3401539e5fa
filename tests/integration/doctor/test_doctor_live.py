"""The files of this machine itself: processes with a limiter in them, and what a tenant can't lead the doctor to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypervisor.allocations.environment import LIMITER
from hypervisor.doctor.diagnose import diagnose_pod
from hypervisor.doctor.program import Linkage, linkage
from hypervisor.doctor.root import Root
from hypervisor.doctor.subject import NodeSubject
from hypervisor.model import CheckResult, Verdict
from tests.daemon_process import wait_until


@contextmanager
def workload(**variables: str) -> Iterator[int]:
    """A process that says that it is Pod doctor/live."""
    environment = {"PATH": os.environ["PATH"], "POD_NAMESPACE": "doctor", "POD_NAME": "live", **variables}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        try:
            wait_until(lambda: Path(f"/proc/{process.pid}/exe").readlink().name != "python3", "the program to run")
            wait_until(lambda: b"POD_NAME=live" in Path(f"/proc/{process.pid}/environ").read_bytes(), "its variables")
            yield process.pid
        finally:
            process.kill()


def results() -> dict[str, CheckResult]:
    found = diagnose_pod(NodeSubject(root=Root(Path("/"))), "doctor", "live")
    return {each.check_id: each for each in found.results}


def test_a_process_with_the_limiter(tmp_path: Path) -> None:
    limits = tmp_path / "shm"
    with limits.open("wb") as file:
        file.truncate(262_144)
    with workload(LD_PRELOAD=str(LIMITER), TF_ISOLATION_MODE="soft", TF_SHM_PATH=str(limits)) as pid:
        wait_until(lambda: "libcuda_limiter" in Path(f"/proc/{pid}/maps").read_text(), "the limiter to be loaded")
        found = results()
    for name in ("pod.found", "pod.isolation-mode", "pod.preload", "pod.limit-file", "pod.library-mapped"):
        assert found[name].verdict is Verdict.PASS, found[name]
    assert str(pid) in found["pod.found"].evidence[0]


def test_a_process_without_the_limiter() -> None:
    with workload(TF_ISOLATION_MODE="soft"):
        assert results()["pod.preload"].verdict is Verdict.FAIL


def test_how_a_running_program_is_linked() -> None:
    with workload() as pid:
        assert linkage(Root(Path("/")), pid) is Linkage.GLIBC


def test_a_container_s_files_are_found_below_its_own_root() -> None:
    with workload() as pid:
        assert Root(Path("/")).container(pid).text("/proc/self/stat") is not None
        assert Root(Path("/")).container(pid).names("/") == Root(Path("/")).names("/")


def test_no_link_leads_out_of_a_root(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/hostname")
    (tmp_path / "up").symlink_to("../../../../../../etc/hostname")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "etc").mkdir()
    root = Root(tmp_path)
    assert [root.text(name) for name in ("/out", "/up", "/round", "/../etc/hostname")] == [None] * 4
    (tmp_path / "etc/hostname").write_text("inside")
    assert [root.text(name) for name in ("/out", "/up", "/../etc/hostname")] == ["inside"] * 3


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert Root(tmp_path).text("/fifo") is None


@pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="needs /proc")
def test_a_root_that_is_mounted_elsewhere_is_this_machine(tmp_path: Path) -> None:
    assert Root(Path("/")).live
    assert not Root(tmp_path).live
    (tmp_path / "proc").symlink_to("/proc")
    assert Root(tmp_path).live
