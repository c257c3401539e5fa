"""`hypervisor get` and `describe` against a server: what is printed, in which form, and with which status."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests import builders

ROOT = Path(__file__).parents[3]


def test_gpus_as_json(node, cli) -> None:
    found = json.loads(cli("get", "gpus", "--server", node.read, "-o", "json").out)["items"]
    assert [gpu["index"] for gpu in found] == list(range(8))
    first = found[0]
    assert first["uuid"] == builders.uuid(0)
    assert first["model"] == "NVIDIA H100 80GB HBM3"
    assert first["capacity"]["tflops"]["value"] == 989.0
    assert first["capacity"]["tflops"]["source"] == "FIGURE_SOURCE_CATALOGUE"
    assert first["capacity"]["vram"]["bytes"] == str(builders.VRAM)
    assert first["topology"]["numaNode"] == 0
    assert len(first["topology"]["links"]) == 7
    assert first["topology"]["links"][0]["nvlinkCount"] == 18
    assert "partition" not in first


def test_what_is_unknown_is_absent_in_json(node, cli) -> None:
    readings = builders.make_readings(temperature_celsius=builders.Figure.absent("the driver doesn't say"))
    gpu = builders.make_gpu(0, readings=readings, topology=None)
    node.do(node.server.publish, builders.make_snapshot(gpus=(gpu,), number=2))
    (found,) = json.loads(cli("get", "gpus", "--server", node.read, "-o", "json").out)["items"]
    assert "value" not in found["readings"]["temperatureCelsius"]
    assert found["readings"]["temperatureCelsius"]["absentReason"] == "the driver doesn't say"
    assert "topology" not in found
    assert "unknown" in cli("get", "gpus", "--server", node.read, "-o", "wide").out


def test_pods_as_json_and_yaml_say_the_same(node, cli) -> None:
    def without_ages(value):
        if isinstance(value, dict):
            return {key: without_ages(part) for key, part in value.items() if key not in ("ageSeconds", "observedAt")}
        return [without_ages(part) for part in value] if isinstance(value, list) else value

    as_json = json.loads(cli("get", "pods", "--server", node.read, "-o", "json").out)
    as_yaml = yaml.safe_load(cli("get", "pods", "--server", node.read, "-o", "yaml").out)
    assert without_ages(as_json) == without_ages(as_yaml)
    (first, _) = as_json["items"]
    assert first["spec"]["allocationId"] == "pod-0"
    assert first["devices"][0]["limits"] == {"compute": {"percent": "40"}, "vramBytes": str(8 * builders.GIB)}
    assert first["devices"][0]["usage"]["busyRatio"]["value"] == 0.39
    assert first["enforcement"] == "ENFORCEMENT_VERIFIED"


@pytest.mark.parametrize("kind", ["nodes", "gpus", "pods", "workers", "events"])
def test_tables_fit_into_80_columns(node, cli, kind: str) -> None:
    long = "a-very-long-name-of-an-allocation-that-somebody-made-up-0123456"
    node.do(
        node.server.publish,
        builders.make_snapshot(
            number=2, allocations=(builders.make_allocation(long),), workers=(builders.make_worker(long),)
        ),
    )
    node.do(node.journal.emit, builders.make_event(99, message="x" * 500 + "\n\x1b[31m"))
    outcome = cli("get", kind, "--server", node.read)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert len(lines) >= 2
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in outcome.out
    wide = cli("get", kind, "--server", node.read, "-o", "wide").out
    assert len(wide.splitlines()) == len(lines)
    if kind in ("pods", "workers"):
        assert long in wide


def test_pods_table(node, cli) -> None:
    header, row, _ = cli("get", "pods", "--server", node.read).out.splitlines()
    assert header.split() == ["NAME", "OWNER", "GPU", "COMPUTE", "VRAM", "USED", "PHASE", "ENFORCEMENT"]
    assert row.split() == ["pod-0", "(named)", "0", "40%", "8Gi", "2.3Gi", "Active", "verified"]


def test_the_wide_table_of_pods_says_how_limits_are_kept(node, cli) -> None:
    """Balance and costliest function, of each device where they differ; nothing where nobody is paced."""
    one = builders.make_device_usage(pacing=builders.make_pacing())
    other = builders.make_device_usage(
        1, pacing=builders.make_pacing(balance_seconds=builders.limiter(0.05), costs=(builders.make_cost(graph=True),))
    )
    unpaced = builders.make_device_usage(1)
    allocations, usages = [], []
    for name, devices in (
        ("both", (one, other)),
        ("same", (one, replace(one, gpu_uuid=other.gpu_uuid))),
        ("half", (one, unpaced)),
    ):
        base = builders.make_allocation(name)
        grants = tuple(replace(base.grants[0], gpu_uuid=builders.uuid(index)) for index in (0, 1))
        allocations.append(replace(base, grants=grants))
        usages.append(builders.make_usage(name, devices=devices))
    shown = replace(builders.make_snapshot(number=2, allocations=tuple(allocations)), usages=tuple(usages))
    node.do(node.server.publish, shown)
    header, *rows = cli("get", "pods", "--server", node.read, "-o", "wide").out.splitlines()
    cells = {row.split()[0]: row for row in rows}
    assert re.search(r"ACHIEVED +BALANCE +TOP FUNCTION +THROTTLED S", header)
    assert re.search(r" -350 ms,50 ms +sgemm 1\.2 ms,graph 1\.2 ms ", cells["both"])
    assert re.search(r"  -350 ms +sgemm 1\.2 ms ", cells["same"])
    assert re.search(r"  -350 ms,- +sgemm 1\.2 ms,- ", cells["half"])
    described = cli("describe", "pod", "both", "--server", node.read).out
    assert re.search(r"Balance: +-350 ms", described)
    assert "1.2 ms a launch, 100 launches, sgemm" in described
    assert "20 us a launch, 5 launches, copy_kernel" in described


def test_names_select(node, cli) -> None:
    def uuids(*names: str) -> list[str]:
        return cli("get", "gpus", *names, "--server", node.read, "-o", "name").out.split()

    assert uuids("3") == [builders.uuid(3)]
    assert uuids(builders.uuid(5).lower(), "1") == [builders.uuid(5), builders.uuid(1)]
    assert uuids("GPU-00000006") == [builders.uuid(6)]
    assert cli("get", "pod", "pod-1", "--server", node.read, "-o", "name").out.split() == ["pod-1"]
    missing = cli("get", "gpus", "9", "--server", node.read)
    assert (missing.status, missing.out) == (1, "")
    assert "there is no gpu '9'; there are GPU-" in missing.err
    several = cli("get", "gpus", "GPU-0000", "--server", node.read)
    assert several.status == 1
    assert "8 gpus" in several.err


def test_an_empty_list_says_so_on_stderr(node, cli) -> None:
    outcome = cli("get", "workers", "--server", node.read)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "no workers\n")
    assert json.loads(cli("get", "workers", "--server", node.read, "-o", "json").out) == {"items": []}


def test_pools_are_the_aggregators(node, cli) -> None:
    outcome = cli("get", "pools", "--server", node.read)
    assert outcome.status == 2
    assert "aggregator" in outcome.err


def test_all_pages_are_read(node, cli) -> None:
    node.do(node.server.publish, builders.make_snapshot(allocations=600, number=2))
    names = cli("get", "pods", "--server", node.read, "-o", "name").out.split()
    assert names == [f"pod-{number}" for number in range(600)]


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("unix:/nowhere/at/all.sock", 3, "can't reach unix:/nowhere/at/all.sock: there is no such socket; is the "),
        ("127.0.0.1:1", 3, "can't reach 127.0.0.1:1: Connection refused"),
        ("nonsense", 2, "write it as unix:PATH or HOST:PORT"),
        ("host:99999", 2, "a port is at most 65535"),
        ("unix:", 2, "the path of the socket is missing"),
        ("unix:/" + "a" * 200, 2, "the system allows 107"),
    ],
)
def test_servers_that_cannot_be_reached(cli, address: str, status: int, words: str) -> None:
    for command in (["get", "gpus"], ["describe", "gpu", "0"], ["release", "x"], ["allocate", "x"]):
        outcome = cli(*command, "--server", address)
        assert outcome.status == status
        assert words in outcome.err
        assert outcome.err.count("\n") == 1


def test_a_stale_socket_and_a_stranger(tmp_path: Path, cli) -> None:
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    outcome = cli("get", "gpus", "--server", f"unix:{path}")
    assert outcome.status == 3
    assert "hypervisor run" in outcome.err


@pytest.mark.slow
def test_a_server_that_takes_the_connection_and_says_nothing(tmp_path: Path, cli) -> None:
    """A daemon that hangs, or one on a machine so busy that its first frame takes long: that it is given time for."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "silent.sock"))
        listening.listen(8)
        begun = time.monotonic()
        outcome = cli("get", "gpus", "--server", f"unix:{tmp_path}/silent.sock")
    assert outcome.status == 3
    assert "is silent; is the daemon stuck?" in outcome.err
    assert time.monotonic() - begun > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_no_permission_names_who_may(cli) -> None:
    """As another user, since root may do everything."""
    assert cli("release", "x", "--server", "unix:/nowhere.sock").status == 3  # everything is imported by now
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
        path = Path(directory) / "admin.sock"
        Path(directory).chmod(0o755)
        listening.bind(str(path))
        listening.listen()
        path.chmod(0o600)
        os.seteuid(65534)
        try:
            outcome = cli("release", "x", "--server", f"unix:{path}")
        finally:
            os.seteuid(0)
        assert outcome.status == 3
        assert outcome.err == f"hypervisor: no permission to use unix:{path}; run this as root (sudo)\n"
        os.chown(path, 0, 54321)
        path.chmod(0o660)
        os.seteuid(65534)
        try:
            outcome = cli("release", "x", "--server", f"unix:{path}")
        finally:
            os.seteuid(0)
        assert "run this as root, or join the group 54321" in outcome.err


def test_watch_prints_what_changes_and_ends_quietly(node) -> None:
    watch = subprocess.Popen(
        [sys.executable, "-m", "hypervisor", "get", "pods", "-w", "-o", "json", "--server", node.read],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert watch.stdout is not None

    def following() -> tuple[str, str]:
        change = json.loads(watch.stdout.readline())
        return change["type"], change["object"]["spec"]["allocationId"]

    assert [following(), following()] == [("ADDED", "pod-0"), ("ADDED", "pod-1")]
    node.do(node.server.publish, builders.make_snapshot(allocations=1, number=2))
    assert following() == ("DELETED", "pod-1")
    changed = builders.make_allocation("pod-0", revision=builders.revision(3))
    node.do(node.server.publish, builders.make_snapshot(allocations=(changed,), number=3))
    assert following() == ("MODIFIED", "pod-0")
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=20)
    assert (watch.returncode, err) == (130, "")


def test_watch_of_events_and_rows(node) -> None:
    watch = subprocess.Popen(
        [sys.executable, "-m", "hypervisor", "get", "events", "-w", "--server", node.read],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert watch.stdout is not None
    lines = [watch.stdout.readline() for _ in range(4)]
    assert lines[0].split() == ["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert "Allocation/pod-3" in lines[3]
    node.do(node.journal.emit, builders.make_event(4))
    assert "Allocation/pod-4" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=20)
    assert (watch.returncode, err) == (130, "")


def test_describe(node, cli) -> None:
    gpu = cli("describe", "gpu", "0", "--server", node.read).out
    assert "989 (catalogue)" in gpu
    assert "18 x 4.0 switched" in gpu
    pod = cli("describe", "pod", "pod-1", "--server", node.read).out
    assert "40% (40% of GPU time)" in pod
    assert "4711" in pod
    assert "pod-1 got 40% and 8Gi of GPU 0" in pod  # from the journal
    assert "pod-2 got" not in pod
    described = cli("describe", "node", "gpu-node-1", "--server", node.read).out
    assert "580.65.06" in described
    assert "Simulated:          yes" in described
    missing = cli("describe", "pod", "nobody", "--server", node.read)
    assert missing.status == 1
    assert "there is no pod 'nobody'; there are pod-0, pod-1" in missing.err
