"""A Pod with the annotation of hard isolation, from kubelet's Allocate to its container's environment and mounts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.workers.conftest import end_workers
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
        # A Pod without an index: that it is hard is known, though not yet which Pod it is.
        replica = pod("r", isolation="hard", compute_percent_limit="25", vram_limit="4Gi")
        document, given = node.run(replica, known=True)
        assert given.answer is not None
        assert given.answer.envs["TF_ISOLATION_MODE"] == "hard"
        assert given.answer.envs["TF_CUDA_SM_PERCENT_LIMIT"] == "25"
        (card,) = (each["gpuUuid"] for each in node.wait_allocation(document["metadata"]["uid"])["devices"])
        assert given.answer.envs["CUDA_VISIBLE_DEVICES"] == card
        mounts = {mount.container_path: mount.host_path for mount in given.answer.mounts}
        assert f"/{card}/" in mounts["/tmp/nvidia-mps"]
        # One that kubelet knew before us was answered as a soft one: it gets nothing, and is told why.
        late = pod("late", isolation="hard", compute_percent_limit="25", vram_limit="4Gi")
        (unknown,) = node.kubelet.admit(late)
        assert "CUDA_MPS_PIPE_DIRECTORY" not in unknown.answer.envs
        node.api.create(late)
        told = node.wait_event(late["metadata"]["uid"], "GPUDeviceAllocatedFailed")["message"]
        assert "soft or shared isolation, and its Pod asks for hard" in told
    finally:
        node.close()
        end_workers(node.daemon.state_directory)
