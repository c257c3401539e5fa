"""MIG instances in the machine file: memory of their own, and time beside each other. On the virtual clock, exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypervisor.simulation._machine import ffi, lib

MILLISECOND = 1_000_000
GIB = 1 << 30
NODE = """\
version: 1
driver: {version: "580.65.06", cuda: 13000}
clock: {mode: virtual}
gpus: [{count: 1, profile: h100-sxm-80gb, context: 0Mi}]
mig: {gpu0: {mode: on, instances: [3g.40gb, {profile: 2g.20gb, compute: [1, 1]}]}}
"""
LARGE, FIRST_PART, SECOND_PART = 0, 1, 2  # rows of the compute instances


@dataclass(frozen=True)
class Node:
    """A machine, and clients on it that need no program of their own."""

    machine: Any

    def client(self, compute: int) -> int:
        """A process that runs on a compute instance."""
        row = ffi.new("uint32_t *")
        assert lib.sim_process_register(self.machine, row) == lib.SIM_OK
        assert lib.sim_process_use_instance(self.machine, row[0], 0, compute) == lib.SIM_OK
        return int(row[0])

    def launch(self, process: int, milliseconds: int, share_ppm: int = 1_000_000) -> int:
        """Its stream, with one kernel of so many milliseconds on it."""
        stream, item = ffi.new("uint32_t *"), ffi.new("struct sim_item *")
        assert lib.sim_stream_open(self.machine, 0, process, 0, 0, stream) == lib.SIM_OK
        item.kind = lib.SIM_ITEM_KERNEL
        item.demand_ppm = share_ppm
        item.work = milliseconds * MILLISECOND * lib.SIM_WORK_SCALE
        assert lib.sim_stream_push(self.machine, stream[0], item) == lib.SIM_OK
        return int(stream[0])

    def step(self, milliseconds: float) -> None:
        lib.sim_machine_step(self.machine, round(milliseconds * MILLISECOND))

    def idle(self, *streams: int) -> list[bool]:
        return [bool(lib.sim_stream_idle(self.machine, stream)) for stream in streams]

    def instances(self) -> list[Any]:
        return [row for row in self.machine.gpu[0].instances if row.state]


@contextmanager
def attached(path: str) -> Iterator[Node]:
    out = ffi.new("struct sim_machine **")
    assert lib.sim_machine_attach(path.encode(), out) == lib.SIM_OK
    try:
        yield Node(out[0])
        text = ffi.new("char[]", 4096)
        assert lib.sim_machine_check(out[0], text, 4096) == 0, ffi.string(text)
    finally:
        for row in range(lib.SIM_MAX_PROCESSES):
            if out[0].processes[row].state:
                lib.sim_process_unregister(out[0], row)
        lib.sim_machine_detach(out[0])


@pytest.fixture
def node(simulate: Callable[[str], Any]) -> Iterator[Node]:
    with attached(str(simulate(NODE).path)) as found:
        yield found


def test_instances_compute_beside_each_other(node: Node) -> None:
    streams = [node.launch(node.client(compute), 10) for compute in (LARGE, FIRST_PART, SECOND_PART)]
    node.step(9.9)
    assert node.idle(*streams) == [False] * 3
    node.step(0.2)
    assert node.idle(*streams) == [True] * 3
    assert node.machine.gpu[0].busy_ns == 10 * MILLISECOND
    assert [row.busy_ns for row in node.instances()] == [10 * MILLISECOND] * 2
    shares = [row.sm_ns / (10 * MILLISECOND) for row in node.instances()]
    assert shares == pytest.approx([1.0, 1.0], rel=0.001)
    assert node.machine.gpu[0].sm_ns / (10 * MILLISECOND) == pytest.approx(92 / 132, rel=0.001)


def test_processes_of_one_instance_take_turns(node: Node) -> None:
    other = node.launch(node.client(LARGE), 10)
    streams = [node.launch(node.client(FIRST_PART), 10) for _ in range(2)]
    node.step(10.1)
    assert node.idle(other, *streams) == [True, False, False]
    node.step(9.8)
    assert False in node.idle(*streams)
    node.step(0.2)
    assert node.idle(*streams) == [True, True]


def test_kernels_of_one_process_share_the_instance(node: Node) -> None:
    """Two kernels that want half of an instance each run at full speed together; three do not."""
    process = node.client(LARGE)
    half = 1_000_000 * 60 // 132 // 2
    streams = [node.launch(process, 10, half) for _ in range(2)]
    node.step(10.1)
    assert node.idle(*streams) == [True, True]
    streams = [node.launch(process, 10, half) for _ in range(3)]
    node.step(14.9)
    assert node.idle(*streams) == [False] * 3
    node.step(0.2)
    assert node.idle(*streams) == [True] * 3


def test_memory_is_the_instances_own(node: Node) -> None:
    large, first, second = (node.client(compute) for compute in (LARGE, FIRST_PART, SECOND_PART))
    total = 20096 << 20
    assert lib.sim_process_free_bytes(node.machine, 0, first) == total
    assert lib.sim_charge(node.machine, 0, first, total - GIB) == lib.SIM_OK
    assert lib.sim_charge(node.machine, 0, second, GIB + 512) == lib.SIM_NO_MEMORY  # the two parts share the memory
    assert lib.sim_charge(node.machine, 0, second, GIB) == lib.SIM_OK
    assert lib.sim_process_free_bytes(node.machine, 0, second) == 0
    assert lib.sim_process_free_bytes(node.machine, 0, large) == 40448 << 20
    assert lib.sim_charge(node.machine, 0, large, 40 * GIB) == lib.SIM_NO_MEMORY
    assert [row.used_bytes for row in node.instances()] == [0, total]
    lib.sim_process_unregister(node.machine, first)
    assert lib.sim_process_free_bytes(node.machine, 0, second) == total - GIB
    assert [row.used_bytes for row in node.instances()] == [0, GIB]


def test_an_instance_in_use_is_not_destroyed(node: Node) -> None:
    process = node.client(SECOND_PART)
    assert lib.sim_charge(node.machine, 0, process, GIB) == lib.SIM_OK
    assert lib.sim_mig_destroy_compute(node.machine, 0, SECOND_PART) == lib.SIM_IN_USE
    assert lib.sim_mig_set_mode(node.machine, 0, 0) == lib.SIM_IN_USE
    assert (node.machine.gpu[0].info.mig_mode, node.machine.gpu[0].info.mig_pending_mode) == (1, 0)
    assert lib.sim_mig_set_mode(node.machine, 0, 1) == lib.SIM_OK
    lib.sim_process_unregister(node.machine, process)
    assert lib.sim_mig_destroy_compute(node.machine, 0, SECOND_PART) == lib.SIM_OK


def test_a_reset_leaves_no_debts(node: Node) -> None:
    """Who still holds memory of an instance that a reset ended gives it back to the GPU."""
    process = node.client(LARGE)
    assert lib.sim_charge(node.machine, 0, process, GIB) == lib.SIM_OK
    lib.sim_gpu_reset(node.machine, 0)
    assert node.instances() == []
    row = ffi.new("uint32_t *")
    assert lib.sim_mig_create(node.machine, 0, 4, lib.SIM_NONE, row) == lib.SIM_OK
    lib.sim_refund(node.machine, 0, process, GIB)
    assert [instance.used_bytes for instance in node.instances()] == [0]
    assert node.machine.gpu[0].used_bytes == 0
