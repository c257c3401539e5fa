"""Each fault on the real daemon: what every output says of it, and how it ends. The rows become docs/health.md."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.daemon_process import wait_until
from tests.integration.health.conftest import Node, put_on_bus
from tests.integration.health.scenarios import SCENARIOS, Scenario

DOCUMENT = Path(__file__).parents[3] / "docs" / "health.md"
BEGIN, END = "<!-- matrix: made by tests/integration/health -->\n", "<!-- end of the matrix -->\n"
HEAD = "| fault | published | condition | event | metric | recovery |\n|---|---|---|---|---|---|\n"
ROWS: dict[str, str] = {}


def do(node: Node, scenario: Scenario, step: str) -> None:
    bus = node.bus_id(scenario.gpu)
    device = node.root / "sys/bus/pci/devices" / bus
    if step == "wait":
        return
    if step == "clear":
        node.clear()
    elif step == "settled":
        wanted = {"uuid": node.gpu(scenario.gpu).uuid, "type": "corrected", "scope": "volatile"}
        wait_until(lambda: node.metric("gpu_ecc_errors_total", **wanted) == 4, "the count to be read")
    elif step == "deny":
        (node.root / f"dev/nvidia{scenario.gpu}").unlink()
    elif step == "permit":
        (node.root / f"dev/nvidia{scenario.gpu}").touch()
    elif step == "off bus":
        for entry in device.iterdir():
            entry.unlink()
        device.rmdir()
    elif step == "on bus":
        put_on_bus(node.root, bus)
    elif step.startswith("log "):
        node.log(step.removeprefix("log ").replace("BUS", bus.rpartition(".")[0]), seconds=time.monotonic())
    else:
        node.fault(f"gpu={scenario.gpu},{step}")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.fault)
def test_a_fault_is_published_told_counted_and_ends(node: Node, scenario: Scenario) -> None:
    node.clear()  # what a test that failed has left
    before = node.gpu(scenario.gpu)
    told = len(node.events(before.uuid))
    for step in scenario.steps:
        do(node, scenario, step)
    name, labels, value = scenario.metric
    try:
        wait_until(
            lambda: (
                node.state(scenario.gpu) is scenario.state
                and (not scenario.code or scenario.code in node.codes(scenario.gpu))
            ),
            f"{scenario.state} and {scenario.code}",
        )
        wait_until(lambda: scenario.event in node.events(before.uuid)[told:], f"the event {scenario.event}")
        wait_until(lambda: node.metric(name, uuid=before.uuid, **labels) == value, f"{name}{labels} of {value:g}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {node.state(scenario.gpu)} {node.gpu(scenario.gpu).conditions}") from None
    ill = node.gpu(scenario.gpu)
    assert ill.capacity.vram.bytes == before.capacity.vram.bytes
    assert ill.allocatable is (scenario.state.value in {"healthy", "degraded"})
    others = [gpu.index for gpu in _others(node, scenario) if not gpu.allocatable]
    assert others == []
    for step in scenario.repair:
        do(node, scenario, step)
    wait_until(lambda: node.state(scenario.gpu) is scenario.after, f"{scenario.after} again")
    if scenario.after.value == "healthy":
        wait_until(lambda: not node.codes(scenario.gpu), "the conditions to go")
        _SPOILT.discard(scenario.gpu)
    else:
        _SPOILT.add(scenario.gpu)
    shown = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    series = f"{name}{{{shown}}}" if shown else name
    ROWS[scenario.fault] = (
        f"| {scenario.fault} | {scenario.state.value} | {scenario.code or '-'} | {scenario.event} |"
        f" `gpuhv_{series}` {value:g} | {scenario.recovery} |\n"
    )


_SPOILT: set[int] = set()  # cards that stay ill


def _others(node: Node, scenario: Scenario):
    from tests.integration.node import calls

    return [gpu for gpu in calls.list_gpus(node.daemon) if gpu.index not in {scenario.gpu, *_SPOILT}]


def test_the_matrix_in_the_documents_is_the_one_that_was_seen() -> None:
    """Set UPDATE_GOLDEN=1 to write it anew, and read the difference."""
    if len(ROWS) < len(SCENARIOS):
        pytest.skip("only part of the scenarios has run")
    matrix = HEAD + "".join(ROWS[scenario.fault] for scenario in SCENARIOS)
    text = DOCUMENT.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    written, end, tail = rest.partition(END)
    assert begin
    assert end
    if os.environ.get("UPDATE_GOLDEN"):
        DOCUMENT.write_text(head + BEGIN + matrix + END + tail, encoding="utf-8")
        written = matrix
    assert written == matrix
