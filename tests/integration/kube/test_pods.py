"""Pods from their creation to enforced limits, on the real daemon."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hypervisor.limits import ShmFile
from tests.daemon_process import wait_until
from tests.kube_fakes.kubelet import Given
from tests.kube_fakes.node import KubeNode, host_path, pod, run_container
from tests.simulated_load import LOAD

GIB = 2**30
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def vram_limit(given: Given) -> int | None:
    """The limit as a process of the container reads it."""
    file = ShmFile.open(host_path(given, "/run/tensor-fusion/shm/shm"), boot_id=BOOT_ID)
    try:
        return file.limits.devices[0].vram_limit_bytes
    finally:
        file.close()


def test_three_replicas_without_scheduler_and_webhook_are_limited(any_node: KubeNode) -> None:
    replicas = [pod(f"app-{number}", compute_percent_limit="30", vram_limit="2Gi") for number in range(3)]
    running = [any_node.run(each) for each in replicas]
    for document, given in running:
        uid = document["metadata"]["uid"]
        allocation = any_node.wait_allocation(uid)
        assert allocation["spec"]["owner"]["pod"]["name"] == document["metadata"]["name"]
        assert str(host_path(given, "/run/tensor-fusion/shm/shm").parent) == allocation["directory"]
        link = any_node.daemon.base_directory / "default" / document["metadata"]["name"]
        assert str(link.resolve()) == allocation["directory"]
        group = document["metadata"]["name"]
        done = run_container(given, [str(LOAD), "--idle", "--grow=134217728", "--seconds=0"], group)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert told[0]["total_bytes"] == 2 * GIB
        assert next(line for line in told if "refused" in line)["refused"] is True
        any_node.wait_event(uid, "GPUDeviceAllocated")


def test_a_live_change_reaches_the_file_within_a_second_and_passes_admission(any_node: KubeNode) -> None:
    document, given = any_node.run(pod("tuned", compute_percent_limit="20", vram_limit="1Gi"))
    uid = document["metadata"]["uid"]
    any_node.wait_allocation(uid)
    began = time.monotonic()
    any_node.api.annotate(uid, vram_limit="2Gi", vram_request="2Gi")
    shown = wait_until(lambda: (found := vram_limit(given)) == 2 * GIB and found, "the new limit in the file")
    assert shown == 2 * GIB
    assert time.monotonic() - began < 1.0
    any_node.wait_event(uid, "GPULimitsChanged")
    any_node.api.annotate(uid, vram_limit="90Gi", vram_request="90Gi")
    assert "more than the card" in any_node.wait_event(uid, "GPULimitsRefused")["message"]
    assert vram_limit(given) == 2 * GIB


def test_a_scheduler_that_names_card_and_index_is_obeyed_at_once(shared_node: KubeNode) -> None:
    gpus = shared_node.gpus()
    wanted = gpus[5]["uuid"]
    document = pod(
        "placed",
        resources={"tensor-fusion.ai/index_2": 3},
        compute_percent_limit="20",
        vram_limit="1Gi",
        gpu_ids=wanted.lower(),
        index="19",
    )
    created = shared_node.api.create(document)
    wait_until(lambda: "gpuhv_pods_pods 1.0" in shared_node.daemon.get("/metrics")[1], "the Pod to be known")
    (given,) = shared_node.kubelet.admit(created)
    assert given.answer.envs["NVIDIA_VISIBLE_DEVICES"] == wanted
    assert shared_node.allocations()[document["metadata"]["uid"]]["devices"][0]["gpuUuid"] == wanted


def test_the_pod_is_known_after_kubelet_asked(shared_node: KubeNode) -> None:  # 9.3 row 47
    document = pod("late", compute_percent_limit="20", vram_limit="1Gi")
    (given,) = shared_node.kubelet.admit(document)
    assert given.answer.envs["NVIDIA_VISIBLE_DEVICES"].count(",") == 7
    assert "CUDA_VISIBLE_DEVICES" not in given.answer.envs
    shared_node.api.create(document)
    allocation = shared_node.wait_allocation(document["metadata"]["uid"])
    assert allocation["directory"] == str(host_path(given, "/run/tensor-fusion/shm/shm").parent)


def test_pods_that_end_give_back_and_their_ids_come_again(any_node: KubeNode) -> None:  # 9.3 row 54, 9.4 row 70
    first, given = any_node.run(pod("job", compute_percent_limit="60", vram_limit="1Gi"))
    uid = first["metadata"]["uid"]
    old = any_node.wait_allocation(uid)
    any_node.api.set_phase(uid, "Succeeded")
    wait_until(lambda: uid not in any_node.allocations(), "the end of the allocation")
    assert not host_path(given, "/run/tensor-fusion/shm/shm").exists()
    any_node.kubelet.forget(uid)
    second, again = any_node.run(pod("job-2", compute_percent_limit="60", vram_limit="1Gi"))
    assert again.ids == given.ids
    new = any_node.wait_allocation(second["metadata"]["uid"])
    assert new["uid"] != old["uid"]
    assert 'pod="job"' not in any_node.daemon.get("/metrics")[1]


def test_a_statefulset_successor_never_has_its_predecessors_files(shared_node: KubeNode) -> None:
    first, given = shared_node.run(pod("db-0", compute_percent_limit="10", vram_limit="1Gi"))
    old = shared_node.wait_allocation(first["metadata"]["uid"])
    # The successor is admitted before the watch has told that the first is gone.
    successor = pod("db-0", compute_percent_limit="10", vram_limit="2Gi")
    shared_node.kubelet.forget(first["metadata"]["uid"])
    (next_given,) = shared_node.kubelet.admit(successor)
    assert host_path(next_given, "/run/tensor-fusion/shm/shm") != host_path(given, "/run/tensor-fusion/shm/shm")
    shared_node.api.delete(first["metadata"]["uid"])
    shared_node.api.create(successor)
    new = shared_node.wait_allocation(successor["metadata"]["uid"])
    assert new["directory"] == str(host_path(next_given, "/run/tensor-fusion/shm/shm").parent) != old["directory"]
    wait_until(lambda: first["metadata"]["uid"] not in shared_node.allocations(), "the end of the first")


def test_native_gpus_of_another_plugin_hold_the_card(shared_node: KubeNode) -> None:  # 9.4 rows 56, 57
    def used_by() -> list[str]:
        items = shared_node.gpus()
        return [gpu.get("usedBy", "") for gpu in items[:2]]

    gpus = shared_node.gpus()
    foreign = {"uid": "f", "namespace": "default", "name": "native"}
    shared_node.kubelet.give_foreign(foreign, "main", "nvidia.com/gpu.shared", [f"{gpus[0]['uuid']}::2"])
    shared_node.kubelet.give_foreign(foreign, "main", "nvidia.com/gpu", [gpus[1]["uuid"]])
    wait_until(lambda: used_by() == ["3rd-party-device-plugin", "nvidia-device-plugin"], f"usedBy; {used_by()}")
    document, _ = shared_node.run(pod("ours", compute_percent_limit="20", vram_limit="1Gi"))
    allocation = shared_node.wait_allocation(document["metadata"]["uid"])
    assert allocation["devices"][0]["gpuUuid"] not in {gpus[0]["uuid"], gpus[1]["uuid"]}
    shared_node.kubelet.forget("f")
    wait_until(lambda: used_by() == ["", ""], "the cards to be free")


def test_modes_never_share_a_card_and_shared_is_a_whole_one(any_node: KubeNode) -> None:
    soft, _ = any_node.run(pod("soft", compute_percent_limit="20", vram_limit="1Gi"))
    soft_card = any_node.wait_allocation(soft["metadata"]["uid"])["devices"][0]["gpuUuid"]
    cards = set()
    for number in range(2):
        shared, given = any_node.run(pod(f"shared-{number}", isolation="shared"))
        cards.add(any_node.wait_allocation(shared["metadata"]["uid"])["devices"][0]["gpuUuid"])
        assert given.answer.envs["CUDA_VISIBLE_DEVICES"] in cards
    assert len(cards | {soft_card}) == 3


@pytest.mark.slow
def test_a_static_node_has_one_mode(make_node) -> None:
    node = make_node("--isolation-policy", "static", "--isolation-mode", "soft").start()
    document, _ = node.run(pod("shared", isolation="shared"))
    assert "soft mode" in node.wait_event(document["metadata"]["uid"], "GPUDeviceAllocatedFailed")["message"]
    allowed, _ = node.run(pod("soft", compute_percent_limit="20", vram_limit="1Gi"))
    node.wait_allocation(allowed["metadata"]["uid"])
