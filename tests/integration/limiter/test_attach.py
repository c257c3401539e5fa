"""Which processes are limited, and what is refused where the limits can't be read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, ROOT, compiler
from tests.integration.limiter.conftest import GIB, MIB, Files, Pod, heard

NOT_READY = 802
OPERATING_SYSTEM = 304
MAJOR_VERSION = 8  # where it lies in the header
MISMATCH, REFUSED = 3, 8  # enum hv_message_code
ALLOCATE = "start(); tell(alloc(2 * GIB)[0])"
INIT = "tell(call('cuInit', 0))"


def test_without_file_and_variable_nothing_is_limited(pod: Pod) -> None:
    assert pod.ask(ALLOCATE, TF_SHM_PATH="") == 0
    assert pod.ask(ALLOCATE) == 2  # the control


@pytest.mark.parametrize("named", ["", "shm"])
def test_the_variable_names_the_file_or_its_directory(pod: Pod, named: str) -> None:
    assert pod.ask(ALLOCATE, TF_SHM_PATH=str(pod.files.directory / named)) == 2


def test_soft_mode_without_a_file_is_refused_and_not_unlimited(pod: Pod, tmp_path: Path) -> None:
    answers = pod.ask(
        "tell([call('cuInit', 0), call('cuInit', 0), alloc(4096)[0]])",
        TF_SHM_PATH="",
        TF_ISOLATION_MODE="soft",
        TF_LIMITER_WAIT_MS="20",
    )
    assert answers == [NOT_READY] * 3
    assert pod.ask(INIT, TF_SHM_PATH=str(tmp_path / "nowhere"), TF_LIMITER_WAIT_MS="20") == NOT_READY


def damaged(pod: Pod, offset: int, content: bytes) -> None:
    with (pod.files.directory / "shm").open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"\0" * 8),  # no magic
        (MAJOR_VERSION, b"\2\0"),
        (16, b"\xff" * 8),  # longer than the file
        (40, b"\xff\xff\xff\xff"),  # sections without end
        (152 + 8, b"\1"),  # a section that does not begin on a page
        (152 + 16, b"\xff" * 8),  # a section that leaves the file
        (4096 + 80, b"\0"),  # not armed
    ],
)
def test_a_file_that_is_not_in_order_is_refused(pod: Pod, offset: int, content: bytes) -> None:
    damaged(pod, offset, content)
    assert pod.ask(INIT, TF_LIMITER_WAIT_MS="20") == NOT_READY
    (message,) = pod.files.show()["messages"]  # the usage file is in order: the daemon hears of it
    assert message["code"] == (MISMATCH if offset == MAJOR_VERSION else REFUSED)
    assert message["text"].startswith("CUDA is refused: the limit file")


def test_a_truncated_file_is_refused(pod: Pod) -> None:
    """HAMi-core 7: a file of another size."""
    subprocess.run(["truncate", "-s", "100", str(pod.files.directory / "usage")], check=True)
    assert pod.ask(INIT, TF_LIMITER_WAIT_MS="20") == NOT_READY


def test_limits_that_come_within_the_deadline_are_waited_for(pod: Pod) -> None:
    damaged(pod, 4096 + 80, b"\0")
    with pod.running("tell(0); tell(call('cuInit', 0)); start(); tell(alloc(2 * GIB)[0])") as process:
        assert heard(process) == 0
        damaged(pod, 4096 + 80, b"\1")
        assert heard(process) == 0
        assert heard(process) == 2


def test_a_program_may_try_again_after_a_refusal(pod: Pod) -> None:
    damaged(pod, 4096 + 80, b"\0")
    source = "tell(call('cuInit', 0)); sys.stdin.readline(); tell(call('cuInit', 0)); start(); tell(alloc(2 * GIB)[0])"
    with pod.running(source, variables={"TF_LIMITER_WAIT_MS": "20"}) as process:
        assert heard(process) == NOT_READY
        damaged(pod, 4096 + 80, b"\1")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert [heard(process), heard(process)] == [0, 2]


def test_when_all_slots_are_taken_init_fails(pod: Pod) -> None:
    slot_bytes, first, bitmap = 1088, 163840, 8192
    with (pod.files.directory / "usage").open("r+b") as file:
        file.seek(bitmap)
        file.write(b"\xff" * 64)
        for index in range(512):
            file.seek(first + index * slot_bytes)
            file.write((2).to_bytes(8, "little"))  # live, of another PID namespace
            file.write((1 << 32 | 7).to_bytes(8, "little"))
    assert pod.ask(INIT) == OPERATING_SYSTEM
    assert [message["code"] for message in pod.files.show()["messages"]] == [2]


def test_the_fixed_path_wins(pod: Pod, tmp_path: Path) -> None:
    """With a build whose fixed path is a directory of the test: the variable can't lead away from it."""
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    library = tmp_path / "libcuda_limiter.so"
    sources = [str(path) for path in sorted((ROOT / "limiter" / "src").glob("*.c"))]
    subprocess.run(
        [
            *(*compiler(), *BASE_FLAGS, "-O1", "-shared", f'-DHV_FIXED_DIRECTORY="{fixed}"', "-o", str(library)),
            *(f"-I{ROOT / 'limiter' / 'include'}", f"-I{ROOT / 'limiter' / 'src'}", *sources),
            f"-Wl,--version-script={ROOT / 'limiter' / 'limiter.map'}",
        ],
        check=True,
    )
    with_fixed_path = Pod(pod.machine, pod.files, library)
    pod.files.make(4 * GIB)
    assert with_fixed_path.ask("start(); tell(memory()[1])") == 4 * GIB
    Files(fixed, pod.files.tool, pod.files.uuid).make(512 * MIB)
    assert with_fixed_path.ask("start(); tell(memory()[1])") == 512 * MIB
