"""The part of a Pod that matters to a node, from its JSON. What is not read is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from hypervisor.kube.names import INDEX_RESOURCE, MIG_RESOURCE, NATIVE_RESOURCE, PREFIX, WORKLOAD
from hypervisor.kube.quantity import BadQuantityError, parse_quantity

# What the API server takes as a name.
LONGEST_NAME = 253
_TERMINAL = frozenset({"Succeeded", "Failed"})


class PodError(ValueError):
    """JSON that is no usable Pod; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """A container and the extended resources that it asks for."""

    name: str
    resources: tuple[tuple[str, int], ...] = ()

    @property
    def index_resource(self) -> tuple[tuple[str, int], ...]:
        """The index resources that it asks for; one, in a Pod that is right."""
        return tuple(pair for pair in self.resources if pair[0].startswith(INDEX_RESOURCE) and pair[1] > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod. workload: the name of what it belongs to, "" where nobody says. ended: no container of it runs any more,
    nor ever will again."""

    uid: str
    namespace: str
    name: str
    node: str = ""
    annotations: tuple[tuple[str, str], ...] = ()
    containers: tuple[PodContainer, ...] = ()
    ended: bool = False
    deleting: bool = False
    created_at: str = ""
    workload: str = ""

    @property
    def label(self) -> str:
        """The Pod for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def native_gpus(self) -> bool:
        """Does it ask another device plugin for GPUs?"""
        return any(
            name == NATIVE_RESOURCE or name.startswith(MIG_RESOURCE)
            for container in self.containers
            for name, _ in container.resources
        )


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct):
    name: str
    resources: _Resources | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class PodObject(msgspec.Struct):
    """A Pod as the API server sends it; also a bookmark, of which only the version is filled."""

    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None

    @property
    def resource_version(self) -> str:
        return self.metadata.resource_version


def read_pod(content: bytes) -> Pod:
    """A Pod from JSON. Raises PodError."""
    try:
        return to_pod(msgspec.json.decode(content, type=PodObject))
    except msgspec.DecodeError as error:
        raise PodError(f"it is no Pod: {error}") from error


def pod_from_mapping(document: object) -> Pod:
    """A Pod from parsed YAML or JSON. Raises PodError."""
    try:
        return to_pod(msgspec.convert(document, PodObject))
    except msgspec.ValidationError as error:
        raise PodError(f"it is no Pod: {error}") from error


def to_pod(found: PodObject) -> Pod:
    """The values that are kept of a Pod."""
    metadata, spec = found.metadata, found.spec or _Spec()
    annotations = metadata.annotations or {}
    return Pod(
        uid=metadata.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        node=spec.node_name or "",
        annotations=tuple(sorted((key, value) for key, value in annotations.items() if key.startswith(PREFIX))),
        containers=tuple(_containers(spec)),
        ended=found.status is not None and found.status.phase in _TERMINAL,
        deleting=metadata.deletion_timestamp is not None,
        created_at=metadata.creation_timestamp or "",
        # The product's webhook writes the label; users write the annotation.
        workload=((metadata.labels or {}).get(WORKLOAD) or annotations.get(WORKLOAD) or "")[:LONGEST_NAME],
    )


def _containers(spec: _Spec) -> Iterator[PodContainer]:
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        resources = container.resources or _Resources()
        amounts = {**(resources.requests or {}), **(resources.limits or {})}
        # Extended resources have a domain; cpu and memory are nothing to us.
        extended = ((name, _whole(amount)) for name, amount in amounts.items() if "/" in name)
        yield PodContainer(name=container.name, resources=tuple(sorted(extended)))


def _whole(amount: str | float) -> int:
    try:
        return int(parse_quantity(str(amount)))
    except BadQuantityError:
        return 0
