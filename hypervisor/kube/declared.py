"""Allocations and workers that files declare, for hosts without Kubernetes. Strict and pure; one file, several of each.

[[allocations]]
name = "notebook"        # the allocation's id
gpu = "0"                # an index or a UUID; left out: any card
compute = "40%"          # or TFLOPS as 312; left out: no limit
vram = "8Gi"
isolation = "soft"
qos = "medium"

[[workers]]
name = "server"
allocation = "notebook"
command = ["/usr/bin/serve", "--port", "8000"]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from hypervisor.model import (
    AllocationSpec,
    Compute,
    DeviceRequest,
    IsolationMode,
    Owner,
    OwnerKind,
    QosClass,
    Resources,
    WorkerSpec,
)
from hypervisor.model.quantity import QuantityError, parse_bytes, parse_compute


class DeclarationError(ValueError):
    """A file that can't be used; the text says where and why."""


class _Declared(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    gpu: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    compute: str = ""
    compute_request: str = ""
    vram: str = ""
    vram_request: str = ""
    isolation: Literal["shared", "soft", "hard", "partitioned"] = "soft"
    partition: Annotated[str, msgspec.Meta(max_length=64)] = ""
    qos: Literal["low", "medium", "high", "critical"] = "medium"


class _Worker(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,50}$")]
    allocation: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    command: Annotated[list[str], msgspec.Meta(min_length=1, max_length=256)]


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    allocations: list[_Declared] = []
    workers: list[_Worker] = []


# Of the ids of workers that files declare: it tells them from those that others started.
WORKER_PREFIX = "declared-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What one file declares."""

    allocations: tuple[AllocationSpec, ...] = ()
    workers: tuple[WorkerSpec, ...] = ()


def read_declarations(text: str, *, file: str) -> Declared:
    """What one file declares; its name is given for messages and owns the allocations. Raises DeclarationError."""
    try:
        found = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{file} is not TOML: {error}") from error
    except RecursionError:
        raise DeclarationError(f"{file} is not TOML that anybody can mean: it is nested too deep") from None
    except msgspec.ValidationError as error:
        raise DeclarationError(f"{file}: {error}") from error
    for names, what in (
        ([each.name for each in found.allocations], "allocation"),
        ([each.name for each in found.workers], "worker"),
    ):
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"{file}: declares {name!r} twice; give each {what} a name of its own")
    return Declared(
        allocations=tuple(_spec(each, file) for each in found.allocations),
        workers=tuple(
            WorkerSpec(
                worker_id=f"{WORKER_PREFIX}{each.name}", command=tuple(each.command), allocation_id=each.allocation
            )
            for each in found.workers
        ),
    )


def _spec(declared: _Declared, file: str) -> AllocationSpec:
    requests = Resources(
        compute=_compute(declared.compute_request, declared, file),
        vram_bytes=_bytes(declared.vram_request, declared, file),
    )
    limits = Resources(
        compute=_compute(declared.compute, declared, file), vram_bytes=_bytes(declared.vram, declared, file)
    )
    if declared.gpu and declared.count > 1:
        raise DeclarationError(f"{file}: {declared.name}: a named gpu is one GPU, and count says {declared.count}")
    request = DeviceRequest(gpu=declared.gpu, requests=requests, limits=limits, partition=declared.partition)
    return AllocationSpec(
        allocation_id=declared.name,
        owner=Owner(kind=OwnerKind.DECLARED, name=file),
        devices=(request,) * declared.count,
        isolation=IsolationMode(declared.isolation),
        qos=QosClass(declared.qos),
    )


def _compute(text: str, declared: _Declared, file: str) -> Compute | None:
    try:
        return parse_compute(text) if text else None
    except QuantityError as error:
        raise DeclarationError(f"{file}: {declared.name}: {error}") from error


def _bytes(text: str, declared: _Declared, file: str) -> int | None:
    try:
        return parse_bytes(text) if text else None
    except QuantityError as error:
        raise DeclarationError(f"{file}: {declared.name}: {error}") from error
