"""In a process that does not use CUDA the limiter does nothing that anybody could notice."""

from __future__ import annotations

import subprocess

import pytest

from buildsupport.native import ROOT
from tests.integration.limiter.conftest import LIMITER, Pod

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
