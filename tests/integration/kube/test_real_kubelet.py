"""A whole node: real control plane, real kubelet, our daemon on a simulated machine, and processes as containers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from hypervisor.kube.checkpoint import read_checkpoint
from hypervisor.kube.indices import resource_names
from hypervisor.v1 import podresources_v1_pb2 as api
from hypervisor.v1 import podresources_v1_pb2_grpc as api_grpc
from tests.daemon_process import wait_until
from tests.kube_fakes.node import GIB, INDEX_0, pod, settled
from tests.real_kube import kubelet as real_kubelet
from tests.real_kube.cluster import Refused, missing
from tests.real_kube.node import SECONDS, RealNode, real_node
from tests.simulated_load import LOAD

pytestmark = [pytest.mark.real_kube, pytest.mark.slow]
GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


@pytest.fixture(scope="module")
def node() -> Iterator[RealNode]:
    if why := missing() or real_kubelet.missing():
        pytest.skip(why)
    with real_node() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(node: RealNode) -> Iterator[None]:
    yield
    node.clear()


def test_a_deployment_of_three_replicas_is_limited(node: RealNode) -> None:
    """From `kubectl apply` to enforced limits, with no scheduler and no webhook of ours."""
    container = pod("unnamed")["spec"]["containers"][0] | {
        "command": ["sh", "-c", f"{LOAD} --idle --grow=134217728 --seconds=0; exec sleep 3600"],
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "SIM_GROUP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    node.run_deployment("replicated", {"compute_percent_limit": "30", "vram_limit": "2Gi"}, container)
    try:
        wait_until(lambda: len(node.allocations()) == 3, "three allocations", SECONDS)
        names = [each["spec"]["owner"]["pod"]["name"] for each in node.allocations().values()]
        full = 2 * GIB - 134217728 - GIB // 2
        wait_until(lambda: all(node.peaks().get(name, 0) > full for name in names), "the replicas to fill up", SECONDS)
        assert all(node.peaks()[name] <= 2 * GIB for name in names), node.peaks()
        for uid in node.allocations():
            node.wait_event(uid, "GPUDeviceAllocated")
    finally:
        node.end_deployment("replicated")


def test_kubelet_and_the_daemon_restart_under_running_pods(node: RealNode) -> None:
    uids = [node.run_pod(f"steady-{number}", **GOOD) for number in range(3)]
    before = {uid: settled(node.wait_allocation(uid)) for uid in uids}
    node.wait_running(*uids)
    registrations = node.metric("gpuhv_device_plugin_registrations_total")
    node.kubelet.restart()
    wait_until(
        lambda: node.metric("gpuhv_device_plugin_registrations_total") >= registrations + len(resource_names()),
        "all to be registered with the new kubelet",
        SECONDS,
    )
    node.wait_registered()
    node.daemon.kill()
    node.daemon.start().wait_ready()
    node.wait_followed()
    later = node.run_pod("later", **GOOD)
    node.wait_allocation(later)
    node.wait_running(*uids, later)
    assert {uid: settled(node.wait_allocation(uid)) for uid in uids} == before
    assert node.metric("gpuhv_device_plugin_mismatches_total") == 0


def test_kubelets_own_checkpoint_is_believed_and_gives_lost_grants_back(node: RealNode) -> None:
    uids = [node.run_pod(f"lost-{number}", **GOOD) for number in range(2)]
    before = {uid: node.wait_allocation(uid) for uid in uids}
    node.wait_running(*uids)
    checkpoint = (node.kubelet.root / "device-plugins/kubelet_internal_checkpoint").read_bytes()
    assert {each.pod_uid for each in read_checkpoint(checkpoint) if each.resource == INDEX_0} >= set(uids)
    node.daemon.kill()
    shutil.rmtree(node.daemon.base_directory)
    for name in ("allocations/*.json", "kubernetes/grants/*.json"):
        for path in node.daemon.state_directory.glob(name):
            path.unlink()
    node.daemon.start().wait_ready()
    node.wait_followed()
    for uid in uids:
        again = node.wait_allocation(uid)
        assert again["directory"] == before[uid]["directory"]
        assert again["devices"][0]["gpuUuid"] == before[uid]["devices"][0]["gpuUuid"]


def test_exporters_are_told_cards_in_place_of_indices(node: RealNode) -> None:
    uid = node.run_pod("watched", **GOOD)
    card = node.wait_allocation(uid)["devices"][0]["gpuUuid"]

    def told() -> list[tuple[str, str, list[str]]]:
        with grpc.insecure_channel(node.proxy) as channel:
            reply = api_grpc.PodResourcesListerStub(channel).List(api.ListPodResourcesRequest(), timeout=10)
        return [
            (pod.name, devices.resource_name, list(devices.device_ids))
            for pod in reply.pod_resources
            for container in pod.containers
            for devices in container.devices
        ]

    wait_until(lambda: told() == [("watched", "nvidia.com/gpu", [card])], "the proxy's answer", SECONDS)


def test_a_wrong_demand_is_an_event_and_the_other_pod_runs(node: RealNode) -> None:
    good = node.run_pod("good", **GOOD)
    wrong = node.run_pod("wrong", vram_limit="lots")
    assert '"lots"' in node.wait_event(wrong, "AnnotationInvalid")["message"]
    node.wait_allocation(good)
    node.wait_running(good)
    assert wrong not in node.allocations()


def test_pods_that_end_give_back(node: RealNode) -> None:
    uid = node.run_pod("short", **GOOD)
    directory = Path(node.wait_allocation(uid)["directory"])
    node.wait_running(uid)
    node.api.delete(uid)
    wait_until(lambda: not node.allocations(), "the end of the allocation", SECONDS)
    wait_until(lambda: not directory.exists(), "the end of its files")


@contextmanager
def without_api_server(node: RealNode) -> Iterator[None]:
    """The API server is killed, and the same one is started again."""
    directory = node.api.cluster.directory
    pid = int((directory / "pids/kube-apiserver").read_text())
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        # By a shell that ends: who ends the cluster ends it by its pid.
        script = '"$@" </dev/null >"$0" 2>&1 & echo $!'
        log = str(directory / "log/kube-apiserver-again")
        again = subprocess.run(["sh", "-c", script, log, *command], capture_output=True, check=True)
        (directory / "pids/kube-apiserver").write_bytes(again.stdout)
        wait_until(lambda: _answers(node), "the API server to answer again", SECONDS)


def _answers(node: RealNode) -> bool:
    try:
        return bool(node.api.cluster.ask("GET", "/api/v1/nodes")["items"])
    except (OSError, Refused):
        return False


def test_an_outage_of_the_api_server_changes_nothing_for_pods_that_run(node: RealNode) -> None:
    """Nor does a restart of the daemon in it; what ended meanwhile is given back afterwards."""
    uids = [node.run_pod(f"through-{number}", **GOOD) for number in range(2)]
    before = {uid: settled(node.wait_allocation(uid)) for uid in uids}
    node.wait_running(*uids)
    with without_api_server(node):
        wait_until(lambda: "ApiServerUnreachable" in node.conditions(), "the condition", SECONDS)
        steps = node.metric("gpuhv_binder_steps_total")
        wait_until(lambda: node.metric("gpuhv_binder_steps_total") > steps + 2, "further comparisons", SECONDS)
        assert {uid: settled(each) for uid, each in node.allocations().items()} == before
        node.daemon.kill()
        node.daemon.start().wait_ready()
        node.wait_followed()
        wait_until(lambda: node.metric("gpuhv_binder_steps_total") > 2, "comparisons after the restart", SECONDS)
        assert {uid: settled(each) for uid, each in node.allocations().items()} == before
        assert all((Path(each["directory"]) / "shm").exists() for each in before.values())
    wait_until(lambda: "ApiServerUnreachable" not in node.conditions(), "the end of the condition", SECONDS)
    assert {uid: settled(each) for uid, each in node.allocations().items()} == before
    node.api.delete(uids[0])
    wait_until(lambda: set(node.allocations()) == {uids[1]}, "the end of the first", SECONDS)
