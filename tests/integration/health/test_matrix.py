"""Each fault on the real daemon: what every output says of it, and how it ends. The rows become docs/health.md."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hypervisor.model import HealthCode, HealthState
from tests.daemon_process import wait_until
from tests.integration.health.conftest import STATES, Node, put_on_bus
from tests.integration.health.scenarios import SCENARIOS, Scenario, matrix
from tests.integration.node import calls

DOCUMENT = Path(__file__).parents[3] / "docs" / "health.md"
BEGIN, END = "<!-- matrix: made by tests/integration/health -->\n", "<!-- end of the matrix -->\n"
WORKS = {HealthState.HEALTHY, HealthState.DEGRADED}


@dataclass
class Waves:
    """The scenarios that have happened: each on a card of its own, all of a wave at once."""

    node: Node
    begun: set[int] = field(default_factory=set)
    before: dict[str, Any] = field(default_factory=dict)  # the card before, by fault
    controls: dict[int, set[str]] = field(default_factory=dict)  # UUIDs of the others, by wave

    def card(self, scenario: Scenario) -> int:
        return [each for each in SCENARIOS if each.wave == scenario.wave].index(scenario)

    def begin(self, wave: int) -> None:
        if wave in self.begun:
            return
        self.begun.add(wave)
        self.node.clear()
        gpus = {gpu.index: gpu for gpu in calls.list_gpus(self.node.daemon)}
        mine = [scenario for scenario in SCENARIOS if scenario.wave == wave]
        self.before.update({scenario.fault: gpus[self.card(scenario)] for scenario in mine})
        mentioned = {gpu.uuid for gpu in self.before.values()}
        self.controls[wave] = {gpu.uuid for gpu in gpus.values() if gpu.uuid not in mentioned}
        for scenario in [each for each in mine if not each.late]:
            for step in scenario.steps:
                self.do(scenario, step)

    def do(self, scenario: Scenario, step: str) -> None:
        node, index, uuid = self.node, self.card(scenario), self.before[scenario.fault].uuid
        bus = node.bus_id(uuid)
        device = node.root / "sys/bus/pci/devices" / bus
        if step == "wait":
            return
        if step == "clear":
            node.clear(index)
        elif step == "settled":
            wanted = {"uuid": uuid, "type": "corrected", "scope": "volatile"}
            wait_until(lambda: node.metric("gpu_ecc_errors_total", **wanted) == 4, "the count to be read")
        elif step == "deny":
            (node.root / f"dev/nvidia{index}").unlink()
        elif step == "permit":
            (node.root / f"dev/nvidia{index}").touch()
        elif step == "off bus":
            for entry in device.iterdir():
                entry.unlink()
            device.rmdir()
        elif step == "on bus":
            put_on_bus(node.root, bus)
        elif step.startswith("log "):
            node.log(step.removeprefix("log ").replace("BUS", bus.rpartition(".")[0]), seconds=time.monotonic())
        else:
            node.fault(f"gpu={index},{step}")


@pytest.fixture(scope="module")
def waves(node: Node) -> Waves:
    return Waves(node)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS, key=lambda each: each.wave), ids=lambda scenario: scenario.fault)
def test_a_fault_is_published_told_counted_and_ends(waves: Waves, scenario: Scenario) -> None:
    """HAMi 1704 is one of them: unknown errors of NVML after the rules for devices were reloaded."""
    node = waves.node
    waves.begin(scenario.wave)
    before = waves.before[scenario.fault]
    for step in scenario.steps if scenario.late else ():
        waves.do(scenario, step)
    name, labels, value = scenario.metric
    try:
        wait_until(
            lambda: (
                node.state(before.uuid) is scenario.state
                and (not scenario.code or scenario.code in node.codes(before.uuid))
            ),
            f"{scenario.state} and {scenario.code}",
        )
        if scenario.event:
            wait_until(lambda: scenario.event in node.events(before.uuid), f"the event {scenario.event}")
        wait_until(lambda: node.metric(name, uuid=before.uuid, **labels) == value, f"{name}{labels} of {value:g}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {node.state(before.uuid)} {node.gpu(before.uuid).conditions}") from None
    ill = node.gpu(before.uuid)
    assert ill.capacity.vram.bytes == before.capacity.vram.bytes
    works = scenario.state in WORKS if scenario.allocatable is None else scenario.allocatable
    assert ill.allocatable is works
    check, verdict = scenario.doctor
    assert node.verdict(check, before.uuid) == verdict
    assert waves.controls[scenario.wave]
    wait_until(lambda: others_are_well(waves, scenario.wave), "the others to be as before")
    for step in scenario.repair:
        waves.do(scenario, step)
    wait_until(lambda: node.state(before.uuid) is scenario.after, f"{scenario.after} again")
    if scenario.after is HealthState.HEALTHY:
        wait_until(lambda: not node.codes(before.uuid), "the conditions to go")
        wait_until(lambda: node.verdict(check, before.uuid) == "pass", "the doctor to be silent")


def others_are_well(waves: Waves, wave: int) -> bool:
    """Whether those without a fault are granted. Where the readers have no CPU for seconds, a hang may cost them the
    knowledge of their use for as long; anything else that is told of them fails."""
    well = [gpu for gpu in calls.list_gpus(waves.node.daemon) if gpu.uuid in waves.controls[wave]]
    told = [gpu.conditions for gpu in well if {each.type for each in gpu.conditions} - {HealthCode.USE_UNKNOWN.value}]
    assert told == []
    assert [gpu.health for gpu in well if STATES[gpu.health] is not HealthState.HEALTHY] == []
    return all(gpu.allocatable for gpu in well)


def test_the_matrix_in_the_documents_is_the_one_that_is_tested() -> None:
    """Set UPDATE_GOLDEN=1 to write it anew, and read the difference."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    written, end, tail = rest.partition(END)
    assert begin
    assert end
    if os.environ.get("UPDATE_GOLDEN"):
        DOCUMENT.write_text(head + BEGIN + matrix() + END + tail, encoding="utf-8")
        written = matrix()
    assert written == matrix()
