"""NVIDIA's own nvidia-cuda-mps-control, as far as it goes without a GPU: our words meet the real one.

It starts in the foreground, takes and tells its defaults, and starts a server that ends at once, for there is no GPU.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import trio

from hypervisor.model import WorkerPhase, WorkerSpec
from hypervisor.workers.mps.control import Amount, Control, ControlError
from hypervisor.workers.mps.settings import knows_multiuser
from tests.clients.debian import Unavailable, unpacked
from tests.integration.workers.conftest import Rig, until

pytestmark = pytest.mark.clients


@pytest.fixture(params=[535, 550])
def program(request: pytest.FixtureRequest) -> str:
    try:
        return str(unpacked(request.param, "nvidia-cuda-mps") / "usr/bin/nvidia-cuda-mps-control")
    except Unavailable as error:
        pytest.skip(error.reason)


def test_the_real_control_daemon_under_our_supervisor(program: str) -> None:
    rig = Rig(Path(tempfile.mkdtemp(prefix="hv-mps-")))
    control = Control(
        program=program,
        pipe_directory=rig.directory / "pipe",
        log_directory=rig.directory / "log",
        environment={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "0"},
        answer_seconds=20,
    )
    control.pipe_directory.mkdir()
    control.log_directory.mkdir()
    variables = control.variables | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}

    async def body() -> None:
        with pytest.raises(ControlError, match="Cannot find MPS control daemon process"):
            await control.servers()
        async with rig.supervisor() as supervisor:
            spec = WorkerSpec(
                worker_id="mps", command=(program, "-f"), environment=tuple(sorted(variables.items())), grace_seconds=5
            )
            await supervisor.start(spec)
            await until((control.pipe_directory / "control").exists, "the control socket", 30)
            assert await control.servers() == ()
            reading = ("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
            assert await control.limits(*reading) == (30.0, None)  # the environment's, in force at once
            await control.ask("set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 4096M")
            assert await control.limits(*reading) == (25.0, Amount(mebibytes=4096, step=1024))
            for mebibytes in (512, 1536, 81_919):
                await control.ask(f"set_default_device_pinned_mem_limit 0 {mebibytes}M")
                _, told = await control.limits(*reading)
                assert told is not None
                assert told.tells(mebibytes)
                assert not told.tells(mebibytes + 1024)
            with pytest.raises(ControlError, match="Unknown command"):
                await control.ask("no_such_verb")
            with pytest.raises(ControlError, match="not found"):
                await control.clients(12345)
            await control.ask("start_server -uid 0")  # without a GPU it ends at once
            assert await control.servers() == ()
            worker = await supervisor.stop("mps", grace_seconds=5)
            assert worker.phase is WorkerPhase.STOPPED

    try:
        trio.run(body)
    finally:
        rig.close()


def test_branches_without_the_flag_are_recognised(program: str) -> None:
    assert not knows_multiuser(program)
