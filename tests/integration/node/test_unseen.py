"""Compute limits on a driver that sees nothing of the Pod's work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hypervisor.v1 import types_pb2 as pb
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.node import calls
from tests.integration.node.test_use import GIB, client, fault

SAMPLES = "call=nvmlDeviceGetProcess*Utilization*"
UTILIZATION = "call=nvmlDeviceGetUtilizationRates"


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ((f"{SAMPLES},value=0",), "the driver sees nothing of the work"),
        (
            (f"{SAMPLES},return=zero", f"{UTILIZATION},return=3"),
            "the driver does not say how busy the processes are",
        ),
    ],
    ids=["samples of nothing", "no samples and no utilization"],
)
def test_work_that_the_driver_does_not_see_opens_no_limit(
    make_daemon: Callable[..., DaemonProcess], faults: tuple[str, ...], why: str
) -> None:
    # A card without GPM, which would be asked instead.
    daemon = make_daemon(simulate="a100-sxm-80gb").start().wait_ready()
    answer = calls.allocate(daemon, "job", vram_bytes=8 * GIB, percent="20", gpu="0")
    with client(daemon, "--kernel-us=1000", "--seconds=60", variables=dict(answer.environment)):

        def job() -> pb.Allocation:
            (found,) = calls.list_allocations(daemon)
            return found

        wait_until(lambda: job().enforcement == pb.ENFORCEMENT_VERIFIED, "samples")
        before = job().devices[0].usage.pacing.correction
        for each in faults:
            fault(daemon, each)
        wait_until(lambda: job().enforcement == pb.ENFORCEMENT_UNVERIFIED, "that nothing is seen")
        wait_until(lambda: job().devices[0].usage.pacing.correction_frozen == why, "the correction to be frozen")
        assert job().devices[0].usage.pacing.correction > 0.9 * before
