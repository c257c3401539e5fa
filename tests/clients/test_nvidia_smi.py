"""NVIDIA's own nvidia-smi, of two driver branches, shows what is on the simulated machine."""

from __future__ import annotations

import csv
import io
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hypervisor.simulation.faults import parse_fault_text
from tests.clients.conftest import GIB, SECONDS, load, needed, shown
from tests.clients.debian import unpacked

pytestmark = pytest.mark.clients

DRIVERS = {535: "535.261.03", 550: "550.163.01"}
NODE = """\
version: 1
driver: {{version: "{driver}", cuda: 12020}}
gpus: [{{count: 2, profile: h100-sxm-80gb, bus: ["18", "2a"]}}]
nvlink: {{topology: nvswitch, links_per_gpu: 18, version: 4, switches: 4}}
mig: {{gpu1: {{mode: {mig}}}}}
"""
LAYOUT = "on, instances: [3g.40gb, {profile: 2g.20gb, compute: [1, 1]}, 1g.10gb]"


@pytest.fixture(scope="module", params=list(DRIVERS))
def branch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def smi(branch: int) -> Path:
    return needed(unpacked, branch, "nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture
def node(simulate, branch: int):
    return simulate(NODE.format(driver=DRIVERS[branch], mig="off"))


@pytest.fixture
def mig_node(simulate, branch: int):
    return simulate(NODE.format(driver=DRIVERS[branch], mig=LAYOUT))


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), skipinitialspace=True))


def test_default_view_and_list(smi: Path, node, branch: int) -> None:
    gpus = node.show()["gpus"]
    text = shown(node.path, smi)
    assert f"Driver Version: {DRIVERS[branch]}" in text
    assert text.count("NVIDIA H100 80GB HBM3") == 2
    assert len(re.findall(r"0MiB / +81559MiB", text)) == 2
    assert "No running processes found" in text
    listed = shown(node.path, smi, "-L")
    expected = [f"GPU {gpu['index']}: NVIDIA H100 80GB HBM3 (UUID: {gpu['uuid']})" for gpu in gpus]
    assert listed.splitlines() == expected


def test_queries(smi: Path, node) -> None:
    fields = (
        "index,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu,power.draw,ecc.mode.current,mig.mode.current"
    )
    rows = table(shown(node.path, smi, f"--query-gpu={fields}", "--format=csv,nounits"))
    gpus = node.show()["gpus"]
    assert [(row["uuid"], row["pci.bus_id"]) for row in rows] == [(gpu["uuid"], gpu["bus_id"]) for gpu in gpus]
    assert {(row["memory.total [MiB]"], row["memory.used [MiB]"]) for row in rows} == {("81559", "0")}
    assert {(row["ecc.mode.current"], row["mig.mode.current"]) for row in rows} == {("Enabled", "Disabled")}
    assert {row["power.draw [W]"] for row in rows} == {"70.00"}


def test_a_client_of_the_driver_api_is_seen(smi: Path, node) -> None:
    with load(node.path, "--device=1", "--kernel-us=500", f"--hold={GIB}", "--seconds=300") as client:
        deadline = time.monotonic() + SECONDS
        query = ("--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits")
        while True:
            idle, busy = (line.split(", ") for line in shown(node.path, smi, *query).splitlines())
            if int(busy[1]) >= 80:
                break
            assert time.monotonic() < deadline, "never busy"
        assert idle == ["0", "0"]
        assert busy[0] == str((GIB >> 20) + 500)
        apps = table(
            shown(node.path, smi, "--query-compute-apps=pid,used_memory,name,gpu_uuid", "--format=csv,nounits")
        )
        assert [(row["pid"], row["used_gpu_memory [MiB]"], row["gpu_uuid"]) for row in apps] == [
            (str(client.pid), "1524", node.show()["gpus"][1]["uuid"])
        ]
        assert apps[0]["process_name"].endswith("/load")
        text = shown(node.path, smi)
        assert re.search(rf"\|\s+1\s+N/A\s+N/A\s+{client.pid}\s.*load\s+1524MiB \|", text)


def test_monitors_of_devices_and_processes(smi: Path, node) -> None:
    with load(node.path, "--device=1", "--kernel-us=500", f"--hold={GIB}", "--seconds=300") as client:
        deadline = time.monotonic() + SECONDS
        while not any(process["gpus"].get("1", {}).get("bytes") for process in node.show()["processes"]):
            assert time.monotonic() < deadline, "never came"
        devices = shown(node.path, smi, "dmon", "-c", "1")
        assert [line.split()[0] for line in devices.splitlines() if not line.startswith("#")] == ["0", "1"]
        processes = shown(node.path, smi, "pmon", "-c", "1", "-i", "1")
        assert re.search(rf"^\s+1\s+{client.pid}\s+C\s.*\bload\b", processes, re.MULTILINE)


def test_everything_as_text_and_as_xml(smi: Path, node) -> None:
    text = shown(node.path, smi, "-q")
    gpus = node.show()["gpus"]
    assert re.findall(r"GPU UUID\s+: (\S+)", text) == [gpu["uuid"] for gpu in gpus]
    assert re.findall(r"Product Architecture\s+: (\S+)", text) == ["Hopper"] * 2
    assert len(text.splitlines()) > 300
    root = ET.fromstring(shown(node.path, smi, "-q", "-x"))
    assert [gpu.findtext("uuid") for gpu in root.iter("gpu")] == [gpu["uuid"] for gpu in gpus]
    assert {gpu.findtext("fb_memory_usage/total") for gpu in root.iter("gpu")} == {"81559 MiB"}
    assert {gpu.findtext("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen") for gpu in root.iter("gpu")} == {"5"}


def test_topology_and_links(smi: Path, node) -> None:
    matrix = shown(node.path, smi, "topo", "-m").splitlines()
    assert [line.split()[:3] for line in matrix[1:3]] == [["GPU0", "X", "NV18"], ["GPU1", "NV18", "X"]]
    links = shown(node.path, smi, "nvlink", "-s")
    assert len(re.findall(r"Link \d+: 26\.562 GB/s", links)) == 36


def test_an_xid_and_a_lost_gpu(smi: Path, node) -> None:
    with node.opened() as machine:
        machine.add_fault(parse_fault_text("gpu=1,xid=79,lost", 2))
    with pytest.raises(AssertionError, match=r"GPU is lost\.\s+Reboot the system to recover this GPU"):
        shown(node.path, smi)
    listed = shown(node.path, smi, "-i", "0", "--query-gpu=index", "--format=csv,noheader")
    assert listed == "0\n"


def test_health_that_was_set(smi: Path, node) -> None:
    with node.opened() as machine:
        for reading, value in (("ecc_uncorrected_volatile", 3), ("pcie_replays", 7), ("throttle_reasons", 0x48)):
            machine.add_fault(parse_fault_text(f"gpu=0,set={reading},value={value}", 2))
    reasons = "clocks_throttle_reasons.hw_thermal_slowdown,clocks_throttle_reasons.active"
    fields = f"ecc.errors.uncorrected.volatile.dram,{reasons}"
    rows = shown(node.path, smi, f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    assert [row.split(", ")[:2] for row in rows] == [["3", "Active"], ["0", "Not Active"]]
    assert rows[0].split(", ")[2].endswith("48")
    assert re.findall(r"Replays Since Reset\s+: (\d+)", shown(node.path, smi, "-q")) == ["7", "0"]


def test_mig_devices(smi: Path, mig_node) -> None:
    shown_instances = mig_node.show()["gpus"][1]["mig"]["instances"]
    uuids = [part["uuid"] for one in shown_instances for part in one["compute"]]
    listed = shown(mig_node.path, smi, "-L")
    assert re.findall(r"MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", listed) == list(
        zip(["3g.40gb", "1c.2g.20gb", "1c.2g.20gb", "1g.10gb"], uuids, strict=True)
    )
    rows = re.findall(r"\|\s+1\s+(\d+)\s+(\d+)\s+(\d+)\s+\|", shown(mig_node.path, smi))
    assert rows == [("1", "0", "0"), ("5", "0", "1"), ("5", "1", "2"), ("13", "0", "3")]


def test_mig_views_and_changes(smi: Path, mig_node) -> None:
    profiles = shown(mig_node.path, smi, "mig", "-lgip", "-i", "1")
    assert re.findall(r"MIG (\S+)\s+(\d+)\s+(\d)/(\d)\s", profiles) == [
        ("1g.10gb", "19", "0", "7"),
        ("1g.10gb+me", "20", "0", "1"),
        ("1g.20gb", "15", "0", "4"),
        ("2g.20gb", "14", "0", "3"),
        ("3g.40gb", "9", "0", "2"),
        ("4g.40gb", "5", "0", "1"),
        ("7g.80gb", "0", "0", "1"),
    ]
    shown(mig_node.path, smi, "mig", "-dci", "-i", "1")
    shown(mig_node.path, smi, "mig", "-dgi", "-i", "1")
    assert mig_node.show()["gpus"][1]["mig"]["instances"] == []
    created = shown(mig_node.path, smi, "mig", "-cgi", "4g.40gb,9", "-C", "-i", "1")
    assert created.count("Successfully created GPU instance") == 2
    found = [
        (one["profile"], one["start"], len(one["compute"])) for one in mig_node.show()["gpus"][1]["mig"]["instances"]
    ]
    assert found == [("4g.40gb", 0, 1), ("3g.40gb", 4, 1)]
    with pytest.raises(AssertionError, match="Insufficient Resources"):
        shown(mig_node.path, smi, "mig", "-cgi", "19", "-i", "1")
