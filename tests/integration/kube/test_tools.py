"""What people and other programs use beside Pods: dry-run, declarations, the PodResources proxy, CDI files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import yaml

from hypervisor.v1 import podresources_v1_pb2 as api
from hypervisor.v1 import podresources_v1_pb2_grpc as api_grpc
from tests.daemon_process import wait_until
from tests.kube_fakes.node import INDEX_0, KubeNode, pod


def dry_run(node: KubeNode, document: dict, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(yaml.safe_dump(document))
    return command(node, path)


def command(node: KubeNode, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hypervisor", "kube", "dry-run", str(path), "--server", node.daemon.admin_address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_dry_run_says_what_would_be_and_why_not(shared_node: KubeNode, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    good = dry_run(shared_node, pod("a", compute_percent_limit="30", vram_limit="8Gi"), file)
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("ok  container main would get 30% compute and 8Gi VRAM")
    assert "as index 1 (1 of tensor-fusion.ai/index_0)" in good.stdout
    wrong = dry_run(shared_node, pod("a", compute_percent_limit="130"), file)
    assert wrong.returncode == 1
    assert '"130"' in wrong.stdout
    too_much = dry_run(shared_node, pod("a", vram_limit="90Gi"), file)
    assert "more than the card" in too_much.stdout
    unasked = dry_run(shared_node, pod("a", resources={}, vram_limit="1Gi"), file)
    assert "no container asks" in unasked.stdout
    no_pod = dry_run(shared_node, {"kind": "Deployment", "metadata": {"name": "x"}}, file)
    assert no_pod.returncode == 2
    assert "is a Deployment and no Pod" in no_pod.stderr
    file.write_text("[" * 100_000)
    bottomless = command(shared_node, file)
    assert bottomless.returncode == 2
    assert "nested too deeply" in bottomless.stderr
    assert shared_node.allocations() == {}


@pytest.mark.slow
def test_proxy_cdi_and_declarations(make_node, tmp_path: Path) -> None:
    declared = tmp_path / "allocations.d"
    declared.mkdir()
    (declared / "a.toml").write_text('[[allocations]]\nname = "notebook"\ngpu = "7"\ncompute = "40%"\nvram = "8Gi"\n')
    node: KubeNode = make_node("--cdi-dir", str(tmp_path / "cdi"), "--allocations-dir", str(declared))
    proxy = f"unix:{node.daemon.directory / 'proxy.sock'}"
    node.daemon.flags = (*node.daemon.flags, "--pod-resources-proxy", proxy)
    node.start()
    document, _ = node.run(pod("a", compute_percent_limit="30", vram_limit="1Gi"))
    card = node.wait_allocation(document["metadata"]["uid"])["devices"][0]["gpuUuid"]

    def entries() -> list:
        with grpc.insecure_channel(proxy) as channel:
            reply = api_grpc.PodResourcesListerStub(channel).List(api.ListPodResourcesRequest(), timeout=5)
        return [
            (pod.name, devices.resource_name, list(devices.device_ids))
            for pod in reply.pod_resources
            for container in pod.containers
            for devices in container.devices
        ]

    wait_until(lambda: entries() == [("a", "nvidia.com/gpu", [card])], "the proxy's answer")
    with grpc.insecure_channel(proxy) as channel:
        stub = api_grpc.PodResourcesListerStub(channel)
        found = stub.Get(api.GetPodResourcesRequest(pod_name="a", pod_namespace="default"), timeout=5)
        assert found.pod_resources.containers[0].devices[0].device_ids == [card]
        resources = stub.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=5).devices
        assert INDEX_0 in {each.resource_name for each in resources}

    # Written before kubelet was answered: the runtime looks the card up at once.
    cards = json.loads((tmp_path / "cdi" / "tensor-fusion.json").read_text())
    assert len(cards["devices"]) == 8
    wait_until(lambda: (tmp_path / "cdi" / "tensor-fusion-allocations.json").exists(), "the file of allocations")

    def limits() -> dict[str, str]:
        items = json.loads(node.daemon.cli("get", "pods", "-o", "json").stdout)["items"]
        return {each["spec"]["allocationId"]: each["devices"][0]["limits"]["vramBytes"] for each in items}

    wait_until(lambda: limits().get("notebook") == str(8 * 2**30), "what is declared")
    worker = '[[workers]]\nname = "server"\nallocation = "notebook"\ncommand = ["sleep", "3600"]\n'
    (declared / "w.toml").write_text(worker)
    (declared / "w.toml").chmod(0o666)
    wait_until(lambda: "DeclarationRejected" in node.conditions(), "a file that others may write to be refused")
    (declared / "w.toml").chmod(0o600)

    def workers() -> dict[str, str]:
        items = json.loads(node.daemon.cli("get", "workers", "-o", "json").stdout)["items"]
        return {each["workerId"]: each["allocationId"] for each in items}

    wait_until(lambda: workers() == {"declared-server": "notebook"}, "the declared worker")
    (declared / "w.toml").unlink()
    wait_until(lambda: not workers(), "the end of the worker that is declared no more")
    (declared / "b.toml").write_text("[[allocations]]\nname = 3\n")
    wait_until(lambda: "DeclarationRejected" in node.conditions(), "the condition")
    (declared / "a.toml").write_text('[[allocations]]\nname = "notebook"\ngpu = "7"\ncompute = "40%"\nvram = "4Gi"\n')
    wait_until(lambda: limits().get("notebook") == str(4 * 2**30), "the changed figure")
    (declared / "b.toml").unlink()
    (declared / "a.toml").unlink()
    wait_until(lambda: "notebook" not in limits(), "the end of what is declared no more")
    wait_until(lambda: "DeclarationRejected" not in node.conditions(), "the condition to go")
