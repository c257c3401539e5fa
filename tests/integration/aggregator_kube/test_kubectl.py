"""What people type, against a real API server: the commands of the handbook, on what the aggregator wrote."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable

import pytest

from tests.fleet import messages
from tests.fleet.process import AggregatorProcess, wait_until
from tests.fleet.stream import ReportStream
from tests.integration.aggregator_kube.conftest import GROUP, Kube
from tests.real_kube.cluster import DEPLOY, Refused

pytestmark = [pytest.mark.real_kube, pytest.mark.slow]

Replica = Callable[..., AggregatorProcess]
A0 = messages.name("node-a", 0)


@pytest.fixture
def kubectl(kube: Kube) -> Callable[[str], str]:
    def run(command: str) -> str:
        arguments = shlex.split(command)
        program = os.environ.get("KUBECTL", "kubectl")
        assert arguments.pop(0) == "kubectl"
        done = subprocess.run(
            [program, "--kubeconfig", str(kube.cluster.directory / "kubeconfig"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def reported(kube: Kube, replica: Replica) -> None:
    process = replica()
    kube.cluster.apply(DEPLOY / "gpupool.yaml")
    labels = {"nvidia.com/gpu.present": "true"}
    kube.ask(
        "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": labels}}
    )
    cluster = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "TensorFusionCluster",
        "metadata": {"name": "home"},
        "spec": {"gpuPools": [{"name": "shared"}]},
    }
    kube.ask("POST", f"{GROUP}/tensorfusionclusters", cluster)
    pool = kube.ask("GET", f"{GROUP}/gpupools/shared")
    named = {
        "apiVersion": pool["apiVersion"],
        "kind": "GPUPool",
        "metadata": {"name": "home-shared"},
        "spec": pool["spec"],
    }
    kube.ask("POST", f"{GROUP}/gpupools", named)
    with ReportStream(process.address) as stream:
        stream.send(messages.hello("node-a"))
        stream.wait_for("welcome")
        gpus = [messages.gpu("node-a", index, peers=2) for index in range(2)]
        stream.send(messages.snapshot(messages.revision(1, 1), messages.state("node-a", gpus=gpus)))
        stream.send(messages.events(messages.event("node-a", 1, 1)))
        stream.wait_for_revision(1, 1)
        stream.wait_for_event(1, 1)

        def running() -> bool:
            found = kube.ask("GET", f"{GROUP}/tensorfusionclusters/home")
            return bool(found.get("status", {}).get("phase") == "Running")

        wait_until(running, "the cluster runs")


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize("kube", [pytest.param("real")], indirect=True)
def test_the_commands_of_the_handbook(kubectl: Callable[[str], str]) -> None:
    everything = kubectl("kubectl get tensorfusioncluster,gpupool,gpunode,gpu")
    for name in ("tensorfusioncluster.tensor-fusion.ai/home", "gpupool.tensor-fusion.ai/shared", f"/{A0}"):
        row = next(line for line in everything.splitlines() if name in line)
        assert "Running" in row
    assert "node-a" in kubectl("kubectl get nodes -l nvidia.com/gpu.present=true")
    assert kubectl("kubectl get gpunode").splitlines()[1].split()[:3] == ["node-a", "Running", "1978"]
    kubectl("kubectl get pods -n tensor-fusion-sys -l tensor-fusion.ai/component=hypervisor -o wide")
    columns = (
        "kubectl get gpu -o custom-columns='NAME:.metadata.name,MODEL:.status.gpuModel,PHASE:.status.phase,"
        "USED_BY:.status.usedBy,CAPACITY:.status.capacity'"
    )
    row = next(line for line in kubectl(columns).splitlines() if line.startswith(A0))
    for value in ("NVIDIA H100 80GB HBM3", "Running", "tensor-fusion", "map[tflops:989 vram:81920Mi]"):
        assert value in row
    modes = (
        "kubectl get gpu -o custom-columns='NAME:.metadata.name,MODEL:.status.gpuModel,PHASE:.status.phase,"
        "USED_BY:.status.usedBy,MODE:.status.isolationMode,ACTIVE_MODE:.status.activeIsolationMode,"
        "AVAILABLE:.status.available'"
    )
    row = next(line for line in kubectl(modes).splitlines() if line.startswith(A0))
    assert "soft" in row
    assert "map[tflops:989 vram:81920Mi]" in row
    selector = kubectl("kubectl get gpupool shared -o jsonpath='{.spec.nodeManagerConfig.nodeSelector}'")
    assert "nvidia.com/gpu.present" in selector
    assert "Running" in kubectl("kubectl describe gpunode node-a")
    for command in (
        "kubectl get tensorfusionworkload,tensorfusionconnection -n default",
        "kubectl get gpuresourcequota -n default",
        "kubectl get tensorfusionconnection -n default",
        "kubectl get gpunodeclaim,gpunodeclass,providerconfig,schedulingconfigtemplate",
        "kubectl get workloadprofile -n default",
    ):
        kubectl(command)


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize("kube", [pytest.param("real")], indirect=True)
def test_columns_and_events(kubectl: Callable[[str], str]) -> None:
    head = kubectl("kubectl get gpu").splitlines()[0]
    for column in ("GPU MODEL", "PHASE", "TOTAL TFLOPS", "TOTAL VRAM", "AVAILABLE TFLOPS", "USED BY", "NODE"):
        assert column in head
    head = kubectl("kubectl get gpupool").splitlines()[0]
    for column in ("PHASE", "TFLOPS OVERSUBSCRIPTION", "MODE", "TOTAL NODES", "TOTAL GPU", "AVAILABLE VRAM"):
        assert column in head
    assert "GpuLost" in kubectl("kubectl get events --field-selector type=Warning --sort-by=.lastTimestamp")
    assert "GpuLost" in kubectl(f"kubectl get events --field-selector involvedObject.name={A0}")
    described = kubectl(f"kubectl describe gpu {A0}")
    assert "GpuLost" in described.split("Events:")[1]


@pytest.mark.parametrize("kube", [pytest.param("real")], indirect=True)
def test_schemas_and_rules_refuse_what_means_nothing(kube: Kube) -> None:
    place = f"{GROUP}/namespaces/default/tensorfusionworkloads"

    def workload(spec: dict[str, object]) -> dict[str, object]:
        return {
            "apiVersion": "tensor-fusion.ai/v1",
            "kind": "TensorFusionWorkload",
            "metadata": {"name": "w"},
            "spec": spec,
        }

    for spec, why in (
        ({"resources": {"requests": {"tflops": "1", "compute": "50"}}}, "exclude each other"),
        ({"replicas": 1, "gangScheduling": {"minMembers": 2}}, "at most replicas"),
        ({"gangScheduling": {"minMembers": 1}}, "0 or at least 2"),
        ({"qos": "best"}, "Unsupported value"),
        ({"gpuCount": 129}, "less than or equal to 128"),
        ({"resources": {"requests": {"vram": "a lot"}}}, "should match"),
    ):
        with pytest.raises(Refused, match=why):
            kube.ask("POST", place, workload(spec))
    made = kube.ask("POST", place, workload({"replicas": 2, "gangScheduling": {"minMembers": 2}}))
    assert made["spec"]["isolation"] == "soft"
    kube.ask("DELETE", f"{place}/w")
    pool = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUPool", "metadata": {"name": "p"}, "spec": {}}
    with pytest.raises(Refused, match="nodeManagerConfig: Required value"):
        kube.ask("POST", f"{GROUP}/gpupools", pool)


@pytest.mark.parametrize("kube", [pytest.param("real")], indirect=True)
def test_every_kind_is_structural(kube: Kube) -> None:
    for file in (DEPLOY / "crds").glob("*.yaml"):
        name = f"{file.stem}.tensor-fusion.ai"
        found = kube.ask("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, conditions


@pytest.mark.parametrize("kube", [pytest.param("real")], indirect=True)
def test_the_rights_of_the_manifest_are_the_least(kube: Kube) -> None:
    """That they are enough, the other tests show: all of them run with these."""
    user = {"Impersonate-User": "system:serviceaccount:tensor-fusion-sys:tensor-fusion-aggregator-sa"}
    for verb, group, resource, namespace in (
        ("update", "tensor-fusion.ai", "gpupools", ""),
        ("delete", "tensor-fusion.ai", "gpupools", ""),
        ("get", "", "secrets", "tensor-fusion-sys"),
        ("list", "", "pods", "default"),
        ("delete", "", "pods", "default"),
        ("patch", "", "nodes", ""),
        ("create", "", "pods", "tensor-fusion-sys"),
    ):
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        review = kube.cluster.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, user=user)
        assert review["status"]["allowed"] is False, attributes
