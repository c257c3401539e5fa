"""The daily inspection of the article's 5.3, and the page that shows it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from hypervisor.doctor.diagnose import diagnose_node
from hypervisor.doctor.inspection import InspectionError, Kept, counters_of, inspect, read_last, write_last
from hypervisor.doctor.report_html import as_html, duration
from hypervisor.doctor.root import Node
from hypervisor.doctor.scheduling_events import from_object, top_reasons
from tests.unit.doctor import driver_cases
from tests.unit.doctor.machines import GIB, UUIDS, event, healthy

METRICS = f"""# TYPE gpuhv_gpu_ecc_errors_total counter
gpuhv_gpu_ecc_errors_total{{uuid="{UUIDS[0]}",type="uncorrected",scope="aggregate"}} 7.0
gpuhv_gpu_ecc_errors_total{{uuid="{UUIDS[0]}",type="corrected",scope="volatile"}} 3.0
gpuhv_gpu_retired_pages{{uuid="{UUIDS[1]}",cause="double_bit"}} 2.0
gpuhv_gpu_temperature_celsius{{uuid="{UUIDS[0]}"}} 40.0
"""
NOW = 1_800_000_000.0
UNCORRECTED, CORRECTED = "ecc_errors aggregate uncorrected", "ecc_errors volatile corrected"


class Tags(HTMLParser):
    """Fails on a tag that is closed and was not opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_counters_are_read_from_the_metrics() -> None:
    assert counters_of(METRICS) == {
        UUIDS[0]: {UNCORRECTED: 7.0, CORRECTED: 3.0},
        UUIDS[1]: {"retired_pages double_bit": 2.0},
    }


def test_growth_since_the_last_inspection(tmp_path: Path) -> None:
    last = Kept(taken_at=NOW - 86_400, counters={UUIDS[0]: {UNCORRECTED: 5.0, CORRECTED: 10.0}})
    found = inspect(healthy(tmp_path).subject(), counters_of(METRICS), counters_absent="", last=last)
    grown = {(each.uuid, each.name): each.increase for each in found.growth}
    assert grown[UUIDS[0], UNCORRECTED] == 2.0
    assert grown[UUIDS[0], CORRECTED] == 3.0  # volatile counters begin anew with the driver
    assert grown[UUIDS[1], "retired_pages double_bit"] is None
    assert found.since == NOW - 86_400


def test_uptime_deviation_and_reasons(tmp_path: Path) -> None:
    machine = healthy(tmp_path).gpu(1, memory_used_bytes=30 * GIB).told(started_at=NOW - 3600)
    socket = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"
    machine.index.nodes[socket] = Node(kind="socket", modified_at=NOW - 7200)
    machine.add("events", event("FailedScheduling", "0/2 nodes are available: 2 GPU not fit.", count=4))
    found = inspect(machine.subject(), {}, counters_absent="no daemon", last=None)
    assert ("the daemon", 3600.0) in found.up
    assert ("device plugin nvidia-gpu.sock", 7200.0) in found.up
    assert "30.0 GiB by NVML and 0.0 GiB by its parts" in found.deviations[0]
    assert found.reasons == (("GPU not fit", 4),)


@pytest.mark.parametrize(
    ("message", "reasons"),
    [
        ("0/5 nodes are available: 5 Insufficient nvidia.com/gpu.", {"Insufficient nvidia.com/gpu"}),
        (
            (
                "0/6 nodes are available: 1 Insufficient tensor-fusion.ai/index_3, 2 node(s) had untolerated taint "
                "{nvidia.com/gpu: true}, 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/6 nodes "
                "are available: 6 Preemption is not helpful for scheduling."
            ),
            {
                "Insufficient tensor-fusion.ai/index_3",
                "node(s) had untolerated taint {nvidia.com/gpu: true}",
                "node(s) didn't match Pod's node affinity/selector",
            },
        ),
        ("0/1 nodes are available: 1 Insufficient a.b/c, d.", {"Insufficient a.b/c, d"}),
        (
            '0/1 nodes are available: persistentvolumeclaim "data" not found.',
            {'0/1 nodes are available: persistentvolumeclaim "data" not found.'},
        ),
    ],
)
def test_reasons_keep_the_names_in_them(message: str, reasons: set[str]) -> None:
    told = top_reasons([from_object(event("FailedScheduling", message, count=3))])
    assert dict(told) == dict.fromkeys(reasons, 3)


def test_at_most_ten_reasons(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.add("events", *(event("FailedScheduling", f"reason {number}") for number in range(15)))
    assert len(inspect(machine.subject(), {}, counters_absent="", last=None).reasons) == 10


def test_state_of_the_last_inspection(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert read_last(path) is None
    write_last(path, Kept(taken_at=NOW, counters={"GPU-1": {"x": 1.0}}))
    assert read_last(path) == Kept(taken_at=NOW, counters={"GPU-1": {"x": 1.0}})
    path.write_text("[]")
    with pytest.raises(InspectionError, match="remove it"):
        read_last(path)


def test_the_page_is_whole_and_escaped(tmp_path: Path) -> None:
    machine = healthy(tmp_path).log("NVRM: Xid (PCI:0000:18:00): 109, <script>alert(1)</script>")
    subject = machine.subject()
    inspection = inspect(subject, counters_of(METRICS), counters_absent="", last=None)
    page = as_html(diagnose_node(subject), inspection)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "the first broken link is driver.xid" in page
    assert UUIDS[1] in page


def test_the_page_without_counters_says_why(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    driver_cases._unloaded(machine)
    subject = machine.subject()
    page = as_html(diagnose_node(subject), inspect(subject, {}, counters_absent="no daemon there", last=None))
    assert "Not known: no daemon there." in page


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (65, "1 min"), (3900, "1 h 5 min"), (90_000, "1 d 1 h"), (-3, "0 s")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
