"""What the chart and the plain files hold is taken by a real API server as it stands: no unknown field, no warning."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from buildsupport.manifests import CHART, DEPLOY, HELM, NAMESPACE, render
from buildsupport.native import ROOT
from tests.daemon_process import wait_until
from tests.monitoring.runbooks import commands
from tests.real_kube.cluster import APPLY, Cluster, Refused, path_of

pytestmark = [
    pytest.mark.real_kube,
    pytest.mark.skipif(not HELM.exists(), reason=f"there is no Helm at {HELM}, where `make setup` puts it"),
]
PATCH = "node-reports.yaml"  # no object of its own
STRICT = "fieldManager=tests&force=true&fieldValidation=Strict"
NAMESPACE_OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
VALUES = {
    "defaults": [],
    "everything": [
        "node.workers.enabled=true",
        "node.settings.tflops_ratio=2",
        "node.runtimeClassName=nvidia",
        "image.pullSecrets={a,b}",
        "aggregator.mtls.enabled=true",
        "dashboards.enabled=true",
        "pool.create=true",
        "driverProbe.nodes={gpu-1}",
    ],
    "generated": ["aggregator.tls.source=generated"],
    "alone": ["aggregator.enabled=false", "networkPolicy.enabled=false"],
    "nobody-reads": ["networkPolicy.metricsFrom=null", "node.tolerations=null", "node.nodeSelector=null"],
}
# With the kinds of others: those of the Prometheus operator, and of cert-manager.
OTHERS = {
    "monitoring": [
        "podMonitor.enabled=true",
        "podMonitor.labels.release=p",
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=p",
        "prometheusRule.runbookUrl=https://docs.example/runbooks",
    ],
    "cert-manager": ["aggregator.tls.source=cert-manager", "aggregator.tls.issuer.name=internal"],
}
Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def apply(cluster: Cluster, found: Sequence[Object], *, more: str = "") -> None:
    cluster.warnings.clear()
    for each in found:
        answer = cluster.ask("PATCH", f"{path_of(each)}?{STRICT}{more}", each, kind=APPLY)
        assert answer["kind"] == each["kind"]
        assert cluster.warnings == [], path_of(each)


@pytest.fixture(scope="module")
def kinds(cluster: Cluster) -> Cluster:
    """A server with the namespace and the kinds of deploy/crds, which take effect after a moment."""
    apply(cluster, [NAMESPACE_OBJECT])
    found = [each for file in sorted((DEPLOY / "crds").glob("*.yaml")) for each in objects(file.read_text())]
    apply(cluster, found)
    wait_served(cluster, found)
    return cluster


def wait_served(cluster: Cluster, kinds: Sequence[Object]) -> None:
    """Wait until the server takes objects of the kinds, in their newest version."""

    def served() -> bool:
        for each in kinds:
            group, version = each["spec"]["group"], each["spec"]["versions"][-1]["name"]
            try:
                answer = cluster.ask("GET", f"/apis/{group}/{version}")
            except Refused:
                return False
            if each["spec"]["names"]["plural"] not in {found["name"] for found in answer["resources"]}:
                return False
        return True

    wait_until(served, "the kinds to be served", 60)


@pytest.fixture(scope="module")
def kinds_of_others(kinds: Cluster) -> Cluster:
    """The kinds of others too, from the files of the folder that K8S_CRDS names."""
    folder = os.environ.get("K8S_CRDS")
    if not folder:
        pytest.skip("K8S_CRDS names no folder with the CRDs of the Prometheus operator and of cert-manager")
    found = [each for file in sorted(Path(folder).glob("*.yaml")) for each in objects(file.read_text())]
    apply(kinds, found)
    wait_served(kinds, found)
    return kinds


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_is_taken(kinds: Cluster, values: list[str]) -> None:
    found = objects(render(*(word for value in values for word in ("--set", value))))
    apply(kinds, found, more="&dryRun=All")


@pytest.mark.parametrize("values", sorted((CHART / "values").glob("*.yaml")), ids=lambda path: path.stem)
def test_values_of_examples_are_taken(kinds: Cluster, values: object) -> None:
    apply(kinds, objects(render("--values", str(values))), more="&dryRun=All")


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_objects_for_operators_are_taken_by_their_kinds(kinds_of_others: Cluster, values: list[str]) -> None:
    found = objects(render(*(word for value in values for word in ("--set", value))))
    theirs = [each for each in found if each["apiVersion"].startswith(("monitoring.", "cert-manager."))]
    assert theirs
    apply(kinds_of_others, found, more="&dryRun=All")
    wrong = {**theirs[0], "spec": {**theirs[0]["spec"], "notThere": 1}}
    with pytest.raises(Refused, match="notThere"):
        apply(kinds_of_others, [wrong], more="&dryRun=All")


@pytest.mark.parametrize("name", [name for path in sorted(DEPLOY.glob("*.yaml")) if (name := path.name) != PATCH])
def test_plain_files_are_taken(kinds: Cluster, name: str) -> None:
    found = objects((DEPLOY / name).read_text().replace("GPU-NODE", "gpu-1"))
    if name == "kustomization.yaml":
        assert all((DEPLOY / path).exists() for path in found[0]["resources"])
        return
    apply(kinds, found, more="&dryRun=All")


def test_a_field_that_is_not_there_and_a_warning_would_be_seen(kinds: Cluster) -> None:
    kinds.ask("GET", "/api/v1/componentstatuses")  # a kind that is on its way out
    assert len(kinds.warnings) == 1
    (service,) = [each for each in objects(render()) if each["kind"] == "Service"]
    service["spec"]["ports"][0]["prot"] = "TCP"
    with pytest.raises(Refused, match="prot"):
        apply(kinds, [service], more="&dryRun=All")


@pytest.fixture
def installed(kinds: Cluster) -> Iterator[list[Object]]:
    """The default installation, really made, and taken away again."""
    found = objects(render())
    apply(kinds, found)
    yield found
    for each in reversed(found):
        kinds.ask("DELETE", path_of(each))


def test_the_chart_is_installed_and_stays_as_it_is_when_it_is_applied_again(
    kinds: Cluster, installed: list[Object]
) -> None:
    before = [kinds.ask("GET", path_of(each))["metadata"]["resourceVersion"] for each in installed]
    apply(kinds, installed)
    after = [kinds.ask("GET", path_of(each))["metadata"]["resourceVersion"] for each in installed]
    assert before == after


def test_the_runbooks_kubectl_commands_work(kinds: Cluster, installed: list[Object]) -> None:
    """On an installation whose Pods nobody runs: what asks for logs, a lease or a Secret needs a living one."""
    kubectl = os.environ.get("KUBECTL")
    if not kubectl:
        pytest.skip("KUBECTL names no kubectl")
    config = ["--kubeconfig", str(kinds.directory / "kubeconfig")]
    asked = [words for words in commands() if words[0] == "kubectl" and {"get", "describe", "apply"} & set(words)]
    here = [words for words in asked if not {"lease", "secret"} & set(words)]
    assert len(here) == 7
    for words in here:
        done = subprocess.run(
            [kubectl, *config, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (words, done.stderr)


def test_kustomize_makes_the_same_objects_as_helm(kinds: Cluster) -> None:
    kubectl = os.environ.get("KUBECTL")
    if not kubectl:
        pytest.skip("KUBECTL names no kubectl")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY)], capture_output=True, text=True, check=True, timeout=60)
    made = {path_of(each): each for each in objects(done.stdout)}
    chart = {path_of(each): each for each in objects(render("--set", "namespace.create=true", "--include-crds"))}
    assert made == chart
    config = ["--kubeconfig", str(kinds.directory / "kubeconfig")]
    command = [kubectl, *config, "apply", "--server-side", "--dry-run=server", "-k", str(DEPLOY)]
    applied = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (applied.returncode, applied.stderr) == (0, "")
    assert len(applied.stdout.splitlines()) == len(chart)


def test_helm_installs_upgrades_and_keeps_the_certificate(kinds: Cluster) -> None:
    """Helm itself, against the server: an upgrade finds the Secret that the installation made."""

    def helm(*words: str) -> str:
        config = ["--kubeconfig", str(kinds.directory / "kubeconfig"), "--namespace", NAMESPACE]
        done = subprocess.run([HELM, *words, *config], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/tensor-fusion-aggregator-tls"
    try:
        helm("install", "gpu-hypervisor", str(CHART), "--skip-crds", "--set", "aggregator.tls.source=generated")
        before = kinds.ask("GET", secret)["data"]
        helm("upgrade", "gpu-hypervisor", str(CHART), "--reuse-values", "--set", "aggregator.replicas=3")
        assert kinds.ask("GET", secret)["data"] == before
    finally:
        helm("uninstall", "gpu-hypervisor")
    kinds.ask("DELETE", secret)
