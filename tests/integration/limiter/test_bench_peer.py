"""The bench of the limiter beside another one: a library of this test, which makes cuInit take three milliseconds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildsupport.native import compiler
from tests.bench import bench_limiter

NANOSECONDS = 3_000_000
OTHER = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>

static int (*driver_init)(unsigned);

static int slow_init(unsigned flags)
{{
    nanosleep(&(struct timespec){{.tv_nsec = {NANOSECONDS}}}, NULL);
    return driver_init(flags);
}}

void *dlsym(void *handle, const char *name)
{{
    void *(*real)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    void *found = real(handle, name);
    if (strcmp(name, "cuInit") != 0)
        return found;
    driver_init = found;
    return slow_init;
}}
"""


@pytest.mark.slow
def test_another_limiter_is_measured_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, limits = tmp_path / "other.so", tmp_path / "limits"
    (tmp_path / "other.c").write_text(OTHER)
    subprocess.run([*compiler(), "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(library)], check=True)
    limits.mkdir()
    monkeypatch.setattr(bench_limiter, "ROUNDS", 2)
    programs = bench_limiter.prepare(tmp_path)

    def measured() -> bench_limiter.Figure:
        runs = bench_limiter.alternated(programs, limits, bench_limiter.LIMITED, "init")
        return bench_limiter.added("start", runs, "init", 1000, "us", 1000)

    assert measured().peer is None
    monkeypatch.setenv("PEER_LIMITER", str(library))
    found = measured()
    assert found.baseline is not None
    assert found.peer is not None
    assert found.peer + found.baseline >= NANOSECONDS / 1000
    assert found.peer > found.value, "ours does not take its time"
