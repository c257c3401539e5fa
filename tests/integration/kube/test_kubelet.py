"""The device plugin against kubelet's life: restarts, wiped sockets, dropped streams, odd requests."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import threading
import time

import grpc
import pytest

from hypervisor.kube.answers import HostFiles, library_places
from hypervisor.kube.indices import resource_names
from hypervisor.v1 import deviceplugin_v1beta1_pb2 as api
from hypervisor.v1 import deviceplugin_v1beta1_pb2_grpc as api_grpc
from tests.daemon_process import wait_until
from tests.kube_fakes.kubelet import AdmissionError, FakeKubelet
from tests.kube_fakes.node import INDEX_0, KubeNode, host_path, pod, settled


def plugin_call(node: KubeNode, *containers: list[str], resource: str = "index-0"):
    """Allocate as a kubelet of another version may call it."""
    socket = node.kubelet.plugins / f"tensor-fusion-{resource}.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        return api_grpc.DevicePluginStub(channel).Allocate(
            api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=each) for each in containers]
            ),
            timeout=10,
        )


def test_all_resources_are_registered_once_and_served_before(shared_node: KubeNode) -> None:
    names = [resource for resource, _ in shared_node.kubelet.registrations]
    assert sorted(names) == sorted(resource_names())
    assert all(shared_node.kubelet.allocatable(name) >= 128 for name in names)


def test_several_containers_in_one_call(shared_node: KubeNode) -> None:
    reply = plugin_call(shared_node, ["0-100"], ["0-101", "0-102"])
    directories = {
        mount.host_path
        for answer in reply.container_responses
        for mount in answer.mounts
        if mount.host_path.endswith("shm")
    }
    assert len(directories) == 2
    for answer in reply.container_responses:
        files = HostFiles(limiter="64", preload="", limiter_32="32" if platform.machine() == "x86_64" else "")
        modes = {mount.container_path: mount.read_only for mount in answer.mounts}
        assert modes == {
            "/run/tensor-fusion/shm/shm": True,
            "/run/tensor-fusion/shm/usage": False,
            **{path: True for path, _ in library_places(files)},
            "/etc/ld.so.preload": True,
        }
        assert answer.envs["TF_SHM_PATH"] == "/run/tensor-fusion/shm/shm"
        assert answer.envs["TF_ISOLATION_MODE"] == "soft"


@pytest.mark.parametrize("ids", [[], ["1-0"], ["0-256"], ["../../etc"], ["0-1", "x" * 100_000]])
def test_a_foreign_index_is_refused_with_a_reason_and_leaves_nothing(shared_node: KubeNode, ids: list[str]) -> None:
    directory = shared_node.daemon.base_directory / "by-uid"
    before = {path.name for path in directory.iterdir()}
    with pytest.raises(grpc.RpcError) as refused:
        plugin_call(shared_node, ["0-103"], ids)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "INVALID_ARGUMENT" in refused.value.details()
    assert {path.name for path in directory.iterdir()} == before


def test_kubelet_restarts_twice_quickly_and_has_everything_again(node: KubeNode) -> None:  # 9.3 rows 38, 42, 44
    node.kubelet.restart()
    node.kubelet.restart()
    node.wait_registered()
    document, given = node.run(pod("after", compute_percent_limit="10", vram_limit="1Gi"))
    assert node.wait_allocation(document["metadata"]["uid"])["uid"] in str(
        host_path(given, "/run/tensor-fusion/shm/shm")
    )
    # Its directory made anew, with the socket late: a bind mount or a new kubelet root.
    node.kubelet.stop()
    shutil.rmtree(node.kubelet.directory)
    wait_until(lambda: "KubeletUnreachable" in node.conditions(), "the condition")
    replacement = FakeKubelet(node.kubelet.directory)
    replacement.refuse_registration = 2
    node.kubelet = replacement.start()
    node.wait_registered()
    wait_until(lambda: "KubeletUnreachable" not in node.conditions(), "the condition to go")


def test_a_dropped_stream_is_registered_anew(shared_node: KubeNode) -> None:  # 9.3 row 39
    kubelet = shared_node.kubelet
    before = len(kubelet.registrations)
    kubelet.drop_stream(INDEX_0)
    wait_until(lambda: kubelet.allocatable(INDEX_0) == 0, "the loss of the stream")
    wait_until(lambda: kubelet.allocatable(INDEX_0) > 0, "index_0 again")
    assert [resource for resource, _ in kubelet.registrations[before:]] == [INDEX_0]


@pytest.mark.slow
def test_health_follows_the_node_and_no_list_is_empty(make_node) -> None:
    node = make_node()
    node.start()
    machine = str(node.daemon.machine)

    def fault(*words: str) -> None:
        command = [sys.executable, "-m", "hypervisor", "sim", "fault", "--machine", machine, *words]
        subprocess.run(command, check=True, capture_output=True)

    fault("gpu=0,lost")
    wait_until(lambda: any(gpu["health"] == "HEALTH_STATE_LOST" for gpu in node.gpus()), "the loss")
    capacity = node.kubelet.capacity(INDEX_0)
    assert node.kubelet.allocatable(INDEX_0) == capacity
    for gpu in range(1, 8):
        fault(f"gpu={gpu},lost")
    wait_until(lambda: node.kubelet.allocatable(INDEX_0) == 0, "all to be unhealthy")
    assert node.kubelet.capacity(INDEX_0) == capacity
    fault("--clear", "all")
    wait_until(lambda: node.kubelet.allocatable(INDEX_0) == capacity, "health again", 60)


@pytest.mark.slow
def test_without_kubelet_the_daemon_runs_and_says_so(make_node) -> None:
    node = make_node()
    node.kubelet.stop()
    shutil.rmtree(node.kubelet.directory)
    node.daemon.start().wait_ready()
    wait_until(lambda: "KubeletUnreachable" in node.conditions(), "the condition")
    assert not node.kubelet.directory.exists()
    node.daemon.cli("allocate", "by-hand", "--compute", "10%", "--vram", "1Gi", admin=True)
    assert node.daemon.stop() == 0


def test_the_daemon_restarts_and_its_grants_are_adopted(node: KubeNode) -> None:
    document, given = node.run(pod("kept", compute_percent_limit="20", vram_limit="1Gi"))
    uid = document["metadata"]["uid"]
    before = node.wait_allocation(uid)
    inode = host_path(given, "/run/tensor-fusion/shm/usage").stat().st_ino
    # One that kubelet was answered for, and that nobody knows the Pod of yet.
    late = pod("late", compute_percent_limit="20", vram_limit="1Gi")
    (late_given,) = node.kubelet.admit(late)
    node.daemon.kill()
    node.daemon.start().wait_ready()
    node.wait_registered()
    assert settled(node.wait_allocation(uid)) == settled(before)
    assert host_path(given, "/run/tensor-fusion/shm/usage").stat().st_ino == inode
    assert host_path(late_given, "/run/tensor-fusion/shm/usage").exists()
    node.api.create(late)
    allocation = node.wait_allocation(late["metadata"]["uid"])
    assert allocation["directory"] == str(host_path(late_given, "/run/tensor-fusion/shm/shm").parent)


@pytest.mark.slow
def test_grants_and_allocations_that_were_lost_are_learned_from_kubelets_checkpoint(make_node) -> None:
    """A power cut: the limit files lay in memory, and of the daemon's directory the last seconds are missing."""
    node = make_node().start()
    document, given = node.run(pod("survivor", compute_percent_limit="20", vram_limit="1Gi"))
    uid = document["metadata"]["uid"]
    before = node.wait_allocation(uid)
    node.daemon.kill()
    shutil.rmtree(node.daemon.base_directory)
    for path in (
        *node.daemon.state_directory.glob("allocations/*.json"),
        *node.daemon.state_directory.glob("kubernetes/grants/*"),
    ):
        path.unlink()
    node.daemon.start().wait_ready()
    again = node.wait_allocation(uid)
    assert again["directory"] == before["directory"] == str(host_path(given, "/run/tensor-fusion/shm/shm").parent)
    assert again["devices"][0]["gpuUuid"] == before["devices"][0]["gpuUuid"]
    assert host_path(given, "/run/tensor-fusion/shm/shm").exists()


@pytest.mark.slow
def test_a_daemon_that_is_killed_again_and_again_loses_and_doubles_no_answer(make_node) -> None:
    """Whatever kubelet was answered before a kill has its files and its share after it, and nothing else is there."""
    node: KubeNode = make_node().start()
    asking, answered, count = threading.Event(), [], [0]

    def fill() -> None:
        number = 0
        while not asking.wait(0.02):
            number += 1
            document = node.api.create(pod(f"p-{number}", compute_percent_limit="5", vram_limit="1Gi"))
            try:
                (given,) = node.kubelet.admit(document)
            except AdmissionError:
                node.api.delete(document["metadata"]["uid"])  # as its controller does, which makes another one
                asking.wait(0.05)
            else:
                answered.append((document["metadata"]["uid"], given))
                count[0] += 1
            if len(answered) > 40:  # some end meanwhile
                uid, given = answered.pop(0)
                node.api.delete(uid)
                node.kubelet.forget(uid)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        for round_ in range(4):
            before = count[0]
            wait_until(lambda before=before: count[0] > before + 4, "more answers")
            time.sleep(0.013 * round_)
            node.daemon.kill()
            node.daemon.start().wait_ready()
    finally:
        asking.set()
        filling.join(30)
    expected = {uid: str(host_path(given, "/run/tensor-fusion/shm/shm").parent) for uid, given in answered}

    def shares() -> dict[str, str]:
        return {uid: each["directory"] for uid, each in node.allocations().items()}

    try:
        wait_until(lambda: shares() == expected, "the shares of all that was answered")
    except AssertionError:
        assert shares() == expected  # which says what differs
    # What a kill left of an answer that never came is discarded later, when no container has its ids.
    files = {str(each) for each in (node.daemon.base_directory / "by-uid").iterdir()}
    assert set(expected.values()) <= files
    assert [each for uid in expected for each in node.api.events_of(uid) if each["type"] == "Warning"] == []


@pytest.mark.slow
def test_a_card_that_was_promised_before_a_kill_is_promised_after_it(make_node) -> None:
    """Killed between its answer and the bind: what comes after the restart is not given the same room."""
    node: KubeNode = make_node().start()
    half = {"compute_percent_limit": "50", "vram_limit": "1Gi"}
    node.kubelet.hide = {"early-0", "early-1"}
    early = [node.run(pod(name, **half), known=True)[0]["metadata"]["uid"] for name in sorted(node.kubelet.hide)]
    node.daemon.kill()
    node.daemon.start().wait_ready()
    node.wait_registered()
    node.wait_known()
    late = node.run(pod("late", **half), known=True)[0]["metadata"]["uid"]
    node.wait_allocation(late)
    node.kubelet.hide = set()
    cards = [node.wait_allocation(uid)["devices"][0]["gpuUuid"] for uid in (*early, late)]
    assert cards[0] == cards[1] != cards[2]
