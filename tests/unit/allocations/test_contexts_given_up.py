"""What stands for the contexts of a process counts until they are measured, and then no more, whatever it does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.allocations import measured_overhead
from tests.unit.allocations.builders import Node
from tests.unit.allocations.test_rounds import MAPPER, MIB, Workload, end
from tests.unit.limits.tenant import own_namespace

STAND_IN = 300 * MIB
MEASURED = 420 * MIB


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(measured_overhead, "LONGEST_READING_SECONDS", 0.0)
    return Node(tmp_path)


@pytest.fixture
def workload(node: Node) -> Iterator[Workload]:
    """A process with a context that holds 64 MiB besides."""
    with subprocess.Popen(
        [sys.executable, "-ISc", MAPPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        made = Workload(node, node.start(), process)
        made.tenant.account(0, held=64 * MIB + STAND_IN, context=STAND_IN)
        yield made
        end(process)


def step(workload: Workload, driver_bytes: int = 64 * MIB + MEASURED) -> tuple[int, int]:
    """The total and the overhead in the files after a round."""
    workload.step(workload.on_gpu(driver_bytes))
    return workload.tenant.total() // MIB, workload.shm.control(0).overhead_bytes // MIB  # type: ignore[attr-defined]


def test_a_measured_context_counts_once(workload: Workload) -> None:
    workload.tenant.open_contexts(0)
    assert step(workload) == (364, 0)  # the first sight of it says nothing
    assert step(workload) == (64, 420)
    assert step(workload) == (64, 420)
    assert workload.allocations.usages[0].devices[0].reserved_bytes.value == 64 * MIB


def test_one_that_was_made_during_the_reading_is_waited_for(workload: Workload) -> None:
    step(workload)
    workload.tenant.open_contexts(0)
    assert step(workload, 64 * MIB + 100 * MIB) == (364, 100)
    assert step(workload) == (64, 420)


def test_one_that_is_changed_just_now_is_left_alone(workload: Workload) -> None:
    word = workload.tenant.open_contexts(0)
    step(workload)
    workload.tenant.put(workload.tenant.contexts_place(0), word | 1)
    assert step(workload) == (364, 420)


def test_a_process_whose_library_has_no_word_gives_up_by_itself(workload: Workload) -> None:
    for _ in range(3):
        assert step(workload)[0] == 364
    assert workload.shm.control(0).overhead_at_ns > 0  # type: ignore[attr-defined]


def test_what_an_owner_before_has_left_counts_for_nothing(workload: Workload) -> None:
    word = workload.tenant.open_contexts(0)
    workload.tenant.put(workload.tenant.contexts_place(0), (word ^ 1 << 42) | 64 << 5)  # of another sequence
    for _ in range(3):
        assert step(workload)[0] == 364


def test_another_process_that_has_ended_does_not_delay_it(workload: Workload) -> None:
    """What it held may be this one's from now on, which then is measured at the next reading."""
    workload.tenant.open_contexts(0)
    for _ in range(2):
        step(workload)
    workload.tenant.attach(1, pid=2**22 - 1, start=5, namespace=own_namespace(), held=600 * MIB)
    step(workload)  # the slot is returned
    assert step(workload, (64 + 600) * MIB + MEASURED) == (64, 1020)


def test_a_process_that_takes_it_over_is_not_given_up_twice(workload: Workload) -> None:
    workload.tenant.open_contexts(0)
    for _ in range(2):
        step(workload)
    workload.tenant.open_contexts(0)
    workload.tenant.account(0, held=64 * MIB)
    workload.tenant.set_total(64 * MIB)
    for _ in range(2):
        assert step(workload) == (64, 420)
