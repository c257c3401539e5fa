"""Kubernetes objects as `kubectl get -o json` writes them, from files; nothing here talks to an API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypervisor.doctor.object_shapes import shaped_list
from hypervisor.doctor.root import METADATA, Root, UnreadableError

DIRECTORY = f"{METADATA}/kubernetes"
Object = Mapping[str, Any]
# File below the directory -> what kubectl is asked for.
KINDS: Mapping[str, str] = {
    "nodes": "nodes",
    "pods": "pods -A",
    "events": "events -A",
    "daemonsets": "daemonsets -A",
    "replicasets": "replicasets -A",
    "deployments": "deployments -A",
    "webhooks": "mutatingwebhookconfigurations",
    "crds": "customresourcedefinitions",
    "namespaces": "namespaces",
    "clusters": "tensorfusionclusters",
    "gpupools": "gpupools",
    "gpunodes": "gpunodes",
    "gpus": "gpus.tensor-fusion.ai",
    "workloads": "tensorfusionworkloads -A",
    "connections": "tensorfusionconnections -A",
    "quotas": "gpuresourcequotas -A",
}


@dataclass(frozen=True)
class Objects:
    """Lists of objects by the names of KINDS. A kind that could not be asked for is absent, which is not empty."""

    kinds: Mapping[str, Sequence[Object]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Root) -> Objects:
        """Those that a bundle brings along. Raises UnreadableError."""
        return cls._of(root, DIRECTORY)

    @classmethod
    def read_directory(cls, directory: Path) -> Objects:
        """Those of a directory with KIND.json files. Raises UnreadableError."""
        return cls._of(Root(directory), "")

    @classmethod
    def _of(cls, root: Root, directory: str) -> Objects:
        """A file that is no list of objects is told: without it the checks would answer for an empty cluster."""
        found: dict[str, Sequence[Object]] = {}
        for kind in KINDS:
            name = f"{directory}/{kind}.json"
            data = root.document(name)
            if data is None:
                continue
            try:
                told = msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise UnreadableError(name, f"it is not JSON: {error}") from error
            items = told.get("items", [told] if "metadata" in told else None) if isinstance(told, dict) else None
            if not isinstance(items, list):
                raise UnreadableError(name, f"it is no list as 'kubectl get {KINDS[kind]} -o json' writes it")
            try:
                found[kind] = shaped_list(items)
            except RecursionError as error:
                raise UnreadableError(name, "its objects lie too deep within each other") from error
        return cls(found)

    def known(self, kind: str) -> bool:
        """Whether this kind could be asked for."""
        return kind in self.kinds

    def all(self, kind: str) -> Sequence[Object]:
        """All objects of a kind; empty also where it could not be asked for."""
        return self.kinds.get(kind, ())

    def one(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object of this name."""
        for each in self.all(kind):
            if part(each, "metadata", "name") == name and namespace in (None, part(each, "metadata", "namespace")):
                return each
        return None


def part(value: object, *path: str) -> Any:
    """What lies at a path of keys; None where a step is missing or no object."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def name_of(value: Object) -> str:
    """namespace/name, or the name alone."""
    namespace, name = part(value, "metadata", "namespace"), part(value, "metadata", "name") or "?"
    return f"{namespace}/{name}" if namespace else str(name)


def labels_of(value: Object) -> Mapping[str, str]:
    """Labels of an object."""
    return part(value, "metadata", "labels") or {}


def annotations_of(value: Object) -> Mapping[str, str]:
    """Annotations of an object."""
    return part(value, "metadata", "annotations") or {}


def quantity(value: object) -> int:
    """A count as Kubernetes writes it; 0 where there is none."""
    text = str(value) if value is not None else ""
    return int(text) if text.isdecimal() else 0
