"""A process is killed at every atomic store of the library: what it held comes back, and nobody else is harmed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildsupport.native import BASE_FLAGS, OBJECTS, ROOT, compiler
from buildsupport.objects import objects
from hypervisor.simulation import machine as machines
from hypervisor.simulation.profiles import load_description
from tests.integration.limiter.conftest import GIB, LIMITER, MIB, SECONDS, TESTS, Files, Pod

SOURCES = ROOT / "limiter" / "src"
DRIVER = ROOT / "hypervisor" / "native" / "simulator" / "libcuda.so.1"
CONTEXT_BYTES = 8 * MIB
SHARE_PPM = 500_000
# Stores that no life comes to, by file and text. Those to memory that processes share are of single words, each of
# which says all by itself.
UNPASSED: dict[str, str | tuple[str, ...]] = {
    "contexts.h": "hv_sub_acq_rel(open->in_flight",  # of one who raced with the daemon, back to before it began
    "lookup.c": "__atomic_store_n(place",  # of dlvsym, where only dlsym is used
    # After thousands of functions; of a process's own function that has turned out to be other work.
    "functions.c": ("table->overflow.device", "(&function->"),
    "hooks_begin.c": "told_of_tables",  # the simulated driver has no private tables
    "device_nodes.c": "&told",  # a process's own; where a container's control group refuses the node
    "hooks_memory.c": "unknown_frees",  # the simulated driver refuses what it does not know
    # A process's own table, where another one has learned the cost; the cost of what has turned out to be other work.
    # What was measured before others' turns were told of, and who goes on measuring: one word.
    "costs.c": (
        "&function->first_cost_ns",
        "hv_load_relaxed(&function->published) - 1)->cost_ns",
        "(&function->cost_ns, hv_load_relaxed(&entry->cost_ns))",
        "&function->priced",
        "(&entry->learning_until_ns, &until, next)",
        # No daemon tells of turns here; each is one word, and whoever comes next begins with what it finds.
        "(&entry->learning_until_ns, &marked, 0)",
        "(&entry->cost_ns, &cost, next)",
        "latest_of(function), 0",
    ),
    "graph_costs.c": ("(&place->", "graph_sources, 1"),  # a process's own; the walk changes no node of a graph
    "latest.c": "(word, &found, next)",  # the same
    "pacing_settle.c": "relearned_at_ns",  # the same
    "pacing_untold.c": ("(&sampler->", "(word, 0)", "&function->untold", "->returned_ns"),  # no daemon tells here
    # Nor here; a mean that is told after some places; a count that some who died waiting have left, by chance.
    "pacing_pay.c": ("->priced_ns", "&gate->usage->place_ns", "(&gate->usage->waiters, 0)"),
    "sampler_results.c": ("(&sampler->", "(&sample->function->kept", "&function->priced"),  # a process's own samples
    "sampler_laid.c": ("(&sampler->", "(&sample->function->first_cost_ns"),  # the same
    "pacing_gate.c": "(&sampler->basis",  # a process's own; what the daemon's word was for
    "pacing_wait.c": ("&function->impatient", "sampler.waited_in_vain"),  # a process's own; a wait of seconds
    "hooks_processes.c": "told_of_nvml_tables",  # by nvidia-smi only
    "bindings.c": "",  # a process's own list; this machine has no switches to bind memory to
    "sampler.c": "",  # a process's own samples; which are given up depends on the clock
    "survey.c": "",  # the same of its surveys
}


def with_crash_points(folder: Path, sources: Path = SOURCES) -> Path:
    """The library, built from its own sources, with a numbered point before and after each of its atomic stores."""
    headers = [ROOT / "limiter/include", sources, TESTS]
    # _GNU_SOURCE as the sources say it: a header comes before them.
    flags = [*BASE_FLAGS, "-O1", "-g1", "-D_GNU_SOURCE="]
    numbered = [*flags, "-include", str(TESTS / "crash_sites.h")]
    made = objects(compiler(), numbered, headers, sorted(sources.glob("*.c")), OBJECTS)
    made += objects(compiler(), flags, headers, [TESTS / "crash_sites.c"], OBJECTS)
    script = folder / "limiter.map"
    script.write_text((ROOT / "limiter/limiter.map").read_text().replace("local:", "hv_crash_*;\n  local:"))
    library = folder / LIMITER.name
    command = [*compiler(), "-shared", f"-Wl,--version-script={script}", *map(str, made), "-o", str(library)]
    subprocess.run([*command, "-pthread"], check=True)
    return library


def walker(build: Callable[..., Path], library: Path, name: str) -> Path:
    parts = ("os_linux.c", "os_clock.c", "elf_symbols.c")
    own = ("crash_walk.c", "crash_life.c", "crash_survivor.c", "crash_client.c", "file_maker.c")
    sources = (*own, *(f"../src/{part}" for part in parts))
    return build(name, *sources, flags=("-pthread", "-Wl,--no-as-needed", str(library), str(DRIVER), "-ldl"))


def walk(pod: Pod, program: Path, library: Path, *, stride: int, offset: int) -> subprocess.CompletedProcess[str]:
    pod.files.make(GIB, SHARE_PPM, CONTEXT_BYTES)
    with machines.opened(pod.machine) as machine:
        pod.files.run("also", machine.show()["gpus"][1]["uuid"], GIB, SHARE_PPM)
    pod.files.run("flags", 2 | 8)  # copies are charged; utilisation is the share of the limit
    numbers = [str(number) for number in (GIB, CONTEXT_BYTES, stride, offset)]
    command = [str(program), str(pod.files.directory), *numbers]
    return subprocess.run(
        command,
        env=pod.variables(LD_PRELOAD=str(library)),
        capture_output=True,
        text=True,
        timeout=20 * SECONDS,
        check=False,
    )


@pytest.fixture
def pod(tmp_path: Path, limit_files: Path) -> Pod:
    """A Pod with the first two GPUs of a machine: see walk."""
    machine = tmp_path / "machine"
    machines.create(machine, load_description("a100-sxm-80gb"))
    with machines.opened(machine) as opened:
        uuid = opened.show()["gpus"][0]["uuid"]
    directory = tmp_path / "limits"
    directory.mkdir()
    return Pod(machine, Files(directory, limit_files, uuid))


@pytest.fixture(scope="module")
def numbered(build: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program that walks, and the library."""
    library = with_crash_points(tmp_path_factory.mktemp("crash-points"))
    return walker(build, library, "crash_walk"), library


def stores_in_the_sources() -> int:
    """Atomic stores as they are written: at least so many sites there must be."""
    names = r"hv_(store|add|sub|or|and|exchange|cas)_(relaxed|release|acq_rel)(_32)?\("
    builtins = r"__atomic_(store_n|exchange_n|compare_exchange_n|fetch_\w+)\("
    files = [*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return sum(re.search(f"{names}|{builtins}", line) is not None for line in lines)


def may_stay_unpassed(line: str) -> bool:
    _, path, number = line.split()
    text = Path(path).read_text().splitlines()[int(number) - 1]
    known = UNPASSED.get(Path(path).name, "nothing")
    return any(each in text for each in ((known,) if isinstance(known, str) else known))


@pytest.mark.slow
def test_death_at_every_store_harms_nobody(pod: Pod, numbered: tuple[Path, Path]) -> None:
    """HAMi-core PR 248: a kill in the initialisation. HAMi-core PR 260: a kill between two stores; nobody hangs."""
    done = walk(pod, *numbered, stride=1, offset=0)
    assert done.returncode == 0, done.stdout + done.stderr
    *unpassed, summary = done.stdout.splitlines()
    deaths, points, sites = map(int, re.findall(r"\d+", summary))
    assert [line for line in unpassed if not may_stay_unpassed(line)] == []
    assert sites + len(unpassed) == stores_in_the_sources()
    assert points >= 2 * sites - 2  # of each the store itself, and what comes after it
    assert deaths >= points * 0.9  # few points are not met again by the clock
    memory = pod.gpu()["memory"]
    assert memory["peak_bytes"] <= GIB + 3 * memory["context_bytes"]  # what contexts really took is not in the account


@pytest.mark.slow
def test_death_at_some_stores_harms_nobody(pod: Pod, numbered: tuple[Path, Path]) -> None:
    done = walk(pod, *numbered, stride=30, offset=5)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_library_that_does_not_recount_is_found_out(pod: Pod, build: Callable[..., Path], tmp_path: Path) -> None:
    """The control: without the recount before a refusal, what the dead reserved is lost to the living."""
    sources = tmp_path / "src"
    shutil.copytree(SOURCES, sources)
    memory = sources / "memory.c"
    call = "        recount(reservation->slot, reservation->device, reservation->host);\n"
    assert call in memory.read_text()
    memory.write_text(memory.read_text().replace(call, ""))
    library = with_crash_points(tmp_path, sources)
    done = walk(pod, walker(build, library, "crash_walk_without_recount"), library, stride=1, offset=0)
    assert done.returncode == 1
    assert "the survivor failed at its step" in done.stdout
