"""What a Pod's annotations ask for. Strict: a value that can't be understood is an error that quotes it, never a guess.

Figures are for each GPU. A limit that is left out is the request, and the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar

import msgspec

from hypervisor.kube.names import CONTAINER_GPUS, GPU_IDS, INDEX, PARTITION_UUIDS, PREFIX
from hypervisor.kube.quantity import BadQuantityError, parse_quantity
from hypervisor.model import Compute, IsolationMode, QosClass, Resources
from hypervisor.model.quantity import MAX_BYTES

Value = TypeVar("Value")
MOST_GPUS = 128
_QUOTED = 80  # characters of a wrong value that are shown
# Keys that mean nothing to a node; they are other parts' business.
_OTHERS = frozenset(
    [
        "gpupool",
        "is-local-gpu",
        "sidecar-worker",
        "embedded-worker",
        "dedicated-worker",
        "inject-container",
        "workload",
        "workload-profile",
        "workload-mode",
        "selected-workload",
        "worker-pod-template",
        "autoscale",
        "autoscale-target",
        "gang-enabled",
        "gang-min-members",
        "gang-timeout",
        "require-gpu-topology",
        "gpu-topology-max-tier",
        "gpu-topology-source",
        "eviction-protection",
        "port-number",
        "enabled-replicas",
        "pending-owned-workload",
        "hourly-pricing",
        "effective-hard-sm-percent",
        "gpu-released",
        "gang-group-key",
        "gang-desired-members",
        "gang-required-members",
        "last-sync",
        "pod-counter-key",
        "tf-pod-count",
        "auto-requests",
        "auto-limits",
        "auto-resources",
        "manual-compaction",
        "defrag-evicted",
        "defrag-evicted-since",
        "defrag-evicted-pool",
        "defrag-evict-skip",
        "defrag-evict-skip-since",
        "defrag-evict-skip-pool",
        "defrag-evict-skip-reason",
    ]
)
_OURS = frozenset(
    [
        "vendor",
        "isolation",
        "tflops-request",
        "tflops-limit",
        "vram-request",
        "vram-limit",
        "compute-percent-request",
        "compute-percent-limit",
        "gpu-count",
        "gpu-model",
        "gpu-indices",
        "dedicated-gpu",
        "container-gpu-count",
        "container-gpus",
        "partition",
        "partition-id",
        "qos",
        "disable-features",
        "gpu-ids",
        "index",
        "partition-uuids",
    ]
)


class AnnotationError(ValueError):
    """An annotation that can't be used. The text quotes it and says what is allowed."""

    def __init__(self, key: str, value: str, why: str) -> None:
        shown = value if len(value) <= _QUOTED else f"{value[:_QUOTED]}…"
        shown = shown.encode(errors="backslashreplace").decode()  # YAML may hold half a character
        super().__init__(f"annotation {key}: {json.dumps(shown, ensure_ascii=False)}: {why}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one Pod asks for, on each of count GPUs.

    gpu_ids: named by the scheduler, in lower case; gpu_indices and gpu_model and partition narrow the choice.
    containers: GPUs by container, where the Pod says so: a count, or names.
    """

    isolation: IsolationMode = IsolationMode.SOFT
    qos: QosClass = QosClass.MEDIUM
    requests: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)
    count: int = 1
    gpu_ids: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    gpu_model: str = ""
    partition: str = ""
    exclusive: bool = False
    index: int | None = None
    container_counts: tuple[tuple[str, int], ...] = ()
    container_gpus: tuple[tuple[str, tuple[str, ...]], ...] = ()


def is_ours(annotations: Mapping[str, str]) -> bool:
    """Does a Pod with these annotations ask for a share of a GPU?"""
    return any(key.removeprefix(PREFIX) in _OURS for key in annotations if key.startswith(PREFIX))


def unknown_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Annotations of our prefix that nobody knows: misspelt, or of a later version."""
    keys = (key.removeprefix(PREFIX) for key in annotations if key.startswith(PREFIX))
    return tuple(sorted(f"{PREFIX}{key}" for key in keys if key not in _OURS | _OTHERS))


def parse(annotations: Mapping[str, str]) -> Demand:
    """The demand of these annotations. Raises AnnotationError for the first one that is wrong."""
    read = _Reader(annotations)
    vendor = read.text("vendor")
    if vendor and vendor.lower() != "nvidia":
        raise read.wrong("vendor", "this node shares NVIDIA GPUs only")
    features = {part.strip() for part in read.text("disable-features").split(",") if part.strip()}
    if unknown := sorted(features - {"gpu-opt", "gpu-limiter", "mem-manager", "start-worker"}):
        raise read.wrong("disable-features", f"{unknown[0]} is no feature")
    if "gpu-limiter" in features:
        raise read.wrong("disable-features", "a share is not given without its limits; ask for isolation: shared")
    isolation = read.choice("isolation", IsolationMode, IsolationMode.SOFT)
    exclusive = isolation is IsolationMode.SHARED or read.flag("dedicated-gpu")
    partition = _partition(read, isolation)
    requests, limits = _figures(read, whole_card=exclusive, named=bool(partition or read.list("partition-uuids")))
    gpu_ids = read.list("gpu-ids")
    partition_uuids = read.list("partition-uuids")
    if partition_uuids:
        gpu_ids = tuple(pair.split(":", 1)[0] for pair in partition_uuids)
    count = read.number("gpu-count", 1, MOST_GPUS) or (len(gpu_ids) or 1)
    if gpu_ids and len(gpu_ids) != count:
        raise read.wrong("gpu-ids", f"{len(gpu_ids)} GPUs are named, and gpu-count says {count}")
    if len(set(gpu_ids)) != len(gpu_ids):
        raise read.wrong("gpu-ids", "a GPU is named twice")
    return Demand(
        isolation=isolation,
        qos=read.choice("qos", QosClass, QosClass.MEDIUM),
        requests=requests,
        limits=limits,
        count=count,
        gpu_ids=tuple(name.lower() for name in gpu_ids),
        gpu_indices=_indices(read),
        gpu_model=read.text("gpu-model"),
        partition=partition,
        exclusive=exclusive,
        index=read.number("index", 1, 136),
        container_counts=_container_counts(read),
        container_gpus=_container_gpus(read),
    )


class _Reader:
    """Reads values by their short key."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def text(self, key: str) -> str:
        return self._annotations.get(PREFIX + key, "").strip()

    def wrong(self, key: str, why: str) -> AnnotationError:
        return AnnotationError(PREFIX + key, self._annotations.get(PREFIX + key, ""), why)

    def list(self, key: str) -> tuple[str, ...]:
        text = self.text(key)
        parts = tuple(part.strip() for part in text.split(",")) if text else ()
        if "" in parts:
            raise self.wrong(key, "an entry of the list is empty")
        return parts

    def flag(self, key: str) -> bool:
        text = self.text(key)
        if text not in ("", "true", "false"):
            raise self.wrong(key, 'write "true" or "false"')
        return text == "true"

    def choice(self, key: str, kind: type[Value], default: Value) -> Value:
        text = self.text(key)
        if not text:
            return default
        values: Mapping[str, Value] = {each.value: each for each in kind}  # type: ignore[attr-defined]
        if text not in values:
            raise self.wrong(key, f"write one of {', '.join(values)}")
        return values[text]

    def number(self, key: str, least: int, most: int) -> int | None:
        text = self.text(key)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 6 and least <= int(text) <= most):
            raise self.wrong(key, f"write a whole number from {least} to {most}")
        return int(text)

    def quantity(self, key: str, convert: Callable[[Decimal], Value]) -> Value | None:
        text = self.text(key)
        if not text:
            return None
        try:
            return convert(parse_quantity(text))
        except ValueError as error:
            raise self.wrong(key, str(error)) from error

    def mapping(self, key: str) -> Mapping[str, object]:
        text = self.text(key)
        if not text:
            return {}
        try:
            # Which has no half of a character in its texts: the standard library reads such, and nobody can write it.
            found = msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise self.wrong(key, 'it is no JSON such as {"main": 1}') from error
        if not isinstance(found, dict) or not found:
            raise self.wrong(key, 'write a JSON object such as {"main": 1}')
        return found


def _figures(read: _Reader, *, whole_card: bool, named: bool) -> tuple[Resources, Resources]:
    """Requests and limits. named: a partition is named, whose figures are its own."""
    percent_keys, tflops_keys = ("compute-percent-request", "compute-percent-limit"), ("tflops-request", "tflops-limit")
    in_percent = next((key for key in percent_keys if read.text(key)), "")
    in_tflops = next((key for key in tflops_keys if read.text(key)), "")
    if in_percent and in_tflops:
        raise read.wrong(in_percent, f"{PREFIX}{in_tflops} is given too; say compute in percent or in TFLOPS")
    convert, keys = (_percent, percent_keys) if in_percent else (_tflops, tflops_keys)
    request, limit = read.quantity(keys[0], convert), read.quantity(keys[1], convert)
    vram_request, vram_limit = read.quantity("vram-request", _bytes), read.quantity("vram-limit", _bytes)
    if whole_card:
        return Resources(compute=Compute(percent=Decimal(100))), Resources()
    if named:
        return Resources(), Resources()
    if request is None and limit is None and vram_request is None and vram_limit is None:
        raise AnnotationError(
            f"{PREFIX}tflops-request",
            "",
            "tflops request is not set; say tflops-request or compute-percent-request, "
            "and vram-request, or isolation: shared for a whole card",
        )
    _check_order(read, keys, request, limit)
    if vram_request is not None and vram_limit is not None and vram_request > vram_limit:
        raise read.wrong("vram-request", f"it is more than {PREFIX}vram-limit")
    return (
        Resources(compute=request or limit, vram_bytes=vram_request or vram_limit),
        Resources(compute=limit or request, vram_bytes=vram_limit or vram_request),
    )


def _check_order(read: _Reader, keys: tuple[str, str], request: Compute | None, limit: Compute | None) -> None:
    if request is None or limit is None:
        return
    asked = request.percent if request.percent is not None else request.tflops
    allowed = limit.percent if limit.percent is not None else limit.tflops
    if asked is not None and allowed is not None and asked > allowed:
        raise read.wrong(keys[0], f"it is more than {PREFIX}{keys[1]}")


def _percent(value: Decimal) -> Compute:
    if not 0 < value <= 100:
        raise BadQuantityError("a percentage is above 0 and at most 100")
    return Compute(percent=value)


def _tflops(value: Decimal) -> Compute:
    if not 0 < value <= 1_000_000:
        raise BadQuantityError("TFLOPS are above 0 and at most 1000000")
    return Compute(tflops=value)


def _bytes(value: Decimal) -> int:
    if value != value.to_integral_value() or not 0 < value <= MAX_BYTES:
        raise BadQuantityError("it is no whole number of bytes above 0 and up to 16Ti")
    return int(value)


def _indices(read: _Reader) -> tuple[int, ...]:
    parts = read.list("gpu-indices")
    if any(not (part.isascii() and part.isdigit() and len(part) < 4) for part in parts):
        raise read.wrong("gpu-indices", "write indices of GPUs such as 0,2")
    return tuple(int(part) for part in parts)


def _partition(read: _Reader, isolation: IsolationMode) -> str:
    for key in ("partition", "partition-id"):
        if read.text(key):
            if isolation is not IsolationMode.PARTITIONED:
                raise read.wrong(key, f"a partition is for isolation: partitioned, and the Pod has {isolation.value}")
            return read.text(key)
    return ""


def _container_counts(read: _Reader) -> tuple[tuple[str, int], ...]:
    found = []
    for name, count in read.mapping("container-gpu-count").items():
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_GPUS:
            raise read.wrong("container-gpu-count", f"the count of {name} is no number from 1 to {MOST_GPUS}")
        found.append((name, count))
    return tuple(sorted(found))


def _container_gpus(read: _Reader) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for name, ids in read.mapping("container-gpus").items():
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) and each for each in ids):
            raise read.wrong("container-gpus", f"the GPUs of {name} are no list of ids")
        found.append((name, tuple(each.lower() for each in ids)))
    return tuple(sorted(found))


# The system-written keys, for the policy that protects them.
SYSTEM_KEYS = (GPU_IDS, INDEX, CONTAINER_GPUS, PARTITION_UUIDS)
