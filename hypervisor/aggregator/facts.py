"""What of a message is a fact: worth a write, a version and a watcher's time. All but readings, ages and revisions.

Taking those away field by field costs tens of calls a GPU, and a report comes every few seconds from every node. So
the message is parsed as a type of ours that has no such fields, made from the API's own descriptors: three calls in C.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from hypervisor.v1 import types_pb2

# Message -> its fields that say when something was read, or what was read.
_NO_FACTS: Mapping[str, frozenset[str]] = {
    "Figure": frozenset({"observed_at", "age_seconds"}),
    "ByteFigure": frozenset({"observed_at", "age_seconds"}),
    "Gpu": frozenset({"readings", "revision"}),
    "Node": frozenset({"revision"}),
}


def gpu_facts(gpu: bytes) -> bytes:
    """The facts of a serialised Gpu, as a serialised Gpu; equal facts give equal bytes."""
    return _facts(_GPU, gpu)


def node_facts(node: bytes) -> bytes:
    """The same of a serialised Node."""
    return _facts(_NODE, node)


def _facts(kind: Any, data: bytes) -> bytes:
    message = kind.FromString(data)
    message.DiscardUnknownFields()
    facts: bytes = message.SerializeToString(deterministic=True)
    return facts


def _types() -> tuple[Any, Any]:
    """Gpu and Node without the fields that are no facts, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto()
    types_pb2.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        dropped = _NO_FACTS.get(message.name, frozenset())
        kept = [field for field in message.field if field.name not in dropped]
        del message.field[:]
        message.field.extend(kept)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    package = types_pb2.DESCRIPTOR.package
    found = [pool.FindMessageTypeByName(f"{package}.{name}") for name in ("Gpu", "Node")]
    gpu, node = (message_factory.GetMessageClass(descriptor) for descriptor in found)
    return gpu, node


_GPU, _NODE = _types()
