"""Model <-> protobuf, pure: values in, values out; the clock is an argument.

What comes from outside is checked here and nowhere else: the functions named *_from_proto raise Refusal with the path
of the field that is at fault.
"""

from hypervisor.rpc.convert.diagnosis import diagnosis_to_proto
from hypervisor.rpc.convert.moment import Moment
from hypervisor.rpc.convert.requests import (
    devices_from_proto,
    identifier,
    reference_from_proto,
    spec_from_proto,
    spec_to_proto,
)
from hypervisor.rpc.convert.to_proto import (
    allocation_to_proto,
    event_to_proto,
    gpu_to_proto,
    node_to_proto,
    process_to_proto,
    revision_to_proto,
    topology_to_proto,
    worker_to_proto,
)
from hypervisor.rpc.convert.workers import grace_from_proto, worker_spec_from_proto

__all__ = [
    "Moment",
    "allocation_to_proto",
    "devices_from_proto",
    "diagnosis_to_proto",
    "event_to_proto",
    "gpu_to_proto",
    "grace_from_proto",
    "identifier",
    "node_to_proto",
    "process_to_proto",
    "reference_from_proto",
    "revision_to_proto",
    "spec_from_proto",
    "spec_to_proto",
    "topology_to_proto",
    "worker_spec_from_proto",
    "worker_to_proto",
]
