"""What other node agents were reported for, done to ours. The numbers are rows of tests/unit/kube/test_rows.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hypervisor.kube.indices import resource_names
from tests.daemon_process import wait_until
from tests.kube_fakes.node import INDEX_0, KubeNode, host_path, pod, settled

# An administrator divides a card: MIG mode on, and two instances.
DIVIDE = """
import sys
import pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
nvml.nvmlDeviceSetMigMode(card, nvml.NVML_DEVICE_MIG_ENABLE)
profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
for _ in range(2):
    instance = nvml.nvmlDeviceCreateGpuInstance(card, profile.id)
    part = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, part.id)
"""
GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


def descriptors(node: KubeNode) -> int:
    return sum(1 for _ in Path(f"/proc/{node.daemon.pid}/fd").iterdir())


@pytest.mark.slow
def test_restarts_of_kubelet_leak_no_descriptors(make_node) -> None:  # row 41
    node: KubeNode = make_node().start()

    def restarted() -> int:
        node.kubelet.restart()
        node.wait_registered()
        wait_until(lambda: all(node.kubelet.allocatable(name) for name in resource_names()), "all resources")
        return descriptors(node)

    first = [restarted() for _ in range(3)]
    later = [restarted() for _ in range(5)]
    assert min(later) <= max(first), "what a restart opens is closed by the next"


@pytest.mark.slow
def test_few_descriptors_are_no_reason_to_lose_the_registration(make_node) -> None:  # row 41
    node: KubeNode = make_node()
    node.daemon.prefix = ("prlimit", "--nofile=256:256")
    node.start()
    for _ in range(3):
        node.kubelet.restart()
        node.wait_registered()
    document, _ = node.run(pod("few", **GOOD))
    node.wait_allocation(document["metadata"]["uid"])


@pytest.mark.slow
def test_a_daemon_that_dies_offers_nothing_and_one_that_stops_waits_for_no_stream(make_node) -> None:  # rows 44, 50
    node: KubeNode = make_node().start()
    document, given = node.run(pod("kept", **GOOD))
    before = node.wait_allocation(document["metadata"]["uid"])
    node.daemon.kill()
    wait_until(lambda: node.kubelet.allocatable(INDEX_0) == 0, "kubelet to see that nobody is there")
    assert node.kubelet.capacity(INDEX_0) > 0
    assert host_path(given, "/run/tensor-fusion/shm/shm").exists()
    node.daemon.start().wait_ready()
    node.wait_registered()
    assert settled(node.wait_allocation(document["metadata"]["uid"])) == settled(before)
    # Seventeen streams are open.
    assert node.daemon.stop(10.0) == 0
    assert not list(node.kubelet.plugins.glob("tensor-fusion-*.sock"))


@pytest.mark.slow
def test_registration_and_grants_need_no_api_server(make_node) -> None:  # row 48
    node: KubeNode = make_node()
    node.api.stop()
    node.start()
    (given,) = node.kubelet.admit(pod("unseen", **GOOD))
    assert host_path(given, "/run/tensor-fusion/shm/shm").exists()
    wait_until(lambda: "ApiServerUnreachable" in node.conditions(), "the condition")


def test_nothing_of_a_pod_or_a_node_is_written_but_events(shared_node: KubeNode) -> None:  # row 49
    document, _ = shared_node.run(pod("read-only", **GOOD))
    shared_node.wait_event(document["metadata"]["uid"], "GPUDeviceAllocated")
    written = {(method, path.split("/")[-1]) for method, path in shared_node.api.requests if method != "GET"}
    assert {method for method, _ in written} <= {"POST", "PATCH"}
    assert all("/events" in path for method, path in shared_node.api.requests if method != "GET")


@pytest.mark.slow
def test_a_new_mig_layout_is_no_reason_to_register_anew(make_node) -> None:  # rows 51, 64
    node: KubeNode = make_node().start()
    document, _ = node.run(pod("before", **GOOD))
    kept = node.wait_allocation(document["metadata"]["uid"])
    before = len(node.kubelet.registrations)
    cards = len(node.gpus())
    idle = next(at for at, gpu in enumerate(node.gpus()) if gpu["uuid"] != kept["devices"][0]["gpuUuid"])
    command = [sys.executable, "-m", "hypervisor", "sim", "run", "--machine", str(node.daemon.machine), "--"]
    subprocess.run([*command, sys.executable, "-c", DIVIDE, str(idle)], check=True, capture_output=True)
    wait_until(lambda: any("partition" in gpu for gpu in node.gpus()), "the instances")
    assert len(node.gpus()) >= cards
    other, _ = node.run(pod("after", **GOOD))
    node.wait_allocation(other["metadata"]["uid"])
    assert len(node.kubelet.registrations) == before
    assert settled(node.wait_allocation(document["metadata"]["uid"])) == settled(kept)


@pytest.mark.slow
def test_pods_that_come_and_go_leave_nothing(make_node) -> None:  # rows 54, 66
    node: KubeNode = make_node().start()

    def rounds(count: int) -> int:
        for number in range(count):
            document, _ = node.run(pod(f"churn-{number}", **GOOD))
            uid = document["metadata"]["uid"]
            node.wait_allocation(uid)
            node.api.delete(uid)
            node.kubelet.forget(uid)
            wait_until(lambda uid=uid: uid not in node.allocations(), "the end")
        status = Path(f"/proc/{node.daemon.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    first, last = rounds(40), rounds(80)
    wait_until(lambda: not list((node.daemon.base_directory / "by-uid").iterdir()), "an empty directory")
    grants = node.daemon.state_directory / "kubernetes/grants"
    wait_until(lambda: not list(grants.glob("*.json")), "the end of all grants")
    assert last - first < 8 * 1024, "KiB for 80 Pods more"


@pytest.mark.slow
def test_without_pod_resources_the_node_says_so_and_binds_by_the_checkpoint(make_node) -> None:  # row 59
    node: KubeNode = make_node()
    node.kubelet.stop()
    shutil.rmtree(node.kubelet.pod_resources)
    node.kubelet.start(pod_resources=False)
    node.start()
    document, _ = node.run(pod("unlisted", **GOOD))
    node.wait_allocation(document["metadata"]["uid"])
    assert "PodResourcesUnreachable" in node.conditions()
