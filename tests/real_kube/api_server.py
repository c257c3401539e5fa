"""A real API server where tests have the fake one: the same methods, and Pods of nodes that nobody runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real_kube.cluster import DEPLOY, MERGE, Cluster, Refused

NAMESPACE = "tensor-fusion-sys"
ACCOUNT = "tensor-fusion-hypervisor-sa"


class RealApiServer:
    """Pods and events of one cluster. The daemon speaks to it as the service account of deploy/node.yaml."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.apply(DEPLOY / "node.yaml")

    def kubeconfig(self, path: Path) -> Path:
        return self.cluster.kubeconfig_of(NAMESPACE, ACCOUNT, path)

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        items = self.cluster.ask("GET", "/api/v1/namespaces/default/pods")["items"]
        return {each["metadata"]["uid"]: each for each in items}

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        metadata = {key: value for key, value in pod["metadata"].items() if key != "uid"}
        return self.cluster.ask("POST", "/api/v1/namespaces/default/pods", {**pod, "metadata": metadata})

    def annotate(self, uid: str, **annotations: str) -> None:
        found = {f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.cluster.ask("PATCH", self._place(uid), {"metadata": {"annotations": found}}, kind=MERGE)

    def set_phase(self, uid: str, phase: str) -> None:
        self.cluster.ask("PATCH", f"{self._place(uid)}/status", {"status": {"phase": phase}}, kind=MERGE)

    def delete(self, uid: str) -> None:
        try:
            self.cluster.ask("DELETE", f"{self._place(uid)}?gracePeriodSeconds=0")
        except (KeyError, Refused) as error:
            # What owned it may have deleted it, or kubelet have ended it, between two requests.
            if isinstance(error, Refused) and error.code != 404:
                raise

    def events_of(self, uid: str) -> list[dict[str, Any]]:
        selector = f"fieldSelector=involvedObject.uid={uid}"
        found: list[dict[str, Any]] = self.cluster.ask("GET", f"/api/v1/namespaces/default/events?{selector}")["items"]
        return found

    def stop(self) -> None:
        """The cluster is not ours to end."""

    def _place(self, uid: str) -> str:
        return f"/api/v1/namespaces/default/pods/{self.pods[uid]['metadata']['name']}"
