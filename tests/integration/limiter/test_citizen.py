"""In a process that does not use CUDA the limiter does nothing that anybody could notice."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsupport.native import ROOT
from tests.integration.limiter.conftest import GIB, LIMITER, PREAMBLE, Files, Pod

PROGRAMS = [
    ["/bin/ls", "/"],
    ["/bin/sh", "-c", "echo out; echo err >&2; exit 3"],
    ["python3", "-c", "import os, threading; print(sorted(os.listdir('/proc/self/fd'))); os.fork() or os._exit(0)"],
]


@pytest.mark.parametrize("command", PROGRAMS, ids=["ls", "sh", "python"])
def test_output_and_status_are_the_same(pod: Pod, command: list[str]) -> None:
    limited, free = pod.run(command), pod.run(command, limited=False)
    assert (limited.returncode, limited.stdout, limited.stderr) == (free.returncode, free.stdout, free.stderr)


def test_no_slot_is_taken_and_nothing_is_mapped(pod: Pod) -> None:
    done = pod.run(["/bin/cat", "/proc/self/maps"])
    assert LIMITER.name in done.stdout
    assert str(pod.files.directory) not in done.stdout
    assert pod.files.show()["live"] == 0


def test_only_the_table_is_exported_and_only_libc_is_needed() -> None:
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIMITER)], capture_output=True, text=True, check=True
    ).stdout.split()[2::3]
    table = (ROOT / "limiter" / "src" / "hooks.def").read_text()
    hooks = [line.split(",")[1].strip(" )") for line in table.splitlines() if line.startswith("HV_HOOK(")]
    assert sorted(exported) == sorted([*hooks, "dlsym", "dlvsym"])
    script = (ROOT / "limiter" / "limiter.map").read_text()
    named = script.partition("global:")[2].partition("local:")[0].replace(";", "").split()
    assert sorted(named) == sorted(exported)
    dynamic = subprocess.run(["readelf", "-d", str(LIMITER)], capture_output=True, text=True, check=True).stdout
    assert [line.split("[")[1][:-1] for line in dynamic.splitlines() if "NEEDED" in line] == ["libc.so.6"]


def test_a_program_that_closes_every_descriptor_stays_limited(pod: Pod) -> None:
    results = pod.ask("""
        start()
        os.closerange(3, 256)
        tell([alloc(512 * MIB)[0], alloc(768 * MIB)[0]])
    """)
    assert results == [0, 2]


LOADING = {"openat", "read", "pread64", "mmap", "mprotect", "close", "newfstatat", "fstat", "munmap", "brk"}


def calls(pod: Pod, command: list[str], preload: str) -> tuple[list[str], str]:
    """The system calls of a program by name, and all of what strace wrote."""
    done = pod.run(["strace", "-f", "-qq", "-o", "/dev/stderr", *command], LD_PRELOAD="", STRACE_PRELOAD=preload)
    return re.findall(r"^(?:\d+ +)?(\w+)\(", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("command", [["/bin/true"], ["/bin/ls", "/"], ["/bin/sh", "-c", "(exit 0); exit 0"]])
def test_strace_shows_no_difference_beyond_loading(pod: Pod, tmp_path: Path, command: list[str]) -> None:
    if shutil.which("strace") is None or pod.run(["strace", "-qq", "/bin/true"], limited=False).returncode != 0:
        pytest.skip("strace is not installed, or nothing may be traced here")
    source, empty = tmp_path / "empty.c", tmp_path / "libempty_library.so"
    source.write_text("int hv_empty;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(empty)], check=True)
    shell = ["/bin/sh", "-c", f'LD_PRELOAD="$STRACE_PRELOAD" exec {shlex.join(command)}']
    with_empty, _ = calls(pod, shell, str(empty))
    with_ours, trace = calls(pod, shell, str(LIMITER))

    def beyond(names: list[str]) -> list[str]:
        return sorted(name for name in names if name not in LOADING)  # processes take turns as they like

    assert beyond(with_ours) == beyond(with_empty)
    assert len(with_ours) > 10
    # Nothing of ours is looked for: the library itself is all that is opened.
    assert str(pod.files.directory) not in trace.replace(f"TF_SHM_PATH={pod.files.directory}", "")
    assert "tensor-fusion" not in trace


def test_the_driver_may_be_closed_and_opened_again(pod: Pod) -> None:
    assert pod.ask("""
        import _ctypes
        start()
        first = alloc(512 * MIB)[0]
        _ctypes.dlclose(cuda._handle)
        cuda = ctypes.CDLL("libcuda.so.1")
        tell([first, alloc(768 * MIB)[0], alloc(256 * MIB)[0]])
    """) == [0, 2, 0]


def test_programs_that_a_limited_one_starts_have_no_part_in_it(pod: Pod) -> None:
    """By vfork and exec, by fork alone, and by exec in place: each process has its own slot or none."""
    assert pod.ask("""
        import subprocess
        start()
        result, pointer = alloc(300 * MIB)
        outputs = [subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True) for _ in range(3)]
        child = os.fork()
        if child == 0:
            os.execv("/bin/true", ["true"])
        status = os.waitpid(child, 0)[1]
        tell([result, [(done.stdout, done.stderr) for done in outputs], status, memory()[0] // MIB])
    """) == [0, [["hello\n", ""]] * 3, 0, 724]
    assert pod.files.show()["live"] == 1


def test_a_program_that_replaces_itself_keeps_no_bytes(pod: Pod) -> None:
    again = "start(); tell([alloc(900 * MIB)[0], memory()[0] // MIB])"
    source = f"""
        start()
        assert alloc(900 * MIB)[0] == 0
        preamble = {PREAMBLE!r}
        os.execv(sys.executable, [sys.executable, "-c", preamble + {again!r}])
    """
    assert pod.ask(source) == [0, 124]


def test_threads_may_be_at_work_when_the_program_ends(pod: Pod) -> None:
    done = pod.run(
        pod.program("""
        context = start()
        def work():
            must("cuCtxSetCurrent", context)
            while True:
                result, pointer = alloc(MIB)
                free(pointer)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(50):
            alloc(4096)
        os._exit(5)
    """)
    )
    assert (done.returncode, done.stderr) == (5, "")


SECCOMP = """
        class Filter(ctypes.Structure):
            _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.POINTER(Filter))]
        denied = [28, 62, 24, 186]  # madvise, kill, sched_yield, gettid on x86-64
        rows = [Filter(0x20, 0, 0, 0)] + [Filter(0x15, len(denied) - i, 0, n) for i, n in enumerate(denied)]
        rows += [Filter(0x06, 0, 0, 0x7FFF0000), Filter(0x06, 0, 0, 0x00050001)]  # allow; or fail with EPERM
        libc = ctypes.CDLL(None)
        program = Program(len(rows), (Filter * len(rows))(*rows))
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.byref(program)) == 0
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter names system calls by their x86-64 numbers")
def test_system_calls_may_be_forbidden(pod: Pod) -> None:
    source = SECCOMP + "        start()\n        tell([alloc(512 * MIB)[0], alloc(768 * MIB)[0]])\n"
    assert pod.ask(source) == [0, 2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_program_of_another_user_is_limited(pod: Pod, build: Callable[..., Path], limit_files: Path) -> None:
    """Non-root, as most containers: the files are readable, and the usage writable, by all.

    HAMi 1090: as a user that is not root.
    """
    with tempfile.TemporaryDirectory(prefix="limiter-user-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        roads = shutil.copy(build("roads", "roads.c", flags=("-ldl",)), folder)
        library = shutil.copy(LIMITER, folder)
        driver = shutil.copytree(LIMITER.parent / "simulator", folder / "driver")
        limits = folder / "limits"
        limits.mkdir()
        files = Files(limits, limit_files, pod.files.uuid)
        files.make(GIB)
        (limits / "usage").chmod(0o666)
        machine = folder / "machine"
        shutil.copy(pod.machine, machine)
        machine.chmod(0o666)
        variables = pod.variables() | {"SIM_MACHINE": str(machine), "LD_LIBRARY_PATH": str(driver)}
        variables |= {"LD_PRELOAD": str(library), "TF_SHM_PATH": str(limits)}
        answers = []
        for more in ({}, {"LD_PRELOAD": ""}):
            done = subprocess.run(
                [roads, "dlsym"],
                env=variables | more,
                user=65534,
                group=65534,
                capture_output=True,
                text=True,
                timeout=60,
            )
            answers.append((done.stdout, done.stderr))
        assert answers == [("2\n", ""), ("0\n", "")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")
@pytest.mark.parametrize("without", ["/proc", "writable root"])
def test_without_proc_or_a_writable_root_the_limit_holds(pod: Pod, build: Callable[..., Path], without: str) -> None:
    roads = build("roads", "roads.c", flags=("-ldl",))
    change = "mount -t tmpfs none /proc" if without == "/proc" else "mount -o remount,bind,ro /usr"
    before = "" if without == "/proc" else "mount --bind /usr /usr; "
    script = f"unset LD_PRELOAD; {before}{change} || exit 77; LD_PRELOAD={LIMITER} exec {roads} dlsym"
    done = pod.run(["unshare", "--mount", "/bin/sh", "-c", script])
    if done.returncode in (1, 77):
        pytest.skip(f"a mount namespace can't be made or changed here: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("2\n", "")


def in_a_container(pod: Pod, tmp_path: Path, script: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a script where /etc/ld.so.preload names the library and the limit files are at the fixed path."""
    for folder in ("upper", "work"):
        (tmp_path / folder).mkdir()
    whole = f"""
        unset LD_PRELOAD
        mount -t overlay overlay -o lowerdir=/etc,upperdir={tmp_path}/upper,workdir={tmp_path}/work /etc || exit 77
        mount -t tmpfs none /run || exit 77
        mkdir -p /run/tensor-fusion/shm
        touch /run/tensor-fusion/shm/shm /run/tensor-fusion/shm/usage
        mount --bind {pod.files.directory}/shm /run/tensor-fusion/shm/shm || exit 77
        mount --bind {pod.files.directory}/usage /run/tensor-fusion/shm/usage || exit 77
        {before}
        echo {LIMITER} > /etc/ld.so.preload
        {script}
    """
    done = pod.run(["unshare", "--mount", "/bin/sh", "-c", whole])
    if done.returncode in (1, 77):
        pytest.skip(f"a mount namespace can't be made or changed here: {done.stderr.strip()}")
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")
def test_volcano_vgpu_8_an_empty_environment_is_no_way_out(
    pod: Pod, build: Callable[..., Path], tmp_path: Path
) -> None:
    """With /etc/ld.so.preload and the fixed path, as in a container: env -i, and a user who empties LD_PRELOAD."""
    roads = build("roads", "roads.c", flags=("-ldl",))
    keep = f"SIM_MACHINE={pod.machine} LD_LIBRARY_PATH={LIMITER.parent / 'simulator'}"
    script = f"""
        env -i {keep} {roads} dlsym
        env -i LD_PRELOAD= TF_SHM_PATH=/nowhere {keep} {roads} lookup
    """
    done = in_a_container(pod, tmp_path, script)
    assert (done.stdout, done.stderr) == ("2\n2\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")
def test_a_set_uid_program_is_limited_by_the_fixed_path_and_not_by_its_callers_words(
    pod: Pod, build: Callable[..., Path], tmp_path: Path
) -> None:
    roads = build("roads", "roads.c", flags=("-ldl",))
    driver = build("plain/libcuda.so.1", "fake_driver.c", flags=("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"))
    pod.files.run("make", "GPU-00000000-0000-0000-0000-000000000001", GIB, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="limiter-setuid-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = Path(shutil.copy(roads, folder))
        library = Path(shutil.copy(LIMITER, folder))
        shutil.copy(driver, folder)
        program.chmod(0o4755)  # root's
        # The driver is found as a system's is: no variable helps a set-uid program.
        before = f"echo {folder} > /etc/ld.so.conf.d/driver.conf; ldconfig 2>/dev/null || exit 77"
        user = "setpriv --reuid 65534 --regid 65534 --clear-groups"
        limited = f"echo {library} > /etc/ld.so.preload; TF_SHM_PATH=/nowhere {user} {program} dlsym"
        free = f": > /etc/ld.so.preload; {user} {program} dlsym"
        done = in_a_container(pod, tmp_path, f"{limited}; {free}", before)
        assert (done.stdout, done.stderr) == ("2\n0\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root")
def test_a_program_that_changes_its_root_stays_limited_or_is_refused(pod: Pod, tmp_path: Path) -> None:
    """Attached before, it is limited as before. Afterwards, where the files can't be reached, it gets nothing."""
    allocations = "[alloc(512 * MIB)[0], alloc(768 * MIB)[0]]"
    root = tmp_path / "root"
    root.mkdir()
    assert pod.ask(f"start(); os.chroot({str(root)!r}); tell({allocations})") == [0, 2]
    late = f"os.chroot({str(root)!r}); tell([call('cuInit', 0), alloc(4096)[0]])"
    assert pod.ask(late, TF_LIMITER_WAIT_MS="20") == [802, 802]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names system calls by their x86-64 numbers")
def test_a_child_that_the_c_library_does_not_know_of_has_a_slot_of_its_own(pod: Pod) -> None:
    """By the system call clone alone: no handler of a fork runs, and its end leaves the parent's slot as it was."""
    assert pod.ask("""
        libc = ctypes.CDLL(None)
        start()
        result, pointer = alloc(300 * MIB)
        child = libc.syscall(56, 17, 0, 0, 0, 0)  # clone, with SIGCHLD as a fork has it
        if child == 0:
            os._exit(10 + alloc(800 * MIB)[0] * 4 + alloc(600 * MIB)[0])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        tell([result, status, alloc(800 * MIB)[0], memory()[0] // MIB, free(pointer), alloc(1000 * MIB)[0]])
    """) == [0, 18, 2, 724, 0, 0]
    assert pod.files.show()["live"] == 1


def test_errno_and_the_loader_s_last_error_are_as_without_the_limiter(pod: Pod) -> None:
    source = """
        ours = ctypes.CDLL("libcuda.so.1", use_errno=True)
        libc = ctypes.CDLL(None)
        libc.dlerror.restype = ctypes.c_char_p
        libc.dlsym.restype, libc.dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        start()
        function, pointer, left, total = kernel(10), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
        calls = [lambda: ours.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB)),
                 lambda: ours.cuMemFree_v2(pointer),
                 lambda: ours.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 60)),
                 lambda: ours.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)),
                 lambda: ours.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None)]
        told = []
        for one in calls:
            ctypes.set_errno(77)
            told.append([one(), ctypes.get_errno()])
        errors = []
        for names in ([b"no_such_function"], [b"no_such_function", b"cuMemAlloc_v2"], [b"cuNoSuchFunction"]):
            found = [bool(libc.dlsym(ours._handle, name)) for name in names]
            errors.append([found, bool(libc.dlerror()), bool(libc.dlerror())])
        tell([told, errors])
    """
    limited = pod.ask(source)
    assert limited == pod.ask(source, limited=False)
    assert {number for _, number in limited[0]} == {77}
