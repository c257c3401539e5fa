"""The watch over allocations: slots of the dead, recounts, overhead, findings, and the end of owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypervisor.allocations import Allocations, measured_overhead, rounds
from hypervisor.allocations.parts import drained
from hypervisor.allocations.processes import ProcessTable
from hypervisor.limits import MessageCode
from hypervisor.model import (
    AllocationPhase,
    AllocationUsage,
    Enforcement,
    EventType,
    Inventory,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
)
from tests.daemon_process import wait_until
from tests.unit.allocations.builders import (
    GIB,
    Node,
    device,
    inventory,
    named,
    owned_by,
    percent,
    pod,
    request,
    start_time,
    uuid_of,
)
from tests.unit.limits.tenant import Tenant, own_namespace

MIB = 2**20
JOB = named("job", request("0", compute=percent(40), vram=2 * GIB))


MAPPER = """
import mmap
file = open(input(), "r+b")
mapped = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def rounds_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a reading takes no time, so that two of them need no second between them."""
    monkeypatch.setattr(measured_overhead, "LONGEST_READING_SECONDS", 0.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A process that stands for a workload: it maps the usage file that it is told, and lives on."""
    with subprocess.Popen(
        [sys.executable, "-ISc", MAPPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


class Workload:
    """An allocation with a process attached, and readings that advance."""

    def __init__(
        self, node: Node, allocations: Allocations, process: subprocess.Popen[str], spec: object = JOB, **more: int
    ) -> None:
        self.allocations = allocations
        self.allocation, _ = allocations.allocate(spec, self.reading())  # type: ignore[arg-type]
        path = Path(self.allocation.directory) / "usage"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "mapped\n"
        self.tenant = Tenant(path)
        self.pid = process.pid
        self.tenant.attach(0, pid=self.pid, start=start_time(self.pid), namespace=own_namespace(), **more)

    sequence = 0

    def reading(self, *processes: ProcessOnGpu) -> Inventory:
        Workload.sequence += 1
        return inventory(
            device(0, processes=processes), device(1), sequence=Workload.sequence, observed_at=time.monotonic()
        )

    def step(self, *processes: ProcessOnGpu) -> AllocationUsage:
        return self.allocations.step(self.reading(*processes))[0]

    def on_gpu(self, memory: int | None, busy: float | None = None) -> ProcessOnGpu:
        return ProcessOnGpu(pid=self.pid, memory_bytes=memory, busy_ratio=busy, busy_observed_at=time.monotonic())

    @property
    def shm(self) -> object:
        return self.allocations._held[self.allocation.uid].files.shm  # type: ignore[union-attr]


def test_usages_are_what_is_accounted(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    usage = workload.step()
    (figures,) = usage.devices
    assert (figures.reserved_bytes.value, figures.denials_total.value, figures.over) == (GIB, 0, False)
    (process,) = usage.processes
    assert (process.pid, process.host_pid, process.reserved_bytes) == (sleeper.pid, sleeper.pid, (GIB,))


def test_a_dead_process_gives_its_bytes_back_exactly_once(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.tenant.attach(1, pid=os.getpid(), start=start_time(os.getpid()), namespace=own_namespace(), held=5 * MIB)
    workload.step()
    end(sleeper)
    for _ in range(3):
        usage = workload.step()
        assert usage.devices[0].reserved_bytes.value == 5 * MIB
        assert workload.tenant.total() == 5 * MIB
    assert [event.fields["after_bytes"] for event in node.events if event.reason == "LedgerHealed"] == [str(5 * MIB)]
    assert workload.allocations.statistics().slots_returned_total == 1


def test_a_process_that_died_before_its_slot_had_its_bytes_leaves_a_total_that_is_healed(
    node: Node, sleeper: subprocess.Popen[str]
) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.tenant.set_total(GIB + 100 * MIB)
    workload.step()
    assert workload.tenant.total() == GIB


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "SlotsExhausted"),
        (3, "LimiterMismatch"),
        (4, "UnknownMemoryFreed"),
        (6, "DriverTableUsed"),
        (7, "LimiterFailed"),
        (8, "LimiterRefused"),
        (9, "DeviceNodesLost"),
    ],
)
def test_what_the_limiter_says_is_told_once_a_minute(
    node: Node, sleeper: subprocess.Popen[str], code: int, reason: str
) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.step()
    for sequence in range(1, 4):
        workload.tenant.say(sequence, code, b"as it was said", pid=77)
    workload.step()
    workload.tenant.say(4, code, b"and again", pid=77)
    workload.step()
    (event,) = [event for event in node.events if event.reason == reason]
    assert event.message.endswith("says: as it was said (the last of 3)")
    assert event.fields["pid"] == "77"


def test_slots_of_a_namespace_that_can_not_be_seen_are_kept(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.tenant.attach(1, pid=5, start=5, namespace=0, held=GIB)  # a process without /proc
    usage = workload.step()
    assert [process.host_pid for process in usage.processes] == [sleeper.pid, None]
    assert usage.devices[0].reserved_bytes.value == 2 * GIB


def test_a_slot_that_names_somebody_else_counts_for_nobody(node: Node, sleeper: subprocess.Popen[str]) -> None:
    """Else a tenant could hide a stranger's memory from admission, or keep its allocation for ever."""
    workload = Workload(node, node.start(), sleeper)
    other = os.getppid()
    workload.tenant.attach(1, pid=other, start=start_time(other), namespace=own_namespace())
    stranger = ProcessOnGpu(pid=other, memory_bytes=70 * GIB, busy_ratio=None)
    usage = workload.step(workload.on_gpu(0), stranger)
    assert [process.host_pid for process in usage.processes] == [sleeper.pid]
    with pytest.raises(Refusal) as caught:
        workload.allocations.allocate(named("b", request("0", vram=11 * GIB)), workload.reading(stranger))
    assert caught.value.reason is RefusalReason.INSUFFICIENT_VRAM
    end(sleeper)
    workload.step()
    assert workload.allocations.release("job") == ()


def test_overhead_is_what_the_driver_sees_beyond_the_account(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.step(workload.on_gpu(GIB + 300 * MIB))
    usage = workload.step(workload.on_gpu(GIB + 300 * MIB))
    assert usage.devices[0].overhead_bytes.value == 300 * MIB
    assert workload.shm.control(0).overhead_bytes == 300 * MIB
    end(sleeper)
    workload.step()
    assert workload.shm.control(0).overhead_bytes == 0


def test_the_time_of_the_overhead_waits_for_every_context(node: Node, sleeper: subprocess.Popen[str]) -> None:
    """A process gives up what stands for its context when the time says that the overhead has it."""
    workload = Workload(node, node.start(), sleeper)
    workload.tenant.account(0, held=300 * MIB, context=300 * MIB)
    for _ in range(2):
        workload.step()  # the driver does not list it yet
    assert workload.shm.control(0).overhead_at_ns == 0
    workload.step(workload.on_gpu(420 * MIB))
    control = workload.shm.control(0)
    assert control.overhead_bytes == 420 * MIB
    assert control.overhead_at_ns > 0


def test_a_new_daemon_keeps_the_overhead_until_it_has_measured(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    for _ in range(2):
        workload.step(workload.on_gpu(GIB + 300 * MIB))
    workload.allocations.close()
    workload.allocations = node.start()
    workload.tenant.account(0, held=GIB + MIB)
    assert workload.step(workload.on_gpu(GIB + 301 * MIB)).devices[0].overhead_bytes.value == 300 * MIB
    assert workload.shm.control(0).overhead_bytes == 300 * MIB


def test_busy_time_of_its_processes_is_added_up(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper)
    workload.step(workload.on_gpu(0, 0.5))
    first = workload.shm.control(0)
    usage = workload.step(workload.on_gpu(0, 0.25))
    second = workload.shm.control(0)
    assert usage.devices[0].busy_ratio.value == 0.25
    window = second.measured_at_ns - first.measured_at_ns
    assert second.measured_busy_ns - first.measured_busy_ns == pytest.approx(window / 4, abs=2000)
    assert usage.enforcement is Enforcement.VERIFIED


def test_without_the_drivers_word_enforcement_is_unverified(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper)
    usage = workload.step(workload.on_gpu(None))
    assert usage.enforcement is Enforcement.UNVERIFIED
    assert usage.devices[0].overhead_bytes.absent_reason
    assert usage.devices[0].busy_ratio.absent_reason


def test_processes_that_the_driver_does_not_list_are_not_verified(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    assert workload.step().enforcement is Enforcement.VERIFIED, "it may have begun since the last reading"
    assert workload.step().enforcement is Enforcement.UNVERIFIED
    assert workload.step(workload.on_gpu(GIB, 0.5)).enforcement is Enforcement.VERIFIED


def test_refused_memory_is_told_with_its_numbers_once(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.step()
    workload.tenant.deny(0, 3)
    workload.step()
    workload.step()
    (event,) = [event for event in node.events if event.reason == "MemoryDenied"]
    assert event.kind is EventType.WARNING
    assert (event.fields["denials"], event.fields["limit_bytes"], event.fields["reserved_bytes"]) == (
        "3",
        str(2 * GIB),
        str(GIB),
    )
    assert event.regarding.uid == workload.allocation.uid


def test_a_limit_lowered_below_use_is_over_and_told_once(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=2 * GIB)
    assert not workload.step().devices[0].over
    workload.allocations.update_limits("job", (request(vram=GIB),), workload.reading(), expected=None)
    for _ in range(3):
        usage = workload.step()
    assert usage.devices[0].over
    assert usage.enforcement is not Enforcement.VIOLATED
    assert node.reasons().count("OverLimit") == 1
    workload.tenant.account(0, held=GIB)
    assert not workload.step().devices[0].over


def test_memory_that_no_limit_explains_is_a_violation(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper)
    workload.step(workload.on_gpu(10 * GIB))
    assert workload.step(workload.on_gpu(10 * GIB)).enforcement is Enforcement.VIOLATED


@pytest.mark.parametrize("tamper", ["truncate", "delete", "scribble"])
def test_a_tampered_usage_file_is_told_once_and_not_mended(
    node: Node, sleeper: subprocess.Popen[str], tamper: str
) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.step()
    path = Path(workload.allocation.directory) / "usage"
    if tamper == "truncate":
        os.truncate(path, 0)
    elif tamper == "delete":
        path.unlink()
    else:
        workload.tenant.put(0, 1)
    before = path.read_bytes() if path.exists() else None
    for _ in range(3):
        usage = workload.step()
    assert usage.tampering
    assert usage.enforcement is Enforcement.VIOLATED
    assert usage.devices[0].reserved_bytes.absent_reason == usage.tampering
    assert node.reasons().count("UsageTampered") == 1
    assert (path.read_bytes() if path.exists() else None) == before
    assert len(usage.processes) == 1
    assert workload.allocations.statistics().tampered == 1
    # The others, and the allocation itself, go on.
    workload.allocations.allocate(named("other", request("1")), workload.reading())
    workload.allocations.update_limits("job", (request(compute=percent(10)),), workload.reading(), expected=None)


def test_a_tampered_allocation_ends_with_its_last_process(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    workload.step()
    workload.tenant.close()
    os.truncate(Path(workload.allocation.directory) / "usage", 0)
    workload.step()
    assert len(workload.allocations.release("job")) == 1
    end(sleeper)
    workload.allocations.step(workload.reading())
    assert workload.allocations.all == ()


def test_an_allocation_ends_with_its_owner(node: Node, sleeper: subprocess.Popen[str]) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(owned_by(sleeper.pid), inventory(device(0)))
    allocations.step(inventory(device(0)))
    assert allocations.all == (allocation,)
    end(sleeper)
    allocations.step(inventory(device(0), sequence=2))
    assert allocations.all == ()
    assert not Path(allocation.directory).exists()
    assert list(node.records.iterdir()) == []
    assert node.reasons() == ["AllocationGranted", "AllocationEnded"]


def test_a_share_is_free_as_soon_as_its_owner_has_ended(node: Node, sleeper: subprocess.Popen[str]) -> None:
    """No round lies between: who asks next must not be refused for what is free."""
    allocations, card = node.start(), inventory(device(0))
    most = request("0", compute=percent(80), vram=8 * GIB)
    with subprocess.Popen(["sleep", "60"]) as first:
        allocations.allocate(owned_by(first.pid, "first", most), card)
        with pytest.raises(Refusal, match="of its GPU time left"):
            allocations.allocate(owned_by(sleeper.pid, "second", most), card)
        end(first)
    second, _ = allocations.allocate(owned_by(sleeper.pid, "second", most), card)
    assert allocations.all == (second,)
    end(sleeper)
    allocations.allocate(named("small", request("0", compute=percent(10))), card)
    grown = allocations.update_limits("small", (request("0", compute=percent(90)),), card, expected=None)
    assert allocations.all == (grown,)


def test_a_name_is_free_as_soon_as_its_owner_has_ended(node: Node, sleeper: subprocess.Popen[str]) -> None:
    allocations, card = node.start(), inventory(device(0))
    with subprocess.Popen(["sleep", "60"]) as first:
        allocations.allocate(owned_by(first.pid), card)
        with pytest.raises(Refusal, match="owner is"):
            allocations.allocate(owned_by(sleeper.pid), card)
        end(first)
    allocation, existed = allocations.allocate(owned_by(sleeper.pid), card)
    assert not existed
    assert allocations.all == (allocation,)


def test_a_limit_file_that_is_lost_is_not_called_the_accounting(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(named(), inventory(device(0)))
    os.truncate(Path(allocation.directory) / "shm", 0)
    allocations.step(inventory(device(0), sequence=2))
    told = node.events[-1]
    assert told.reason == "LimitFilesUnusable"
    assert "the limits of 'job'" in told.message
    assert "accounting" not in told.message


def test_it_lasts_until_its_processes_have_ended_too(node: Node, sleeper: subprocess.Popen[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        workload = Workload(node, node.start(), sleeper, spec=owned_by(owner.pid))
        workload.step()
        end(owner)
    workload.step()
    assert [allocation.phase for allocation in workload.allocations.all] == [AllocationPhase.ENDING]
    workload.allocations.close()
    workload.allocations = node.start()  # and over a restart of the daemon
    workload.step()
    assert [allocation.phase for allocation in workload.allocations.all] == [AllocationPhase.ENDING]
    end(sleeper)
    workload.allocations.step(workload.reading())
    assert workload.allocations.all == ()


def test_it_lasts_for_a_process_that_has_not_attached_yet(node: Node) -> None:
    allocations = node.start()
    with subprocess.Popen(["sleep", "60"]) as owner:
        allocation, _ = allocations.allocate(owned_by(owner.pid), inventory(device(0)))
        environment = dict(allocations.environment(allocation))
        environment.pop("LD_PRELOAD")
        with subprocess.Popen(["sleep", "60"], env=environment) as workload:
            end(owner)
            allocations.step(inventory(device(0), sequence=2))
            assert [entry.phase for entry in allocations.all] == [AllocationPhase.ENDING]
            end(workload)
    allocations.step(inventory(device(0), sequence=3))
    assert allocations.all == ()


def test_an_owner_of_another_start_time_is_another_process(node: Node, sleeper: subprocess.Popen[str]) -> None:
    allocations = node.start()
    spec = owned_by(sleeper.pid)
    reused = replace(spec, owner=replace(spec.owner, start_time_ticks=spec.owner.start_time_ticks - 1))
    allocations.allocate(reused, inventory(device(0)))
    allocations.step(inventory(device(0)))
    assert allocations.all == ()


def test_a_release_revokes_while_processes_run(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    (process,) = workload.allocations.release("job")
    assert process.host_pid == sleeper.pid
    assert workload.shm.state.revoked
    assert [allocation.phase for allocation in workload.allocations.all] == [AllocationPhase.REVOKED]
    assert workload.allocations.release("job") == (process,)  # again, without effect
    for call in (
        lambda: workload.allocations.allocate(JOB, workload.reading()),
        lambda: workload.allocations.update_limits("job", (request(vram=GIB),), workload.reading(), expected=None),
    ):
        with pytest.raises(Refusal):
            call()
    workload.allocations.close()
    workload.allocations = node.start()
    assert [allocation.phase for allocation in workload.allocations.all] == [AllocationPhase.REVOKED]
    end(sleeper)
    workload.allocations.step(workload.reading())
    assert workload.allocations.all == ()


def test_revoked_capacity_is_free_only_when_its_processes_have_ended(
    node: Node, sleeper: subprocess.Popen[str]
) -> None:
    whole = request("0", compute=percent(100), vram=80 * GIB)
    workload = Workload(node, node.start(), sleeper, spec=named("a", whole))
    workload.allocations.release("a")
    with pytest.raises(Refusal) as caught:
        workload.allocations.allocate(named("b", whole), workload.reading())
    assert caught.value.reason is RefusalReason.INSUFFICIENT_TFLOPS
    end(sleeper)
    workload.allocations.step(workload.reading())
    workload.allocations.allocate(named("b", whole), workload.reading())


def test_memory_of_our_own_processes_is_not_foreign(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    crowded = workload.reading(workload.on_gpu(2 * GIB))
    workload.allocations.allocate(named("rest", request("0", vram=78 * GIB)), crowded)


def test_memory_of_strangers_is_subtracted(node: Node) -> None:
    stranger = ProcessOnGpu(pid=os.getppid(), memory_bytes=70 * GIB, busy_ratio=None)
    with pytest.raises(Refusal) as caught:
        node.start().allocate(named("job", request("0", vram=11 * GIB)), inventory(device(0, processes=(stranger,))))
    assert caught.value.reason is RefusalReason.INSUFFICIENT_VRAM


def test_a_child_of_the_owner_on_a_gpu_without_the_limiter_is_told(node: Node) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        allocations = node.start()
        allocations.allocate(owned_by(owner.pid), inventory(device(0)))
        on_gpu = ProcessOnGpu(pid=child, memory_bytes=GIB, busy_ratio=0.5)
        for sequence in range(2, 5):
            (usage,) = allocations.step(inventory(device(0, processes=(on_gpu,)), sequence=sequence))
        assert usage.enforcement is Enforcement.VIOLATED
        assert node.reasons().count("LimiterBypassed") == 1
        os.kill(child, signal.SIGKILL)


def test_a_process_that_was_started_with_the_limits_and_has_no_library_is_told(node: Node) -> None:
    """A static program, or one whose preload was emptied: no descendant of an owner, but the environment tells.

    HAMi 663: a limit that is silently absent.
    """
    allocations = node.start()
    allocation, _ = allocations.allocate(named("job", request("0", vram=2 * GIB)), inventory(device(0)))
    variables = {"PATH": "/usr/bin:/bin", "TF_SHM_PATH": allocations.environment(allocation)["TF_SHM_PATH"]}
    with subprocess.Popen(["sleep", "60"], env=variables) as program:
        # The kernel shows a program's variables a moment after it has closed what the program does not inherit.
        wait_until(lambda: Path(f"/proc/{program.pid}/environ").read_bytes(), "its variables")
        on_gpu = ProcessOnGpu(pid=program.pid, memory_bytes=GIB, busy_ratio=0.5)
        for sequence in range(2, 5):
            (usage,) = allocations.step(inventory(device(0, processes=(on_gpu,)), sequence=sequence))
        assert usage.enforcement is Enforcement.VIOLATED
        assert usage.bypassing_pids == (program.pid,)
        (event,) = [event for event in node.events if event.reason == "LimiterBypassed"]
        assert "does not have the limiter in its memory" in event.message
        program.kill()
    (usage,) = allocations.step(inventory(device(0), sequence=5))
    assert usage.bypassing_pids == ()


def test_what_the_limiter_says_is_one_event_a_kind_and_minute(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper)
    for sequence in range(1, 5):
        workload.tenant.say(sequence, MessageCode.SLOTS_EXHAUSTED, b"no free slot")
    workload.step()
    for sequence in range(5, 50):
        workload.tenant.say(sequence, MessageCode.SLOTS_EXHAUSTED, b"no free slot")
        workload.step()
    (event,) = [event for event in node.events if event.reason == "SlotsExhausted"]
    assert event.message.endswith("no free slot (the last of 4)")
    node.events.clear()
    workload.allocations.close()
    workload.allocations = node.start()
    workload.step()
    assert node.events == []


@pytest.mark.parametrize("phase", [1, 2])
def test_a_slot_that_nobody_can_look_up_keeps_no_allocation(node: Node, phase: int) -> None:
    if not ProcessTable().sees_everything:
        pytest.skip("needs a view of all processes of the host")
    allocations = node.start()
    allocation, _ = allocations.allocate(JOB, inventory(device(0)))
    tenant = Tenant(Path(allocation.directory) / "usage")
    tenant.attach(0, pid=1, start=0, namespace=0, phase=phase)
    tenant.close()
    assert allocations.release("job") == ()
    assert allocations.all == ()


def test_steps_leave_signs_of_life_also_without_a_new_reading(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "BEAT_SECONDS", 0.0)
    allocations = node.start()
    allocation, _ = allocations.allocate(pod(), inventory(device(0)))
    shm = allocations._held[allocation.uid].files.shm  # type: ignore[union-attr]
    before = shm.state.heartbeat_ns
    allocations.step(inventory(device(0)))
    first = shm.state.heartbeat_ns
    allocations.step(inventory(device(0)))  # the same reading: no round, but a heartbeat
    assert before < first < shm.state.heartbeat_ns
    assert allocations.statistics().rounds_total == 1


def test_a_limit_file_lost_under_the_daemon_is_told_and_the_others_go_on(node: Node) -> None:
    allocations = node.start()
    lost, _ = allocations.allocate(named("lost", request("0", vram=GIB)), inventory(device(0)))
    allocations.allocate(named("other", request("0", vram=GIB)), inventory(device(0)))
    os.truncate(Path(lost.directory) / "shm", 0)
    usages = allocations.step(inventory(device(0)))
    assert [bool(usage.tampering) for usage in usages] == [True, False]
    with pytest.raises(Refusal) as caught:
        allocations.update_limits("lost", (request(vram=2 * GIB),), inventory(device(0)), expected=None)
    assert caught.value.reason is RefusalReason.STORAGE_FAILED
    assert allocations.release("lost") == ()


def test_reloaded_settings_reach_the_limit_files(node: Node) -> None:
    allocations = node.start()
    allocation, _ = allocations.allocate(named(), inventory(device(0)))
    shm = allocations._held[allocation.uid].files.shm  # type: ignore[union-attr]
    settings = allocations._ground.settings
    generation = shm.state.generation
    allocations.reload(settings)
    assert shm.state.generation == generation
    import msgspec

    allocations.reload(msgspec.structs.replace(settings, burst_milliseconds=5.0, context_mebibytes=77))
    assert shm.limits.devices[0].burst_ns == 5_000_000
    assert shm.control(0).context_bytes == 77 * MIB
    assert shm.state.generation == generation + 1


def test_a_device_that_is_not_in_the_drivers_list_has_a_reason(node: Node, sleeper: subprocess.Popen[str]) -> None:
    workload = Workload(node, node.start(), sleeper, held=GIB)
    (usage,) = workload.allocations.step(inventory(sequence=10**6))
    assert usage.devices[0].gpu_uuid == uuid_of(0)
    assert usage.devices[0].reserved_bytes.value == GIB
    assert "not in the driver's list" in usage.devices[0].busy_ratio.absent_reason


@pytest.mark.parametrize("after", range(5))
def test_grants_come_change_and_go_between_two_parts_of_a_round(node: Node, after: int) -> None:
    allocations = node.start()
    granted = [allocations.allocate(named(f"job-{n}", request("0", vram=GIB)), inventory(device(0)))[0] for n in "abc"]
    parts = allocations.parts(inventory(device(0), sequence=2), {})
    for _ in range(after):
        next(parts)
    allocations.release("job-b")
    allocations.allocate(named("job-d", request("0", vram=GIB)), inventory(device(0)))
    allocations.update_limits("job-c", (request("0", vram=2 * GIB),), inventory(device(0)), expected=None)
    usages = {usage.allocation_id: usage for usage in drained(parts)}
    assert set(usages) == {"job-a", "job-c", "job-d"}
    assert usages["job-a"].devices[0].reserved_bytes.value == 0
    assert not Path(granted[1].directory).exists()
    assert [event for event in node.events if "Unusable" in str(event)] == []
    later = {usage.allocation_id: usage for usage in allocations.step(inventory(device(0), sequence=3))}
    assert all(usage.devices and not usage.tampering for usage in later.values())
    allocations.close()
