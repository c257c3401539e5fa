"""Real Kubernetes binaries, started and ended by a program that K8S_UP names; and an API server spoken to as people do.

K8S_UP DIR starts etcd and kube-apiserver of K8S_BIN and ETCD_BIN on loopback, and writes DIR/kubeconfig for an
administrator; a program k8s-down beside it ends them.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

NEEDED = ("K8S_BIN", "ETCD_BIN", "K8S_UP")
DEPLOY = Path(__file__).parents[2] / "deploy"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def missing() -> str:
    """Why there is no real cluster here; "" where there is one."""
    unset = [name for name in NEEDED if not os.environ.get(name)]
    return f"real Kubernetes binaries are named by {', '.join(NEEDED)}; unset: {', '.join(unset)}" if unset else ""


class Refused(Exception):
    """What the API server answered; code is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Cluster:
    """One API server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        found = yaml.safe_load((directory / "kubeconfig").read_text())
        cluster = found["clusters"][0]["cluster"]
        self.server: str = cluster["server"]
        self._authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=self._authority)
        self._token: str = found["users"][0]["user"]["token"]
        self.warnings: list[str] = []  # what the server has answered besides

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = "application/json",
        user: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One request as the administrator, or as user: headers that impersonate. Raises Refused."""
        request = urllib.request.Request(
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind, **(user or {})},
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=30) as answer:
                self.warnings += answer.headers.get_all("Warning") or ()
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            # A group that is not served yet is answered in plain words.
            structured = text.startswith("{")
            raise Refused(error.code, json.loads(text).get("message", "") if structured else text.strip()) from None

    def apply(self, file: Path) -> None:
        """As `kubectl apply --server-side -f`. Raises Refused."""
        for document in yaml.safe_load_all(file.read_text()):
            self.ask("PATCH", f"{path_of(document)}?fieldManager=tests&force=true", document, kind=APPLY)

    def delete(self, file: Path) -> None:
        """What the file made is gone."""
        for document in reversed(list(yaml.safe_load_all(file.read_text()))):
            self.ask("DELETE", path_of(document))

    def stop(self) -> None:
        """End the server; what it holds stays."""
        _down(self.directory)

    def start(self) -> None:
        """The same server again, at the same address. It has forgotten what it kept in memory."""
        _up(self.directory)

    def kubeconfig_of(self, namespace: str, service_account: str, path: Path) -> Path:
        """A kubeconfig with a token of a service account, as a Pod has it."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        place = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        token = self.ask("POST", place, review)["status"]["token"]
        authority = base64.b64encode(self._authority.encode()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.server, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        return path


@contextmanager
def running_cluster(**more: str) -> Iterator[Cluster]:
    """A cluster for as long as the block runs; its directory goes with it. more: variables for the program."""
    with tempfile.TemporaryDirectory(prefix="k8s-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        try:
            _up(directory, **more)
            yield Cluster(directory)
        finally:
            _down(directory)


def _up(directory: Path, **more: str) -> None:
    command, surroundings = [os.environ["K8S_UP"], str(directory)], {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=surroundings, check=False)
    assert done.returncode == 0, done.stderr


def _down(directory: Path) -> None:
    tool = Path(os.environ["K8S_UP"]).with_name("k8s-down")
    subprocess.run([tool, directory], capture_output=True, timeout=60, check=False)


_PLURALS = {"NetworkPolicy": "networkpolicies", "ValidatingAdmissionPolicy": "validatingadmissionpolicies"}
_CLUSTERED = frozenset(
    {
        "CustomResourceDefinition",
        "GPUPool",
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)


def path_of(document: Mapping[str, Any]) -> str:
    """Where the object of a manifest lies on the server."""
    group = document["apiVersion"]
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    kind, metadata = document["kind"], document["metadata"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    if kind in _CLUSTERED:
        return f"{root}/{plural}/{metadata['name']}"
    return f"{root}/namespaces/{metadata.get('namespace', 'default')}/{plural}/{metadata['name']}"
