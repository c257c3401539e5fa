"""Machine files from Python: made, opened, used again, refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.simulation import _machine, spec
from hypervisor.simulation.document import DocumentError
from hypervisor.simulation.environment import environment, library_folder
from hypervisor.simulation.faults import ACTIONS
from hypervisor.simulation.machine import MachineError, create, destroy, opened, prepared
from hypervisor.simulation.profiles import load_description, load_profile

lib = _machine.lib


def test_the_figures_of_the_description_are_those_of_the_header() -> None:
    assert (spec.MAX_GPUS, spec.MAX_LINKS, spec.MAX_FAULTS) == (lib.SIM_MAX_GPUS, lib.SIM_MAX_LINKS, lib.SIM_MAX_FAULTS)
    assert (spec.MAX_RULES, spec.AFFINITY_WORDS, spec.NONE) == (lib.SIM_MAX_RULES, lib.SIM_AFFINITY_WORDS, lib.SIM_NONE)
    assert spec.P2P_CAPABILITIES == lib.SIM_P2P_CAPABILITIES
    header = {
        name.removeprefix("SIM_FAULT_").lower(): getattr(lib, name)
        for name in dir(lib)
        if name.startswith("SIM_FAULT_")
    }
    del header["none"]
    assert header == dict(ACTIONS)


def test_what_is_written_is_what_is_shown(tmp_path: Path) -> None:
    wanted = load_profile("a100-sxm-80gb", seed="somewhere")
    create(tmp_path / "m", wanted)
    with opened(tmp_path / "m") as machine:
        shown = machine.show()
        assert machine.check() == []
    assert shown["profile"] == "a100-sxm-80gb"
    assert shown["driver_version"] == "580.65.06"
    for gpu, described in zip(shown["gpus"], wanted.gpus, strict=True):
        assert (gpu["uuid"], gpu["name"], gpu["bus_id"]) == (described.uuid, described.name, described.bus_id)
        assert gpu["memory"]["total_bytes"] == described.memory_total_bytes
        assert gpu["memory"]["free_bytes"] == described.memory_total_bytes - described.memory_reserved_bytes
        assert (gpu["links"], gpu["links_active"], gpu["numa_node"]) == (12, 12, described.numa_node)
    assert shown["processes"] == shown["groups"] == shown["faults"] == shown["notices"] == []
    assert shown["streams"] == {"open": 0, "active": 0}


EXTREME = """\
version: 1
driver: {version: "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17.18.19.20.21.22", cuda: 99990}
clock: {mode: virtual, scale: 1000}
host: {numa_nodes: 16, cpus_per_node: 64}
gpus: [{count: 16, profile: h100-sxm-80gb, numa: 15, memory: 1023Gi, context: 0}]
nvlink: {topology: mesh, links_per_gpu: 15}
kernels: [{match: "éééééééééééééééééééééééééééééééééééééééééééééé", ns: 1000000000000, ns_per_block: 1000000000}]
sampling: {window_ms: 1000}
scheduling: {slice: 1s, launch_latency: 1s}
faults:
  - {call: "*", value: 9223372036854775807, at: 86400000s, for: 86400000s, count: 9223372036854775807}
  - {call: "*", value: -9223372036854775808}
"""


def test_whatever_the_description_allows_can_be_written(tmp_path: Path) -> None:
    yaml = tmp_path / f"{'ü' * 60}.yaml"
    yaml.write_text(EXTREME)
    create(tmp_path / "m", load_description(str(yaml)))
    with opened(tmp_path / "m") as machine:
        shown = machine.show()
        assert machine.check() == []
        machine.step(10**15)
    assert shown["profile"] == "ü" * 31  # 63 bytes, without half a letter
    assert [gpu["links_active"] for gpu in shown["gpus"]] == [15] * 16
    assert shown["faults"][0]["until_ns"] == 2 * 86_400_000 * 10**9
    assert shown["faults"][1]["value"] == -(2**63)


def test_a_machine_costs_disk_only_where_it_is_written(tmp_path: Path) -> None:
    create(tmp_path / "m", load_profile("h100-sxm-80gb"))
    assert (tmp_path / "m").stat().st_blocks * 512 < 2 << 20


def test_one_of_many_makers_wins_and_leaves_a_whole_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from hypervisor.cli import main; main()", "sim", "create", "t4", "--machine", "m"]
    makers = [
        subprocess.Popen(
            [*command, "--seed", str(seed)], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        for seed in range(4)
    ]
    answers = [(maker.communicate(timeout=30)[1], maker.returncode) for maker in makers]
    winners = [seed for seed, (_, status) in enumerate(answers) if status == 0]
    with opened(tmp_path / "m") as machine:
        assert [gpu["uuid"] for gpu in machine.show()["gpus"]] == [
            gpu.uuid for seed in winners for gpu in load_profile("t4", seed=str(seed)).gpus
        ]
    assert sum("there is a file of that name already" in words for words, _ in answers) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_prepared_machine_is_used_again(tmp_path: Path) -> None:
    path = prepared("t4", tmp_path)
    with opened(path) as machine:
        before = machine.now_ns()
    assert prepared("t4", tmp_path) == path
    assert prepared(str(path), tmp_path / "elsewhere") == path
    with opened(path) as machine:
        assert machine.now_ns() > before
    destroy(path)
    with pytest.raises(DocumentError, match="is no profile"):
        prepared("t5", tmp_path)


def test_a_damaged_machine_is_not_prepared(tmp_path: Path) -> None:
    path = prepared("t4", tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(MachineError, match="truncated"):
        prepared("t4", tmp_path)
    with pytest.raises(MachineError, match="truncated"):
        prepared(str(path), tmp_path)


def test_a_machine_that_another_version_made_is_made_anew_where_it_was_prepared(tmp_path: Path) -> None:
    path = prepared("t4", tmp_path)
    with path.open("r+b") as file:
        file.seek(8)  # after the magic word
        file.write((99).to_bytes(4, "little"))
    with pytest.raises(MachineError, match="layout version; remove it with: hypervisor sim destroy --machine"):
        prepared(str(path), tmp_path)  # somebody's own
    with opened(prepared("t4", tmp_path)) as machine:
        assert machine.check() == []


def test_the_environment_changes_two_variables() -> None:
    base = {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    changed = environment(Path("m"), base)
    assert changed == {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": f"{library_folder()}:/opt/lib",
        "SIM_MACHINE": str(Path.cwd() / "m"),
    }
    assert environment(Path("/m"), {})["LD_LIBRARY_PATH"] == str(library_folder())
