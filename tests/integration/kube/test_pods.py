"""Pods from their creation to enforced limits, on the real daemon."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hypervisor.limits import ShmFile
from hypervisor.simulation.machine import opened
from tests.daemon_process import wait_until
from tests.kube_fakes.kubelet import Given
from tests.kube_fakes.node import KubeNode, host_path, pod, run_container, settled
from tests.simulated_load import LOAD

GIB = 2**30
MIG_ON = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(3), pynvml.NVML_DEVICE_MIG_ENABLE)
"""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def vram_limit(given: Given) -> int | None:
    """The limit as a process of the container reads it."""
    file = ShmFile.open(host_path(given, "/run/tensor-fusion/shm/shm"), boot_id=BOOT_ID)
    try:
        return file.limits.devices[0].vram_limit_bytes
    finally:
        file.close()


def run_three_replicas(node: KubeNode) -> list[tuple[str, Given]]:
    """A Deployment's Pods, from their creation to armed files: uid and what kubelet was answered."""
    found = []
    for each in [pod(f"app-{number}", compute_percent_limit="30", vram_limit="2Gi") for number in range(3)]:
        document, given = node.run(each)
        uid = document["metadata"]["uid"]
        allocation = node.wait_allocation(uid)
        assert allocation["spec"]["owner"]["pod"]["name"] == document["metadata"]["name"]
        assert str(host_path(given, "/run/tensor-fusion/shm/shm").parent) == allocation["directory"]
        link = node.daemon.base_directory / "default" / document["metadata"]["name"]
        assert str(link.resolve()) == allocation["directory"]
        node.wait_event(uid, "GPUDeviceAllocated")
        found.append((uid, given))
    return found


def peak_bytes(node: KubeNode, given: Given, group: str, **parts: Any) -> int:
    """What a program that grows until it is refused comes to, by the simulator's own ledger."""
    done = run_container(given, [str(LOAD), "--idle", "--grow=134217728", "--seconds=0"], group, **parts)
    assert done.returncode == 0, done.stderr
    with opened(node.daemon.machine) as machine:
        shown = machine.show()
    (row,) = (each for each in shown["groups"] if each["name"] == group)
    return sum(used["peak_bytes"] for used in row["gpus"].values())


def holds(peak: int) -> bool:
    """Was the program held to the 2 GiB of its Pod, context included, and could it use nearly all of them?"""
    return 1.5 * GIB < peak <= 2 * GIB


def test_three_replicas_without_scheduler_and_webhook_are_limited(any_node: KubeNode) -> None:
    for uid, given in run_three_replicas(any_node):
        assert holds(peak_bytes(any_node, given, f"limited-{uid}"))


def test_the_same_replicas_without_the_library_or_with_the_limit_doubled_are_not(shared_node: KubeNode) -> None:
    """The negative control of the test before: what it measures is the limit, and this one."""
    (_, unlimited), (uid, doubled), _ = run_three_replicas(shared_node)
    assert not holds(peak_bytes(shared_node, unlimited, "unlimited", without=("LD_PRELOAD",)))
    shared_node.api.annotate(uid, vram_limit="4Gi", vram_request="4Gi")
    wait_until(lambda: vram_limit(doubled) == 4 * GIB, "the doubled limit")
    assert not holds(peak_bytes(shared_node, doubled, "doubled"))


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
    shared_node.wait_known()
    (given,) = shared_node.kubelet.admit(created)
    assert given.answer.envs["NVIDIA_VISIBLE_DEVICES"] == wanted
    assert shared_node.wait_allocation(document["metadata"]["uid"])["devices"][0]["gpuUuid"] == wanted
    successor = pod("successor", compute_percent_limit="20", vram_limit="1Gi", gpu_ids=wanted.lower(), index="19")
    uid = shared_node.api.create(successor)["metadata"]["uid"]
    message = shared_node.wait_event(uid, "PodIndexAllocationPending")["message"]
    assert "index 19 is still held by Pod default/placed" in message


def test_the_pod_is_known_after_kubelet_asked(shared_node: KubeNode) -> None:  # 9.3 row 47
    document = pod("late", compute_percent_limit="20", vram_limit="1Gi")
    (given,) = shared_node.kubelet.admit(document)
    assert given.answer.envs["NVIDIA_VISIBLE_DEVICES"].count(",") == 7
    assert "CUDA_VISIBLE_DEVICES" not in given.answer.envs
    shared_node.api.create(document)
    allocation = shared_node.wait_allocation(document["metadata"]["uid"])
    assert allocation["directory"] == str(host_path(given, "/run/tensor-fusion/shm/shm").parent)
    # All eight cards came into the container; what is not in the file can't be seen.
    first = run_container(given, [str(LOAD), "--idle", "--seconds=0"], "late")
    assert first.returncode == 0, first.stderr
    other = run_container(given, [str(LOAD), "--idle", "--seconds=0", "--device=1"], "late")
    assert other.returncode != 0
    assert "101" in other.stderr + other.stdout, "CUDA_ERROR_INVALID_DEVICE"


def test_a_card_that_another_plugin_gives_while_ours_is_being_bound_is_not_granted(shared_node: KubeNode) -> None:
    """The race on a foreign card: chosen when kubelet asked, given to a native Pod before it is known whose it is."""
    shared_node.kubelet.hide = {"slower"}
    document, given = shared_node.run(pod("slower", compute_percent_limit="20", vram_limit="1Gi"), known=True)
    uid = document["metadata"]["uid"]
    card = given.answer.envs["CUDA_VISIBLE_DEVICES"]
    native = shared_node.api.create(pod("native", resources={"nvidia.com/gpu": 1}))["metadata"]
    try:
        shared_node.kubelet.give_foreign(native, "main", "nvidia.com/gpu", [card])
    finally:
        shared_node.kubelet.hide = set()
    assert "used by another system" in shared_node.wait_event(uid, "GPUDeviceAllocatedFailed")["message"]
    assert uid not in shared_node.allocations()
    # Its processes wait, and are let in when the native Pod is over.
    shared_node.kubelet.forget(native["uid"])
    shared_node.api.delete(native["uid"])
    assert shared_node.wait_allocation(uid)["devices"][0]["gpuUuid"] == card


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
    # A Pod that asks another plugin is a reason to ask kubelet at once, when it comes and when it goes.
    foreign = shared_node.api.create(pod("native", resources={"nvidia.com/gpu": 1}))["metadata"]
    shared_node.kubelet.give_foreign(foreign, "main", "nvidia.com/gpu.shared", [f"{gpus[0]['uuid']}::2"])
    shared_node.kubelet.give_foreign(foreign, "main", "nvidia.com/gpu", [gpus[1]["uuid"]])
    wait_until(lambda: used_by() == ["3rd-party-device-plugin", "nvidia-device-plugin"], f"usedBy; {used_by()}")
    document, _ = shared_node.run(pod("ours", compute_percent_limit="20", vram_limit="1Gi"))
    allocation = shared_node.wait_allocation(document["metadata"]["uid"])
    assert allocation["devices"][0]["gpuUuid"] not in {gpus[0]["uuid"], gpus[1]["uuid"]}
    shared_node.kubelet.forget(foreign["uid"])
    shared_node.api.delete(foreign["uid"])
    wait_until(lambda: used_by() == ["", ""], "the cards to be free")


def test_modes_never_share_a_card_and_shared_is_a_whole_one(any_node: KubeNode) -> None:
    soft, _ = any_node.run(pod("soft", compute_percent_limit="20", vram_limit="1Gi"))
    soft_card = any_node.wait_allocation(soft["metadata"]["uid"])["devices"][0]["gpuUuid"]
    cards = set()
    for number in range(2):
        shared, given = any_node.run(pod(f"shared-{number}", isolation="shared"), known=True)
        cards.add(any_node.wait_allocation(shared["metadata"]["uid"])["devices"][0]["gpuUuid"])
        assert given.answer.envs["CUDA_VISIBLE_DEVICES"] in cards
    assert len(cards | {soft_card}) == 3


def instances(node: KubeNode) -> set[str]:
    """UUIDs of the MIG instances that the daemon shows."""
    return {gpu["uuid"] for gpu in node.gpus() if gpu["uuid"].startswith("MIG-")}


@pytest.mark.slow
def test_a_static_node_has_one_mode(make_node) -> None:
    node = make_node("--isolation-policy", "static", "--isolation-mode", "soft").start()
    document, _ = node.run(pod("shared", isolation="shared"))
    assert "soft mode" in node.wait_event(document["metadata"]["uid"], "GPUDeviceAllocatedFailed")["message"]
    allowed, _ = node.run(pod("soft", compute_percent_limit="20", vram_limit="1Gi"))
    node.wait_allocation(allowed["metadata"]["uid"])


@pytest.mark.slow
def test_a_partitioned_pod_gets_an_instance_of_its_own_and_no_whole_card(make_node) -> None:
    node: KubeNode = make_node().start()
    command = [sys.executable, "-m", "hypervisor", "sim", "run", "--machine", str(node.daemon.machine), "--"]
    subprocess.run([*command, sys.executable, "-c", MIG_ON], check=True, capture_output=True)
    wanted = {"isolation": "partitioned", "partition": "1g.10gb", "index": "19"}
    created = node.api.create(pod("slice", resources={"tensor-fusion.ai/index_2": 3}, **wanted))
    node.wait_known()
    (given,) = node.kubelet.admit(created)
    assert given.answer.envs["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
    uid = created["metadata"]["uid"]
    allocation = node.wait_allocation(uid)
    assert allocation["devices"][0]["gpuUuid"] == given.answer.envs["NVIDIA_VISIBLE_DEVICES"]
    assert given.answer.envs["TF_ISOLATION_MODE"] == "partitioned"
    # Replicas without an index: it is not known whose a container is, and each has an instance made for it.
    replicas = [node.api.create(pod(f"r-{each}", isolation="partitioned", partition="1g.10gb")) for each in range(2)]
    node.wait_known()
    seen = {}
    for each in replicas:
        (replica,) = node.kubelet.admit(each)
        seen[each["metadata"]["uid"]] = replica.answer.envs["CUDA_VISIBLE_DEVICES"]
        assert replica.answer.envs["TF_ISOLATION_MODE"] == "partitioned"
        assert replica.answer.envs["NVIDIA_VISIBLE_DEVICES"] == seen[each["metadata"]["uid"]]
    assert len({*seen.values(), given.answer.envs["NVIDIA_VISIBLE_DEVICES"]}) == 3
    for each, instance in seen.items():
        assert node.wait_allocation(each)["devices"][0]["gpuUuid"] == instance
    # One whose instance can't be made sees nothing rather than whole cards, and is told why.
    unplaced = node.api.create(pod("unplaced", isolation="partitioned", partition="7g.80gb"))
    node.wait_known()
    (nothing,) = node.kubelet.admit(unplaced)
    assert nothing.answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    told = node.wait_event(unplaced["metadata"]["uid"], "GPUDeviceAllocatedFailed")["message"]
    assert "no GPU has a place for" in told
    assert "delete the Pod" in told
    # What was made before it was known whose it is stays over a restart, and ends with its Pod.
    node.daemon.kill()
    node.daemon.start().wait_ready()
    for each, instance in seen.items():
        assert node.wait_allocation(each)["devices"][0]["gpuUuid"] == instance
    first, last = seen
    node.api.delete(first)
    node.kubelet.forget(first)
    wait_until(lambda: seen[first] not in instances(node), "the end of its instance", 30)
    assert seen[last] in instances(node)
    assert settled(node.wait_allocation(uid)) == settled(allocation)
    assert not [each for each in node.api.events_of(uid) if each["reason"].startswith("GPULimits")]
