"""Compute limits while clocks jump, and while readings are seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hypervisor.v1 import types_pb2 as pb
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls
from tests.integration.node.test_unseen import SAMPLES
from tests.integration.node.test_use import GIB, client, fault, ledger

AN_HOUR_MS = 3_600_000
SHARE = 0.2
WITHOUT_GPM = "a100-sxm-80gb"  # which would be asked where samples stay away


def job(daemon: DaemonProcess) -> pb.Allocation:
    (found,) = calls.list_allocations(daemon)
    return found


def share_over(daemon: DaemonProcess, seconds: float) -> float:
    """Of GPU time that was used, by the simulator's own account."""

    def now() -> tuple[int, int]:
        told = ledger(daemon)
        return told["clock"]["now_ns"], told["gpus"][0]["busy_ns"]

    before = now()
    time.sleep(seconds)
    after = now()
    return (after[1] - before[1]) / (after[0] - before[0])


@pytest.mark.slow
def test_a_driver_whose_clock_jumps_leaves_limit_and_enforcement_as_they_are(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    """By an hour, forward and back. What the daemon sees is the same where wall time is set and the driver's is not."""
    daemon = make_daemon(simulate=WITHOUT_GPM).start().wait_ready()
    answer = calls.allocate(daemon, "job", vram_bytes=8 * GIB, percent="20", gpu="0")
    with client(daemon, "--kernel-us=1000", "--seconds=60", variables=dict(answer.environment)):
        wait_until(lambda: job(daemon).enforcement == pb.ENFORCEMENT_VERIFIED, "samples")
        for jump in (f"gpu=0,set=sample_ahead_ms,value={AN_HOUR_MS}", None):
            if jump:
                fault(daemon, jump)
            else:
                fault(daemon, "--clear", "all")
            assert share_over(daemon, 3) < SHARE + 0.05
            before = job(daemon).devices[0].usage.busy_ratio.observed_at.ToNanoseconds()
            wait_until(
                lambda since=before: job(daemon).devices[0].usage.busy_ratio.observed_at.ToNanoseconds() > since,
                "a sample of after the jump",
            )
            wait_until(lambda: job(daemon).enforcement == pb.ENFORCEMENT_VERIFIED, "the limit to be verified again")
            wait_until(lambda: not job(daemon).devices[0].usage.pacing.correction_frozen, "the correction to go on")
            assert job(daemon).devices[0].usage.pacing.correction > 0.8


@pytest.mark.slow
def test_silence_of_the_driver_opens_no_limit_where_readings_are_seldom(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = (
        make_daemon(simulate=WITHOUT_GPM, environment={"HYPERVISOR_READING_INTERVAL_SECONDS": "30"})
        .start()
        .wait_ready()
    )
    answer = calls.allocate(daemon, "job", vram_bytes=8 * GIB, percent="20", gpu="0")
    with client(daemon, "--kernel-us=1000", "--seconds=60", variables=dict(answer.environment)):
        wait_until(lambda: job(daemon).enforcement == pb.ENFORCEMENT_VERIFIED, "samples", seconds=40)
        fault(daemon, f"{SAMPLES},return=zero")
        wait_until(lambda: job(daemon).enforcement == pb.ENFORCEMENT_UNVERIFIED, "that nothing is seen")
        assert share_over(daemon, 4) < SHARE + 0.05
        pacing = job(daemon).devices[0].usage.pacing
        assert pacing.correction > 0.8
        assert pacing.correction_frozen
