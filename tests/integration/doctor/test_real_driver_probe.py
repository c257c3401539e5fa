"""The driver probe's Job on a real API server, with the controllers of Jobs and of service accounts.

No kubelet runs: the gate is started here, with what the Job's Pod would give it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.daemon_process import wait_until
from tests.integration.doctor.command import doctor
from tests.real_kube.cluster import APPLY, DEPLOY, MERGE, Cluster, missing, path_of, running_cluster

pytestmark = [pytest.mark.real_kube, pytest.mark.slow]
NODE, NAMESPACE, ACCOUNT = "gpu-node-01", "tensor-fusion-sys", "tensor-fusion-driver-probe"
JOB = f"driver-probe-{NODE}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STRICT = "fieldManager=tests&force=true&fieldValidation=Strict"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with running_cluster(K8S_WITH="kube-controller-manager") as found:
        found.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        found.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}})
        yield found


def pod_of_the_job(cluster: Cluster) -> dict[str, Any]:
    found = cluster.ask("GET", f"{PODS}?labelSelector=batch.kubernetes.io/job-name%3D{JOB}")["items"]
    return found[0] if found else {}


def told_to(pod: dict[str, Any], words: list[str]) -> list[str]:
    """The container's arguments as the kubelet expands them, by fields of the Pod."""
    values = {}
    for variable in pod["spec"]["containers"][0]["env"]:
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path == "metadata.namespace":
            values[variable["name"]] = pod["metadata"]["namespace"]
        elif path and path.startswith("metadata.labels['"):
            values[variable["name"]] = pod["metadata"]["labels"][path.removeprefix("metadata.labels['")[:-2]]
    expanded = []
    for word in words:
        for name, value in values.items():
            word = word.replace(f"$({name})", value)
        assert "$(" not in word
        expanded.append(word)
    return expanded


def test_a_failed_probe_is_told_on_its_job(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "driver-probe.yaml").read_text().replace("GPU-NODE", NODE)  # as its head says, with sed
    for document in yaml.safe_load_all(text):
        cluster.ask("PATCH", f"{path_of(document)}?{STRICT}", document, kind=APPLY)
    assert cluster.warnings == []
    pod = wait_until(lambda: pod_of_the_job(cluster), "the Job's Pod")
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": NODE}

    # The gate, on a node with nothing: with the rights of the probe's account alone, as the Pod says.
    config = cluster.kubeconfig_of(NAMESPACE, ACCOUNT, tmp_path / "kubeconfig")
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("HYPERVISOR_NODE_NAME", NODE)
    (container,) = pod["spec"]["containers"]
    words = [
        f"--root={root}" if word.startswith("--root") else "--within=0.1" if word.startswith("--within") else word
        for word in told_to(pod, container["args"])
    ]
    done = doctor(*words[1:], f"--kubeconfig={config}")
    assert done.returncode == 1
    assert "could not be written" not in done.stderr

    # And its end, as the kubelet tells it: the Job fails at once, for the gate itself has tried again.
    place = f"{PODS}/{pod['metadata']['name']}"
    target = {"kind": "Node", "name": NODE}
    cluster.ask("POST", f"{place}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})
    ended = {"name": "gate", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    ended["state"] = {"terminated": {"exitCode": done.returncode}}
    cluster.ask("PATCH", f"{place}/status", {"status": {"phase": "Failed", "containerStatuses": [ended]}}, kind=MERGE)
    job_path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{JOB}"

    def failed() -> dict[str, Any] | None:
        job = cluster.ask("GET", job_path)
        conditions = {each["type"]: each for each in job["status"].get("conditions", ())}
        return job if conditions.get("Failed", {}).get("status") == "True" else None

    job = wait_until(failed, "the Job has failed")
    assert job["status"]["failed"] == 1

    # What `kubectl describe job` shows: the events of its UID.
    selector = f"involvedObject.uid%3D{job['metadata']['uid']}"
    events = cluster.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector={selector}")["items"]
    (event,) = [each for each in events if each["reason"] == "DriverProbeFailed"]
    assert (event["type"], event["source"]["component"]) == ("Warning", "gpu-hypervisor-driver-probe")
    assert event["message"].startswith(f"node {NODE} does not pass: pci.gpu-present: ")
