"""Who lives: real processes in real PID namespaces, and a /proc of our own for what can't be had here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypervisor.allocations.processes import Life, ProcessName, ProcessTable
from tests.unit.allocations.builders import start_time

OWN = Path("/proc/self/ns/pid").stat().st_ino


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_of_our_namespace_lives_under_its_pid_and_start_time(child: subprocess.Popen[bytes]) -> None:
    table, start = ProcessTable(), start_time(child.pid)
    assert table.find(ProcessName(OWN, child.pid, start)) == (Life.ALIVE, child.pid)
    assert table.find(ProcessName(OWN, child.pid, start + 1)) == (Life.DEAD, None)
    assert table.find(ProcessName(OWN, child.pid, 0)) == (Life.ALIVE, child.pid)


def test_a_process_that_ended_is_dead_also_before_it_is_waited_for(child: subprocess.Popen[bytes]) -> None:
    table, name = ProcessTable(), ProcessName(OWN, child.pid, start_time(child.pid))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert table.find(name) == (Life.DEAD, None)
    child.wait()
    assert table.find(name) == (Life.DEAD, None)


def test_a_namespace_that_is_not_known_is_unknown() -> None:
    assert ProcessTable().find(ProcessName(0, os.getpid(), 0)) == (Life.UNKNOWN, None)


@pytest.fixture
def contained() -> Iterator[tuple[int, int]]:
    """A process in a PID namespace of its own: its host pid, and its namespace."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"], stderr=subprocess.PIPE
    ) as outer:

        def inner() -> list[str]:
            return Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()

        wait_for(lambda: outer.poll() is not None or bool(inner()))
        if outer.poll() is not None:
            pytest.skip("PID namespaces can't be made here")
        pid = int(inner()[0])
        yield pid, Path(f"/proc/{pid}/ns/pid").stat().st_ino
        outer.kill()


def test_a_process_of_a_container_is_found_on_the_host(contained: tuple[int, int]) -> None:
    """HAMi-core 15: the pid inside a container is not that of the host."""
    pid, namespace = contained
    table, start = ProcessTable(), start_time(pid)
    assert namespace != OWN
    assert table.find(ProcessName(namespace, 1, start)) == (Life.ALIVE, pid)
    assert table.find(ProcessName(namespace, 1, 0)) == (Life.ALIVE, pid)


def test_a_process_of_a_container_is_dead_when_it_has_gone(contained: tuple[int, int]) -> None:
    pid, namespace = contained
    table, start = ProcessTable(), start_time(pid)
    name = ProcessName(namespace, 1, start)
    assert table.find(name)[0] is Life.ALIVE
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    table.forget()
    assert table.find(name) == (Life.DEAD, None)


def test_another_process_of_a_container_is_not_taken_for_it(contained: tuple[int, int]) -> None:
    pid, namespace = contained
    table = ProcessTable()
    table.find(ProcessName(namespace, 1, start_time(pid)))
    assert table.find(ProcessName(namespace, 2, start_time(pid)))[0] is Life.DEAD
    assert table.find(ProcessName(namespace, 1, start_time(pid) + 1))[0] is Life.DEAD


@pytest.mark.parametrize("contained", [False, True])
def test_a_process_with_a_clock_of_its_own_is_not_taken_for_dead(contained: bool) -> None:
    """Its start time, as it sees it, is not the one that we see."""
    options = ["--time", "--boottime", "5000", "--fork", "--kill-child", *(["--pid"] if contained else [])]
    with subprocess.Popen(
        ["unshare", *options, "sh", "-c", "cat /proc/self/stat; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as outer:
        assert outer.stdout is not None
        if not outer.stdout.readline():
            pytest.skip("time namespaces can't be made here")
        pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
        inner = 1 if contained else pid
        as_it_sees_itself = start_time(pid) + 5000 * os.sysconf("SC_CLK_TCK")
        table = ProcessTable()
        name = ProcessName(namespace, inner, as_it_sees_itself)
        assert table.find(name) == (Life.OTHER_CLOCK, None)
        outer.kill()
        wait_for(lambda: not Path(f"/proc/{pid}").exists())
        table.forget()
        assert table.find(name)[0] is (Life.UNKNOWN if contained and not table._sees_all else Life.DEAD)


def fake_proc(root: Path) -> Path:
    """A /proc in which this process is seen, and pid 1."""
    (root / "1").mkdir(parents=True)
    (root / "1" / "stat").write_text("1 (init) S 0 " + "0 " * 17 + "5 " + "0 " * 30)
    (root / "self").symlink_to(str(os.getpid()))
    me = root / str(os.getpid())
    (me / "ns").mkdir(parents=True)
    (me / "ns" / "pid").write_text("")
    (me / "stat").write_text(f"{os.getpid()} (a) b) S 1 " + "0 " * 17 + "77 " + "0 " * 30)
    return root


def test_what_a_daemon_in_a_container_does_not_see_is_unknown(tmp_path: Path) -> None:
    """It is not in the first namespace, so processes of its neighbours are never shown to it."""
    table = ProcessTable(fake_proc(tmp_path / "proc"))
    assert table.find(ProcessName(4242, 7, 99)) == (Life.UNKNOWN, None)


def test_hidden_processes_are_unknown_and_not_dead(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "proc")
    table = ProcessTable(proc)
    own = (proc / "self" / "ns" / "pid").stat().st_ino
    assert table.find(ProcessName(own, 5, 9)) == (Life.DEAD, None)
    shutil.rmtree(proc / "1")  # as hidepid=2 does it
    assert table.find(ProcessName(own, 5, 9)) == (Life.UNKNOWN, None)


def test_the_proc_of_another_namespace_judges_nobody(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "proc")
    (proc / "self").unlink()
    (proc / "self").symlink_to("1")
    table = ProcessTable(proc)
    assert table.find(ProcessName(1, 5, 9))[0] is Life.UNKNOWN


def test_a_process_is_known_by_its_environment(child: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "60"], env={"TF_SHM_PATH": "/x/shm"}) as marked:
        wait_for(lambda: b"TF_SHM_PATH" in Path(f"/proc/{marked.pid}/environ").read_bytes())
        table = ProcessTable()
        assert table.with_environment([b"TF_SHM_PATH=/x/shm", b"TF_SHM_PATH=/y/shm"]) == {b"TF_SHM_PATH=/x/shm"}
        marked.kill()
        marked.wait()
        assert table.with_environment([b"TF_SHM_PATH=/x/shm"]) == set()


def test_a_file_is_known_by_who_maps_it(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_bytes(bytes(4096))
    place = (path.stat().st_dev, path.stat().st_ino)
    table = ProcessTable()
    assert table.mapping([place]) == set()
    program = (
        "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); print('mapped',flush=True); input()"
    )
    with subprocess.Popen(
        ["python3", "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as mapper:
        assert mapper.stdout is not None
        assert mapper.stdout.readline() == b"mapped\n"
        path.unlink()  # the name does not matter
        assert table.mapping([place]) == {place}
        mapper.kill()


def test_descent_is_found_over_generations() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60 & echo $!; wait'"], stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        inner = int(outer.stdout.readline())
        table = ProcessTable()
        assert table.descends_from(inner, [outer.pid]) == outer.pid
        assert table.descends_from(inner, [os.getpid(), outer.pid]) == outer.pid
        assert table.descends_from(os.getppid(), [outer.pid]) is None
        os.kill(inner, signal.SIGKILL)


def test_a_command_with_brackets_and_blanks_confuses_nobody(tmp_path: Path) -> None:
    stat = ProcessTable(fake_proc(tmp_path / "proc")).stat(os.getpid())
    assert stat is not None
    assert (stat.parent, stat.start_time_ticks, stat.ended) == (1, 77, False)


@pytest.mark.parametrize(
    "line",
    [
        "0::/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/cri-containerd-abc",
        "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-abc.scope",
        "7:cpu:/\n1:name=systemd:/kubepods/pod11111111-2222-3333-4444-555555555555/abc",
    ],
)
def test_the_pod_of_a_process_is_told_by_its_cgroup(tmp_path: Path, line: str) -> None:
    (tmp_path / "17").mkdir()
    (tmp_path / "17/cgroup").write_text(f"{line}\n")
    (tmp_path / "18").mkdir()
    (tmp_path / "18/cgroup").write_text("0::/user.slice\n")
    table = ProcessTable(tmp_path)
    uids = ["99999999-2222-3333-4444-555555555555", "11111111-2222-3333-4444-555555555555"]
    assert table.cgroup_names(17, uids) == uids[1]
    assert table.cgroup_names(18, uids) is None
    assert table.cgroup_names(19, uids) is None
