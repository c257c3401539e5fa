"""A Pod with the annotation of hard isolation, from kubelet's Allocate to its container's environment and mounts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.daemon_process import DaemonProcess
from tests.kube_fakes.node import KubeNode, pod
from tests.mps_fakes import CONTROL

pytestmark = pytest.mark.slow  # starts the whole daemon and a control daemon of MPS


def test_a_hard_pod_is_given_pipe_shared_memory_and_limits(make_daemon: Callable[..., DaemonProcess]) -> None:
    flags = (
        "--mps-program",
        str(CONTROL),
        "--mps-probe-seconds",
        "0.5",
        "--mps-answer-seconds",
        "20",
        "--mps-prepare-seconds",
        "60",
    )
    node = KubeNode(make_daemon, *flags).start()
    try:
        # As a scheduler writes it that chooses card and index: three of index_2 are index 19.
        wanted = pod(
            "p",
            resources={"tensor-fusion.ai/index_2": 3},
            isolation="hard",
            compute_percent_limit="25",
            vram_limit="4Gi",
            gpu_ids=node.gpus()[0]["uuid"].lower(),
            index="19",
        )
        document, given = node.run(wanted, known=True)
        assert given.answer is not None
        variables = given.answer.envs
        assert variables["TF_ISOLATION_MODE"] == "hard"
        assert variables["TF_CUDA_SM_PERCENT_LIMIT"] == "25"
        assert variables["TF_GPU_MEMORY_LIMIT"] == "4096"
        assert variables["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        mounts = {mount.container_path: mount.host_path for mount in given.answer.mounts}
        assert mounts["/tmp/nvidia-mps"].startswith(str(node.daemon.state_directory / "mps"))
        assert mounts["/dev/shm"] == "/dev/shm"
        allocation = node.wait_allocation(document["metadata"]["uid"])
        assert allocation["spec"]["isolation"] == "ISOLATION_MODE_HARD"
    finally:
        node.close()
        for status in node.daemon.state_directory.glob("workers/*/status"):
            fields = dict(line.split(" ", 1) for line in status.read_text().splitlines())
            if fields["state"] == "running":
                os.kill(int(fields["shim"]), signal.SIGKILL)
