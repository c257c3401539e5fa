"""What a client asks for: from the API with every check that needs no state, and back for our own clients.

Strict: what can't be understood in full is refused with the path of the field, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

from hypervisor.model import (
    AllocationSpec,
    Compute,
    ComputePolicy,
    DeviceRequest,
    IsolationMode,
    ObjectKind,
    Owner,
    OwnerKind,
    QosClass,
    Refusal,
    RefusalReason,
    Resources,
    Revision,
)
from hypervisor.model.quantity import MAX_BYTES
from hypervisor.rpc.convert import enums
from hypervisor.v1 import types_pb2 as pb

MOST_PARTITION_LETTERS = 64
MAX_DEVICES = 16  # what the limit files hold
MAX_LABELS = 32
MAX_TEXT = 253
MAX_TFLOPS = Decimal(1_000_000)
_ALLOCATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,7}(?:\.\d{1,6})?", re.ASCII)
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
Value = TypeVar("Value")


def shown(text: str) -> str:
    """A text of a client's for a message: quoted, ASCII, short."""
    return ascii(text) if len(text) <= 70 else f"{text[:70]!a}..."


def invalid(field: str, message: str, remedy: str = "") -> Refusal:
    """The refusal of a field that can't be used."""
    return Refusal(RefusalReason.INVALID_ARGUMENT, message, field=field, remedy=remedy)


def identifier(text: str, field: str) -> str:
    """An allocation id. '.' and '..' and slashes can't pass: it names files."""
    if not text:
        raise invalid(field, "the name of the allocation is empty", "give it a name")
    if _ALLOCATION_ID.fullmatch(text) is None:
        raise invalid(
            field,
            f"{shown(text)} is not a name for an allocation",
            "use letters, digits, '-', '_' and '.', at most 63, beginning with a letter or digit",
        )
    return text


def gpu_name(text: str, field: str) -> str:
    """A UUID or an index, as far as that can be seen without the inventory."""
    if _GPU.fullmatch(text) is None:
        raise invalid(field, f"{shown(text)} is neither the UUID nor the index of a GPU", "see 'hypervisor get gpus'")
    return text


def plain_text(text: str, field: str, limit: int = MAX_TEXT) -> str:
    """Text for people: printable, on one line, short."""
    if len(text) > limit:
        raise invalid(field, f"{field} has {len(text)} characters and may have {limit}")
    if not text.isprintable():
        raise invalid(field, f"{field} has characters that can't be printed: {shown(text)}")
    return text


def spec_from_proto(message: pb.AllocationSpec, *, owner: Owner | None = None) -> AllocationSpec:
    """What is asked for. owner replaces the message's, where the kernel says who asks. Raises Refusal."""
    if owner is None:
        owner = owner_from_proto(message.owner, "spec.owner")
    elif message.HasField("owner"):
        raise invalid("spec.owner", "on this socket the owner is the calling process", "leave spec.owner out")
    if not message.devices:
        raise invalid("spec.devices", "no device is asked for", "name at least one; an empty one is chosen for you")
    host_memory = message.host_memory_limit_bytes if message.HasField("host_memory_limit_bytes") else None
    if host_memory is not None and host_memory > MAX_BYTES:
        raise invalid("spec.host_memory_limit_bytes", f"{host_memory} bytes is more than the 16Ti that can be limited")
    return AllocationSpec(
        allocation_id=identifier(message.allocation_id, "spec.allocation_id"),
        owner=owner,
        devices=devices_from_proto(message.devices, "spec.devices"),
        isolation=_from_table(enums.ISOLATION_MODES, message.isolation, IsolationMode.SOFT, "spec.isolation"),
        qos=_from_table(enums.QOS_CLASSES, message.qos, QosClass.MEDIUM, "spec.qos"),
        policy=_from_table(enums.POLICIES, message.policy, ComputePolicy.HARD_CAP, "spec.policy"),
        host_memory_limit_bytes=host_memory,
        labels=_labels(message.labels, "spec.labels"),
    )


def devices_from_proto(messages: Sequence[pb.DeviceRequest], field: str) -> tuple[DeviceRequest, ...]:
    """The devices of a request, in their order. Raises Refusal."""
    if len(messages) > MAX_DEVICES:
        raise Refusal(
            RefusalReason.TOO_MANY_DEVICES,
            f"{len(messages)} devices are asked for and an allocation can have {MAX_DEVICES}",
            field=field,
        )
    return tuple(
        DeviceRequest(
            gpu=gpu_name(message.gpu, f"{field}[{at}].gpu") if message.gpu else "",
            requests=_resources(message.requests, f"{field}[{at}].requests"),
            limits=_resources(message.limits, f"{field}[{at}].limits"),
            partition=_partition(message.partition, f"{field}[{at}].partition"),
        )
        for at, message in enumerate(messages)
    )


def _partition(text: str, field: str) -> str:
    if len(text) > MOST_PARTITION_LETTERS or not text.isprintable():
        raise invalid(field, f"{text[:96]!r} is not the name of a profile", "write it as 1g.10gb")
    return text


def _resources(message: pb.Resources, field: str) -> Resources:
    vram = message.vram_bytes if message.HasField("vram_bytes") else None
    if vram is not None and not 0 < vram <= MAX_BYTES:
        raise invalid(
            f"{field}.vram_bytes", f"{vram} bytes of VRAM can't be limited", "it must be above 0 and below 16Ti"
        )
    return Resources(
        compute=_compute(message.compute, f"{field}.compute") if message.HasField("compute") else None,
        vram_bytes=vram,
    )


def _compute(message: pb.Compute, field: str) -> Compute:
    amount = message.WhichOneof("amount")
    if amount is None:
        raise invalid(field, f"{field} has neither tflops nor percent", "set one of them, or leave compute out")
    text = message.tflops if amount == "tflops" else message.percent
    if _DECIMAL.fullmatch(text) is None:
        raise invalid(
            f"{field}.{amount}",
            f"{shown(text)} is not a decimal number",
            "write digits with at most 6 behind the point, for instance 12.5",
        )
    value, most = Decimal(text), MAX_TFLOPS if amount == "tflops" else Decimal(100)
    if not 0 < value <= most:
        raise invalid(f"{field}.{amount}", f"{text} is out of range", f"it must be above 0 and at most {most}")
    return Compute(tflops=value) if amount == "tflops" else Compute(percent=value)


def owner_from_proto(message: pb.Owner, field: str) -> Owner:
    """The owner that a request names: a Pod, or a name to release it by. Raises Refusal for all others."""
    kind = message.WhichOneof("kind")
    if kind == "pod":
        return _pod_owner(message.pod, f"{field}.pod")
    if kind == "name":
        return Owner(kind=OwnerKind.NAMED, name=identifier(message.name, f"{field}.name"))
    if kind is None:
        raise invalid(field, "the owner is missing", "set owner.pod, or owner.name to keep it until it is released")
    remedy = "use 'hypervisor exec'" if kind == "process" else "put the file into the directory of declarations"
    raise invalid(f"{field}.{kind}", f"an owner of kind {kind} can't be claimed in a request", remedy)


def _pod_owner(message: pb.Owner.Pod, field: str) -> Owner:
    for part in ("namespace", "name"):
        if _DNS_NAME.fullmatch(getattr(message, part)) is None or ".." in getattr(message, part):
            raise invalid(f"{field}.{part}", f"{shown(getattr(message, part))} is not a Kubernetes name")
    if "." in message.namespace or len(message.namespace) > 63:
        raise invalid(f"{field}.namespace", f"{shown(message.namespace)} is not a Kubernetes namespace")
    if _UID.fullmatch(message.uid) is None:
        raise invalid(f"{field}.uid", f"{shown(message.uid)} is not the UID of a Pod")
    if message.container and _DNS_NAME.fullmatch(message.container) is None:
        raise invalid(f"{field}.container", f"{shown(message.container)} is not the name of a container")
    return Owner(
        kind=OwnerKind.POD,
        name=message.name,
        namespace=message.namespace,
        pod_uid=message.uid,
        container=message.container,
    )


def _labels(labels: Mapping[str, str], field: str) -> tuple[tuple[str, str], ...]:
    if len(labels) > MAX_LABELS:
        raise invalid(field, f"{len(labels)} labels are given and an allocation can have {MAX_LABELS}")
    for key, value in labels.items():
        plain_text(key, field, 63)
        plain_text(value, f"{field}[{shown(key)}]")
    if "" in labels:
        raise invalid(field, "a label has no name")
    return tuple(sorted(labels.items()))


def _from_table(table: Mapping[Value, int], number: int, default: Value, field: str) -> Value:
    """The model's value of a number of the API; 0, unspecified, is the default."""
    if number == 0:
        return default
    for value, known in table.items():
        if known == number:
            return value
    raise invalid(field, f"{number} is not a value of {field} that this version knows")


def reference_from_proto(message: pb.ObjectReference, field: str) -> tuple[ObjectKind | None, str, str, str]:
    """A filter: kind, namespace, name and uid; None and "" match everything. Raises Refusal."""
    kinds = {kind.value.lower(): kind for kind in ObjectKind}
    if message.kind and message.kind.lower() not in kinds:
        allowed = ", ".join(kind.value for kind in ObjectKind)
        raise invalid(f"{field}.kind", f"{shown(message.kind)} is not a kind of object", f"use one of {allowed}")
    for part in ("namespace", "name", "uid"):
        plain_text(getattr(message, part), f"{field}.{part}")
    return kinds.get(message.kind.lower()), message.namespace, message.name, message.uid


def revision_from_proto(message: pb.Revision) -> Revision:
    return Revision(message.epoch, message.revision)


def spec_to_proto(spec: AllocationSpec) -> pb.AllocationSpec:
    """What was asked for, exactly."""
    return pb.AllocationSpec(
        allocation_id=spec.allocation_id,
        owner=owner_to_proto(spec.owner),
        devices=[device_to_proto(device) for device in spec.devices],
        isolation=enums.ISOLATION_MODES[spec.isolation],
        qos=enums.QOS_CLASSES[spec.qos],
        policy=enums.POLICIES[spec.policy],
        host_memory_limit_bytes=spec.host_memory_limit_bytes,
        labels=dict(spec.labels),
    )


def device_to_proto(device: DeviceRequest) -> pb.DeviceRequest:
    return pb.DeviceRequest(
        gpu=device.gpu,
        requests=resources_to_proto(device.requests),
        limits=resources_to_proto(device.limits),
        partition=device.partition,
    )


def resources_to_proto(resources: Resources) -> pb.Resources:
    compute = resources.compute
    return pb.Resources(
        compute=compute_to_proto(compute) if compute is not None else None, vram_bytes=resources.vram_bytes
    )


def compute_to_proto(compute: Compute) -> pb.Compute:
    if compute.percent is not None:
        return pb.Compute(percent=format(compute.percent, "f"))
    return pb.Compute(tflops=format(compute.tflops, "f"))


def owner_to_proto(owner: Owner) -> pb.Owner:
    match owner.kind:
        case OwnerKind.PROCESS:
            return pb.Owner(
                process=pb.Owner.Process(
                    pid=owner.pid, start_time_ticks=owner.start_time_ticks, uid=owner.uid, command=owner.name
                )
            )
        case OwnerKind.POD:
            return pb.Owner(
                pod=pb.Owner.Pod(
                    namespace=owner.namespace, name=owner.name, uid=owner.pod_uid, container=owner.container
                )
            )
        case OwnerKind.DECLARED:
            return pb.Owner(declared_in=owner.name)
        case OwnerKind.NAMED:
            return pb.Owner(name=owner.name)
