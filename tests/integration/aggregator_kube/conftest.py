"""An API server that the aggregator writes to: a fake one, and a real one where there are binaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.fleet.process import AggregatorProcess, wait_until
from tests.kube_fakes.object_server import ObjectServer
from tests.real_kube.cluster import APPLY, DEPLOY, MERGE, Cluster, Refused, missing, running_cluster

NAMESPACE = "tensor-fusion-sys"
ACCOUNT = "tensor-fusion-aggregator-sa"
GROUP = "/apis/tensor-fusion.ai/v1"
EVENTS = "/apis/events.k8s.io/v1"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpu-hypervisor-aggregator"
_COLLECTIONS = (
    f"{GROUP}/gpus",
    f"{GROUP}/gpunodes",
    f"{GROUP}/gpupools",
    f"{GROUP}/tensorfusionclusters",
    f"{EVENTS}/namespaces/default/events",
    f"{EVENTS}/namespaces/{NAMESPACE}/events",
    "/api/v1/nodes",
    f"/api/v1/namespaces/{NAMESPACE}/pods",
    f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
)
Ask = Callable[..., dict[str, Any]]


class Kube:
    """What tests do with the cluster, as its administrator."""

    def __init__(self, ask: Ask, kubeconfig: Path, fake: ObjectServer | None, cluster: Cluster | None) -> None:
        self.ask = ask
        self.kubeconfig = kubeconfig
        self._fake = fake
        self._cluster = cluster

    @property
    def fake(self) -> ObjectServer:
        if self._fake is None:
            pytest.skip("the fake one only: it does what a real one can't be told to do")
        return self._fake

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def get(self, path: str) -> dict[str, Any] | None:
        try:
            return self.ask("GET", path)
        except Refused as error:
            if error.code != 404:
                raise
            return None

    def items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", path)["items"]
        return found

    def gpu(self, name: str) -> dict[str, Any] | None:
        return self.get(f"{GROUP}/gpus/{name}")

    def gpu_until(self, name: str, right: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.gpu(name)
            return found if found is not None and "status" in found and right(found) else None

        return wait_until(look, what)

    def node_until(self, name: str, right: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.get(f"{GROUP}/gpunodes/{name}")
            return found if found is not None and "status" in found and right(found) else None

        return wait_until(look, what)

    def events(self, reason: str) -> list[dict[str, Any]]:
        return [each for each in self.items(f"{EVENTS}/events") if each.get("reason") == reason]

    def apply(self, path: str, body: dict[str, Any], manager: str = "someone") -> dict[str, Any]:
        return self.ask("PATCH", f"{path}?fieldManager={manager}&force=true", body, kind=APPLY)

    def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self.ask("PATCH", path, body, kind=MERGE)

    def versions(self) -> dict[str, str]:
        """Of all objects of ours."""
        return {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"]
            for collection in ("gpus", "gpunodes")
            for each in self.items(f"{GROUP}/{collection}")
        }

    def clean(self) -> None:
        for path in _COLLECTIONS:
            for each in self.items(path):
                with suppress(Refused):
                    self.ask(
                        "DELETE", f"{path}/{each['metadata']['name']}?gracePeriodSeconds=0&propagationPolicy=Background"
                    )
        with suppress(Refused):
            self.ask("DELETE", LEASE)


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with running_cluster() as cluster:
        for file in sorted((DEPLOY / "crds").glob("*.yaml")):
            cluster.apply(file)
        cluster.apply(DEPLOY / "node.yaml")
        cluster.apply(DEPLOY / "aggregator.yaml")
        wait_until(lambda: _serves(cluster), "all kinds are served")
        yield cluster


def _serves(cluster: Cluster) -> bool:
    names = {each["name"] for each in cluster.ask("GET", GROUP)["resources"]}
    return {file.stem for file in (DEPLOY / "crds").glob("*.yaml")} <= names


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.real_kube, pytest.mark.slow])])
def kube(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kube]:
    if request.param == "real":
        cluster: Cluster = request.getfixturevalue("real_cluster")
        # With the rights that the manifest gives, and no others.
        kubeconfig = cluster.kubeconfig_of(NAMESPACE, ACCOUNT, tmp_path / "kubeconfig")
        made = Kube(cluster.ask, kubeconfig, None, cluster)
        made.clean()
        yield made
        return
    fake = ObjectServer()
    yield Kube(fake.ask, fake.kubeconfig(tmp_path / "kubeconfig"), fake, None)
    fake.close()


@pytest.fixture
def replica(kube: Kube, tmp_path: Path) -> Iterator[Callable[..., AggregatorProcess]]:
    """Starts replicas; waits until one leads, unless told not to."""
    started: list[AggregatorProcess] = []

    def start(name: str = "one", *flags: str, lead: bool = True) -> AggregatorProcess:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        names = ("--namespace", NAMESPACE, "--identity", name, "--lease-seconds", "3")
        # A node of the tests sends no heartbeats.
        process = AggregatorProcess(directory, *names, *flags, heartbeat_seconds=10.0, kubeconfig=kube.kubeconfig)
        process.start()
        started.append(process)
        if lead:
            wait_until(lambda: is_ready(process), f"{name} leads")
        return process

    yield start
    for process in started:
        process.close()


def is_ready(process: AggregatorProcess) -> bool:
    try:
        process.get("/readyz")
    except HTTPError as error:
        error.close()
        return False
    return True


def settle(kube: Kube) -> dict[str, str]:
    """Versions of all objects, once they have not changed for a while."""
    last, since = kube.versions(), time.monotonic()

    def still() -> bool:
        nonlocal last, since
        now = kube.versions()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 1.0

    wait_until(still, "nothing is written any more")
    return last
