"""Verdicts over restarts and readers, and who is blamed: on one reader, or one daemon, of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hypervisor.gpu import open_gpu_reader
from hypervisor.gpu.health.occurrence import OccurrenceKind
from hypervisor.model import HealthCode, HealthState
from tests.daemon_process import wait_until
from tests.integration.gpu.conftest import Simulated, condition, good_round, make_machine, quick, until
from tests.integration.health.conftest import STATES, Node, put_on_bus, start
from tests.integration.node import calls

GIB = 2**30


@pytest.fixture
def t4(tmp_path: Path) -> Iterator[Simulated]:
    yield from make_machine(tmp_path / "machine", "t4")


def reader(simulated: Simulated, memory: Path | None = None, **changes: object):
    settings = quick(health_hold_seconds=0.1, **changes)
    return open_gpu_reader(settings, environment=simulated.environment, memory=memory)


def test_faults_from_before_the_daemon_are_seen_and_are_no_news(t4: Simulated, tmp_path: Path) -> None:
    t4.fault("gpu=0,set=ecc_uncorrected_volatile,value=3")
    t4.fault("gpu=0,set=retire_pending,value=1")

    async def main() -> None:
        async with reader(t4) as gpus:
            told = await until(gpus, lambda now: bool(now.devices) and len(now.devices[0].conditions) == 2)
            (device,) = told.devices
            assert condition(device, HealthCode.ECC_UNCORRECTED) is not None
            assert condition(device, HealthCode.PAGES_RETIRED) is not None
            assert device.health in {HealthState.DEGRADED, HealthState.UNHEALTHY}
            await good_round(gpus)
            with trio.move_on_after(0.2) as waited:
                await gpus.next_occurrences()
            assert waited.cancelled_caught

    trio.run(main)


def test_a_verdict_outlives_the_reader_and_the_daemon(t4: Simulated, tmp_path: Path) -> None:
    memory = tmp_path / "health.json"

    async def life(*, first: bool) -> None:
        async with reader(t4, memory) as gpus:
            await good_round(gpus)
            if first:
                t4.fault("gpu=0,xid=79")
                (occurrence,) = await gpus.next_occurrences()
                assert occurrence.kind is OccurrenceKind.XID
            told = await until(gpus, lambda now: now.devices[0].health is HealthState.UNHEALTHY)
            stands = condition(told.devices[0], HealthCode.XID_ERROR)
            assert stands is not None
            assert "restart the machine" in stands.message
            # A new reader changes nothing about it, and a reset of nothing neither.
            uuid = told.devices[0].identity.uuid
            await gpus.detach(uuid)
            await gpus.attach(uuid)
            await until(gpus, lambda now: now.devices[0].health is HealthState.UNHEALTHY)

    trio.run(lambda: life(first=True))
    trio.run(lambda: life(first=False))


def test_zeros_of_a_driver_that_lies_are_no_reset(t4: Simulated) -> None:
    """A reading that is zero without cause takes no verdict back; a reset does."""
    for name, value in (("ecc_corrected_volatile", 4), ("ecc_corrected_aggregate", 9)):
        t4.fault(f"gpu=0,set={name},value={value}")

    async def main() -> None:
        async with reader(t4) as gpus:
            await good_round(gpus)
            t4.fault("gpu=0,xid=109")
            await until(gpus, lambda now: now.devices[0].health is HealthState.UNHEALTHY)
            lies = [
                t4.fault(f"gpu=0,call={call},return=zero")
                for call in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTotalEnergyConsumption")
            ]
            for _ in range(5):
                assert (await good_round(gpus)).devices[0].health is HealthState.UNHEALTHY
            for lie in lies:
                t4.machine.clear_fault(lie)
            assert (await good_round(gpus)).devices[0].health is HealthState.UNHEALTHY
            t4.fault("gpu=0,reset=true")
            await until(gpus, lambda now: now.devices[0].health is HealthState.HEALTHY)

    trio.run(main)


@pytest.mark.slow
def test_a_reset_of_a_card_that_was_let_go_is_seen_by_its_further_counts(t4: Simulated) -> None:
    async def main() -> None:
        async with reader(t4) as gpus:
            uuid = (await good_round(gpus)).devices[0].identity.uuid
            replays = t4.fault("gpu=0,set=pcie_replays,value=7")
            t4.fault("gpu=0,xid=109")
            await until(gpus, lambda now: now.devices[0].health is HealthState.UNHEALTHY)
            await good_round(gpus)
            t4.machine.clear_fault(replays)
            # While it is held, nobody can have reset it.
            await good_round(gpus)
            assert (await good_round(gpus)).devices[0].health is HealthState.UNHEALTHY
            t4.fault("gpu=0,set=pcie_replays,value=7")
            await good_round(gpus)
            await good_round(gpus)
            await gpus.detach(uuid)
            t4.fault("gpu=0,set=pcie_replays,value=0")
            await gpus.attach(uuid)
            await until(gpus, lambda now: now.devices[0].health is HealthState.HEALTHY)

    trio.run(main)


def test_events_that_hang_take_no_card_with_them(t4: Simulated) -> None:
    async def main() -> None:
        async with reader(t4, reading_timeout_seconds=30) as gpus:
            await good_round(gpus)
            t4.fault("call=nvmlEventSetWait*,hang=forever")
            begun = time.monotonic()
            # The present round ends without its cards at most once; after that another reader goes on without events.
            for _ in range(6):
                told = await good_round(gpus)
            assert time.monotonic() - begun < 15
            assert told.devices[0].health is HealthState.HEALTHY
            assert not told.devices[0].vram_bytes.stale
            t4.fault("gpu=0,set=recovery_action,value=1")
            await until(gpus, lambda now: now.devices[0].health is HealthState.UNHEALTHY)

    trio.run(main)


@pytest.mark.parametrize("lie", ["return=999", "return=10", "return=3", "missing"])
def test_events_that_fail_do_not_spin(t4: Simulated, lie: str) -> None:
    t4.fault(f"call=nvmlEventSetWait*,{lie}")

    async def main() -> None:
        async with reader(t4) as gpus:
            for _ in range(10):
                await good_round(gpus)
            statistics = gpus.statistics()
            asked = sum(count for (name, _), count in statistics.calls.items() if name == "nvmlEventSetWait_v2")
            made = sum(count for (name, _), count in statistics.calls.items() if name == "nvmlEventSetCreate")
            assert asked <= statistics.rounds + 2
            assert made <= 8

    trio.run(main)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Settings as they come: a reading each second, a hold of half a minute."""
    yield from start(tmp_path_factory.mktemp("own"), "--reading-interval-seconds", "1")


def test_a_lost_card_is_unhealthy_in_all_outputs_within_two_seconds(own: Node) -> None:
    uuid = own.gpu(3).uuid
    begun = time.monotonic()
    own.fault("gpu=3,lost")
    wait_until(lambda: own.state(3) is HealthState.LOST, "the API")
    in_api = time.monotonic() - begun
    wait_until(lambda: "GpuUnhealthy" in own.events(uuid), "the event")
    in_events = time.monotonic() - begun
    wait_until(lambda: own.metric("gpu_health_state", uuid=uuid, state="lost") == 1, "the metric")
    in_metrics = time.monotonic() - begun
    own.clear()
    # The page of metrics is made anew once a second.
    assert max(in_api, in_events) < 2.5, (in_api, in_events)
    assert in_metrics < 4.0, in_metrics


def test_a_program_s_xid_is_told_to_the_owner_of_the_only_allocation(own: Node) -> None:
    calls.allocate(own.daemon, "culprit", vram_bytes=GIB, percent="10", gpu="5")
    own.fault("gpu=5,xid=31")
    event = wait_until(
        lambda: next(
            (
                event
                for event in calls.list_events(own.daemon)
                if event.reason == "XidError" and event.regarding.name == "culprit"
            ),
            None,
        ),
        "the event",
    )
    assert "Xid 31 (GPU memory page fault)" in event.message
    assert own.gpu(5).uuid in event.message
    assert own.state(5) is HealthState.HEALTHY
    assert own.gpu(5).allocatable


def test_a_card_that_the_driver_does_not_show_is_a_condition_of_the_node(own: Node) -> None:
    put_on_bus(own.root, "0000:fe:00.0", "nouveau")
    put_on_bus(own.root, "0000:ff:00.0", "vfio-pci")
    text = wait_until(
        lambda: next((line for line in own.daemon.get("/metrics")[1].splitlines() if "GpusNotShown" in line), None),
        "the condition",
    )
    assert text.endswith(" 1.0")
    assert own.daemon.get("/readyz")[0] == 200


@pytest.mark.parametrize("seconds", [3.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_readings_of_zero_on_all_cards_change_no_capacity(own: Node, seconds: float) -> None:
    before = {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(own.daemon)}
    own.fault("call=nvmlDeviceGetMemoryInfo*,return=zero")
    begun = time.monotonic()
    wait_until(lambda: all("ReadingRejected" in own.codes(index) for index in (0, 15)), "the rejections")
    while time.monotonic() - begun < seconds:
        gpus = calls.list_gpus(own.daemon)
        assert {gpu.uuid: gpu.capacity.vram.bytes for gpu in gpus} == before
        assert STATES[gpus[0].health] is HealthState.HEALTHY
    own.clear()
    wait_until(lambda: not own.codes(0) and not own.codes(15), "the readings to be believed again")


def test_a_fall_of_the_whole_node_takes_a_second_source(own: Node) -> None:
    before = {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(own.daemon)}
    own.fault(f"call=nvmlDeviceGetMemoryInfo*,value={48 * GIB}")
    wait_until(lambda: own.metric("circuit_breaker_state", circuit="node_capacity") == 2, "the guard to hold")
    assert {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(own.daemon)} == before
    assert 'condition="CapacityHeld"' in own.daemon.get("/metrics")[1]
    own.clear()
    wait_until(lambda: own.metric("circuit_breaker_state", circuit="node_capacity") == 0, "the guard to let go")
    assert {gpu.uuid: gpu.capacity.vram.bytes for gpu in calls.list_gpus(own.daemon)} == before


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMemoryInfo*", pytest.param("nvmlDeviceGetRemappedRows", marks=pytest.mark.slow)]
)
def test_a_hang_of_one_card_delays_no_other_output_by_more_than_a_second(own: Node, call: str) -> None:
    hung = 1 if call.endswith("*") else 2
    own.fault(f"gpu={hung},call={call},hang=forever")
    begun = time.monotonic()
    worst_answer = worst_age = 0.0
    while time.monotonic() - begun < 4:
        asked = time.monotonic()
        gpus = calls.list_gpus(own.daemon)
        worst_answer = max(worst_answer, time.monotonic() - asked)
        worst_age = max(worst_age, *(gpu.capacity.vram.age_seconds for gpu in gpus if gpu.index not in (1, 2)))
        time.sleep(0.05)
    own.clear()
    assert worst_answer < 1.0
    # A reading comes each second in any case; the rest is a machine that is shared.
    assert worst_age - 1.0 < 1.5, worst_age


def test_a_node_waits_for_the_validation_of_its_toolkit(own: Node) -> None:
    folder = own.root / "run/nvidia/validations"
    folder.mkdir(parents=True)
    wait_until(lambda: own.daemon.get("/readyz")[0] == 503, "the node to wait")
    assert "waiting for toolkit validation" in own.daemon.get("/readyz")[1]
    (folder / "toolkit-ready").touch()
    wait_until(lambda: own.daemon.get("/readyz")[0] == 200, "the node to be ready")
