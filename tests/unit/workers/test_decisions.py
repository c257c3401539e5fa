"""Decisions of the supervisor: back-off, what follows from an end, and what a shim's words mean."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hypervisor.config import Settings
from hypervisor.model import RestartPolicy, WorkerSpec
from hypervisor.workers import WorkerSettings
from hypervisor.workers.backoff import Backoff
from hypervisor.workers.decisions import Verdict, after_end
from hypervisor.workers.identity import age, identify
from hypervisor.workers.placing import Tree, _beginning, _mounted
from hypervisor.workers.shim_files import last_lines, read_grace, read_start, read_status, reason, write_start

BACKOFF = Backoff(first_seconds=0.25, most_seconds=10, reset_seconds=60)


def test_the_wait_doubles_to_its_bound_and_begins_anew_after_a_long_run() -> None:
    assert [BACKOFF.delay(failures) for failures in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 8, 10]
    assert BACKOFF.delay(10**6) == 10  # no number is too large
    assert BACKOFF.failures_after(6, ran_seconds=59.9) == 7
    assert BACKOFF.failures_after(6, ran_seconds=60.0) == 1


@pytest.mark.parametrize(
    ("policy", "wanted", "clean", "verdict"),
    [
        (RestartPolicy.ALWAYS, True, True, Verdict(again=True, delay_seconds=1, failures=3)),
        (RestartPolicy.ALWAYS, True, False, Verdict(again=True, delay_seconds=1, failures=3)),
        (RestartPolicy.ON_FAILURE, True, False, Verdict(again=True, delay_seconds=1, failures=3)),
        (RestartPolicy.ON_FAILURE, True, True, Verdict(again=False)),
        (RestartPolicy.NEVER, True, False, Verdict(again=False, given_up=True)),
        (RestartPolicy.NEVER, True, True, Verdict(again=False)),
        (RestartPolicy.ALWAYS, False, False, Verdict(again=False)),  # told to stop: no failure, whatever it said
    ],
)
def test_what_follows_from_an_end(policy: RestartPolicy, wanted: bool, clean: bool, verdict: Verdict) -> None:
    found = after_end(policy, wanted=wanted, clean=clean, ran_seconds=5, failures=2, backoff=BACKOFF)
    assert found == verdict


STATUS = """state {state}
run 3
shim 100
shim_start 7
child 101
child_start 8
pid_namespace 9
started_ms 1000
ended_ms 3500
exit {exit}
signal {signal}
stopping {stopping}
killed_late {late}
failure {failure}
step {step}
cgroup_failure 0
dropped 0
end 1
"""
BASE = {"state": "exited", "exit": -1, "signal": 0, "stopping": 0, "late": 0, "failure": 0, "step": "-"}
WHOLE = STATUS.format(**BASE)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"exit": 3}, "exited with 3"),
        ({"signal": 11}, "killed by SIGSEGV"),
        ({"signal": 60}, "killed by signal 60"),
        ({"signal": 15, "stopping": 1}, "killed by SIGTERM, stopped"),
        ({"signal": 9, "stopping": 1, "late": 1}, "killed by SIGKILL, after the grace of the stop had passed"),
        ({"state": "failed", "failure": 13, "step": "exec"}, "can't be executed: Permission denied"),
    ],
)
def test_reasons(tmp_path: Path, parts: dict[str, object], words: str) -> None:
    (tmp_path / "status").write_text(STATUS.format(**(BASE | parts)))
    status = read_status(tmp_path)
    assert status is not None
    assert reason(status) == words


@pytest.mark.parametrize("text", ["", "state running\nrun 1\n", STATUS.replace("run 3", "run x"), "\xff\xfe"])
def test_a_status_that_is_not_whole_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status").write_bytes(text.encode("latin-1"))
    assert read_status(tmp_path) is None


def test_last_lines_are_of_this_run_and_printable(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("of the run before\n")
    (tmp_path / "log").write_bytes(b"a\nb\x1b[31m\nc \xff\n")
    os.utime(tmp_path / "log.1", (1000, 1000))
    assert last_lines(tmp_path, since=2000) == ("a", "b [31m", "c \ufffd")
    (tmp_path / "log").write_bytes(b"")
    assert last_lines(tmp_path, since=2000) == ()
    assert last_lines(tmp_path, since=500) == ("of the run before",)  # which is this one, rotated a moment ago
    # Where the shim has said how often it rotated, no clock is asked.
    assert last_lines(tmp_path, since=2000, begun=1) == ("of the run before",)
    assert last_lines(tmp_path, since=500, begun=0) == ()
    (tmp_path / "log").write_bytes(b"a\n")
    os.utime(tmp_path / "log", (1000, 1000))
    assert last_lines(tmp_path, since=2000) == ("a",)


@pytest.mark.parametrize(("more", "seconds"), [("", 2.5), ("begun 0\nran_ms 70500\n", 70.5), ("ran_ms 0\n", 0.0)])
def test_how_long_a_run_lasted_is_the_shims_word_and_not_the_clocks(tmp_path: Path, more: str, seconds: float) -> None:
    """A shim of an earlier version has only the clock's."""
    (tmp_path / "status").write_text(WHOLE.replace("end 1\n", f"{more}end 1\n"))
    status = read_status(tmp_path)
    assert status is not None
    assert status.ran_seconds == seconds


def test_the_age_of_a_process_is_asked_of_no_clock_that_can_be_set() -> None:
    child = subprocess.Popen(["sleep", "30"])
    began = time.monotonic()
    try:
        identity = identify(child.pid)
        assert identity is not None
        time.sleep(0.05)
        assert age(identity) == pytest.approx(time.monotonic() - began, abs=0.1)
        assert age(replace(identity, start=0)) == 0
    finally:
        child.kill()
        child.wait()


def test_a_start_is_read_as_it_was_written(tmp_path: Path) -> None:
    spec = WorkerSpec(worker_id="one", command=("/bin/echo", "a=b", ""), environment=(("A", "x=y"), ("B", "\udcff")))
    assert read_start(tmp_path) is None
    write_start(tmp_path, spec, run=3, log_bytes=1, log_files=2, cgroup=Path("/c"))
    assert read_start(tmp_path) == (spec.command, spec.environment)
    (tmp_path / "start").write_bytes((tmp_path / "start").read_bytes()[:-2])
    assert read_start(tmp_path) is None


@pytest.mark.parametrize(
    "field", ["shim", "shim_start", "child", "run", "started_ms", "exit", "pid_namespace", "signal"]
)
@pytest.mark.parametrize("value", ["9" * 25, "9" * 5000, "-2", "", "x", "\xff"])
def test_a_status_that_no_shim_has_written_is_none(tmp_path: Path, field: str, value: str) -> None:
    file = tmp_path / "status"
    file.write_text(WHOLE)
    assert read_status(tmp_path) is not None
    lines = [f"{field} {value}" if line.startswith(f"{field} ") else line for line in WHOLE.splitlines()]
    file.write_bytes("\n".join(lines).encode("latin-1"))
    assert read_status(tmp_path) is None


def test_nothing_but_plain_files_is_read_and_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(WHOLE)
    for name in ("status", "log", "grace"):
        (tmp_path / name).symlink_to("elsewhere")
    for _ in range(2):
        assert read_status(tmp_path) is None
        assert last_lines(tmp_path, since=0) == ()
        with pytest.raises(OSError):
            read_grace(tmp_path, 1.0)
        for name in ("status", "log", "grace"):
            (tmp_path / name).unlink()
            os.mkfifo(tmp_path / name)
    (tmp_path / "grace").unlink()
    assert read_grace(tmp_path, 1.5) == 1.5
    (tmp_path / "grace").write_text("2500\n")
    assert read_grace(tmp_path, 1.5) == 2.5
    for bad in ("", "x", "9" * 400):
        (tmp_path / "grace").write_text(bad)
        with pytest.raises(ValueError):
            read_grace(tmp_path, 1.5)


def test_a_start_file_can_not_be_broken_out_of(tmp_path: Path) -> None:
    spec = WorkerSpec(worker_id="w", command=("a\0end",))
    with pytest.raises(ValueError, match="number 0"):
        write_start(tmp_path, spec, run=1, log_bytes=1, log_files=1, cgroup=None)


HOST = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw"
ABOVE = "44 23 0:26 /../../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([HOST], (Path("/sys/fs/cgroup"), 0)),
        (["30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:4 - cgroup2 cgroup2 rw"], None),
        (["30 23 0:26 /kubepods/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw"], None),  # a container's part of it
        (["31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"], None),
        # In a container that has the machine's tree mounted over its own part.
        ([HOST, ABOVE], (Path("/sys/fs/cgroup"), 3)),
    ],
)
def test_the_whole_cgroup_tree_is_found_and_no_part_of_it(lines: list[str], found: tuple[Path, int] | None) -> None:
    assert _mounted(lines) == found


def test_where_our_paths_begin_is_found_by_where_we_are(tmp_path: Path) -> None:
    for folder, pids in (("a/b", "7"), ("a/c", "8 9"), ("a/c/inner", "10")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cgroup.procs").write_text(pids.replace(" ", "\n"))
    assert _beginning(tmp_path, 2, 9, "0::/\n") == "/a/c"
    assert _beginning(tmp_path, 2, 10, "1:cpu:/x\n0::/inner\n") == "/a/c"
    assert _beginning(tmp_path, 2, 11, "0::/\n") is None  # in a PID namespace of our own
    tree = Tree(tmp_path, "/a/c")
    assert [tree.at(told) for told in ("/", "/inner", "/../b", "/../../x/y")] == ["a/c", "a/c/inner", "a/b", "x/y"]
    assert Tree(tmp_path).at("/x/y") == "x/y"


def test_in_a_cluster_workers_stay_in_a_pod() -> None:
    settings = Settings(kubernetes=True, state_dir="/nowhere")
    assert WorkerSettings.of(settings).cgroup is None
    chosen = WorkerSettings.of(msgspec.structs.replace(settings, worker_cgroup="/sys/fs/cgroup/mine"))
    assert chosen.cgroup is not None
    assert chosen.cgroup.is_relative_to("/sys/fs/cgroup/mine")
