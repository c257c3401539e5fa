"""The small parts: codes, conditions, frames, finding the library, and who imports what."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import hypervisor
from hypervisor.gpu import codes, failures, library, wire
from hypervisor.gpu.codes import ErrorClass
from hypervisor.gpu.conditions import ConditionBook, Finding
from hypervisor.gpu.fleet import Fleet, Hole
from hypervisor.gpu.wire import Answer
from hypervisor.model import HealthCode

MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 fd:00 12 /opt/sim/libnvidia-ml.so.1
7f1000000000-7f1000001000 rw-s 00000000 00:01 99 /dev/shm/a machine (deleted)
7f2000000000-7f2000001000 rw-s 00001000 00:01 99 /dev/shm/second part
7f3000000000-7f3000001000 rw-s 00000000 00:05 98 /dev/nvidiactl
7f4000000000-7f4000001000 rw-p 00000000 00:00 0
7f5000000000-7f5000001000 r--s 00000000 00:01 7 /tmp/read only
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, ErrorClass.GOOD),
        (3, ErrorClass.ABSENT),
        (13, ErrorClass.ABSENT),
        (10, ErrorClass.TRANSIENT),
        (15, ErrorClass.DEAD),
        (16, ErrorClass.DEAD),
        (8, ErrorClass.UNUSABLE),
        (9, ErrorClass.LIBRARY),
        (4, ErrorClass.PERMISSION),
        (999, ErrorClass.VAGUE),
        (12345, ErrorClass.VAGUE),
    ],
)
def test_classes_of_codes(code: int, expected: ErrorClass) -> None:
    assert codes.classify(code) is expected
    assert str(code) in codes.words(code)


def test_a_condition_keeps_its_time_and_its_message_while_the_topic_stays() -> None:
    book = ConditionBook()
    rejected = HealthCode.READING_REJECTED
    (first,) = book.conditions("gpu", [Finding(rejected, "temperature of 500", "temperature")], wall_time=1.0)
    (second,) = book.conditions("gpu", [Finding(rejected, "temperature of 501", "temperature")], wall_time=2.0)
    assert second is first
    (third,) = book.conditions("gpu", [Finding(rejected, "power of 0", "power")], wall_time=3.0)
    assert (third.message, third.last_transition_at) == ("power of 0", 1.0)
    assert book.conditions("gpu", [], wall_time=4.0) == ()
    (again,) = book.conditions("gpu", [Finding(rejected, "power of 0", "power")], wall_time=5.0)
    assert again.last_transition_at == 5.0


def test_frames_carry_every_message() -> None:
    for message in (
        wire.Attach(bus_id="0000:18:00.0"),
        wire.Read("0000:18:00.0"),
        wire.Count(),
        wire.Counted([wire.Call("nvmlInit_v2", 0, 1, 0.5)]),
        wire.Failed(9, "initialise"),
        wire.Attached(15),
    ):
        data = wire.frame(message)
        assert wire.LENGTH.unpack(data[:4])[0] == len(data) - 4
        decoded = msgspec.msgpack.decode(data[4:], type=wire.Request | wire.Reply)
        assert decoded == message


def test_library_and_mappings_are_found_in_the_map() -> None:
    assert library.loaded_path(MAPS) == "/opt/sim/libnvidia-ml.so.1"
    assert library.loaded_path("") == ""
    assert library.shared_mappings(MAPS) == [0x7F1000000000, 0x7F5000000000]


def test_the_path_that_was_asked_for_is_the_only_candidate(tmp_path: Path) -> None:
    assert library.candidates({"TF_NVML_LIB_PATH": str(tmp_path)}) == (str(tmp_path / library.SONAME),)
    assert library.candidates({"TF_NVML_LIB_PATH": "/x/y.so"}) == ("/x/y.so",)
    assert library.candidates({})[0] == library.SONAME


@pytest.mark.parametrize(
    ("failed", "environment", "code", "words"),
    [
        (wire.Failed(12, "load", "x: not there"), {}, HealthCode.NVML_NOT_FOUND, ("x: not there", "TF_NVML_LIB_PATH")),
        (wire.Failed(9, "initialise", "/l"), {}, HealthCode.DRIVER_NOT_LOADED, ("modprobe nvidia",)),
        (wire.Failed(9, "initialise"), {"SIM_MACHINE": "/m"}, HealthCode.DRIVER_NOT_LOADED, ("/m", "sim create")),
        (wire.Failed(18, "initialise", "/l"), {}, HealthCode.NVML_FAILED, ("different driver versions", "restart")),
        (wire.Failed(28, "initialise"), {}, HealthCode.NO_GPUS, ("lspci",)),
        (wire.Failed(4, "initialise"), {}, HealthCode.NVML_FAILED, ("/dev/nvidiactl",)),
        (wire.Failed(777, "initialise"), {}, HealthCode.NVML_FAILED, ("777",)),
    ],
)
def test_failures_say_what_to_do(
    failed: wire.Failed, environment: dict[str, str], code: HealthCode, words: tuple[str, ...]
) -> None:
    finding = failures.finding_of(failed, environment)
    assert finding.code is code
    assert "\n" not in finding.message
    for word in words:
        assert word in finding.message


def test_holes_are_told_by_index() -> None:
    assert failures.of_holes({}) == []
    (finding,) = failures.of_holes({3: Hole(8, 0.0)})
    assert "index 3" in finding.message
    assert "power" in finding.message


def test_a_slot_is_left_out_after_two_strikes_and_longer_each_time() -> None:
    fleet = Fleet()
    fleet.on_strike("a", now=0.0)
    assert not fleet.quarantined("a", now=0.0)
    fleet.on_strike("a", now=0.0)
    assert fleet.quarantined("a", now=29.0)
    assert not fleet.quarantined("a", now=31.0)
    fleet.on_strike("a", now=31.0)
    assert fleet.quarantined("a", now=31.0 + 59.0)
    assert not fleet.quarantined("b", now=0.0)


def test_an_index_that_hangs_before_its_card_is_known_is_a_hole() -> None:
    fleet = Fleet()
    for _ in range(2):
        fleet.on_strike("index:1", now=0.0)
    assert fleet.plan(3, now=1.0) == [wire.Attach(index=0), wire.Attach(index=2)]
    assert fleet.holes[1].code == codes.TIMEOUT
    assert fleet.attaches_due(now=1.0) == []
    assert fleet.attaches_due(now=31.0) == [wire.Attach(index=1)]


def test_cards_that_must_not_be_touched_are_not_planned() -> None:
    fleet = Fleet()
    for index in range(3):
        facts = device_facts(f"GPU-{index}", f"0000:0{index}:00.0")
        fleet.on_attached(
            wire.Attach(index=index),
            wire.Attached(0, facts.bus_id.value or "", Answer(index), facts, Answer(False)),
            now=0.0,
        )
    # All by address while the count agrees, and by index when there are more.
    assert fleet.plan(3, now=0.0) == [wire.Attach(bus_id=f"0000:0{index}:00.0") for index in range(3)]
    assert fleet.plan(4, now=0.0) == [wire.Attach(index=index) for index in range(4)]
    card = fleet.card_of("gpu-1")
    assert card is not None
    card.detached = True
    assert fleet.plan(3, now=0.0) == [wire.Attach(bus_id="0000:00:00.0"), wire.Attach(bus_id="0000:02:00.0")]
    assert fleet.plan(None, now=0.0) == fleet.plan(3, now=0.0)


def device_facts(uuid: str, bus_id: str) -> wire.DeviceFacts:
    absent: Answer[int] = Answer(None, 3)
    return wire.DeviceFacts(
        uuid=Answer(uuid),
        minor=absent,
        bus_id=Answer(bus_id),
        pci_device_id=Answer(0x233010DE),
        name=Answer("NVIDIA H100 80GB HBM3"),
        architecture=Answer(9),
        compute_capability=Answer((9, 0)),
        cores=Answer(132 * 128),
        serial=Answer(None, 3),
        vbios_version=Answer(None, 3),
        max_sm_clock_mhz=Answer(1980),
        virtualization=Answer(0),
    )


def test_only_the_shim_imports_the_vendor_s_wrapper() -> None:
    root = Path(hypervisor.__file__).parent
    importers = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if "pynvml" in names:
                importers.add(str(file.relative_to(root)))
    neighbours = ("events", "gpm", "memory_limits", "mig", "processes", "readings", "state")
    shim = {"compute_mode", "nvml", *(f"nvml_{each}" for each in neighbours)}
    assert importers == {f"gpu/{name}.py" for name in shim}
