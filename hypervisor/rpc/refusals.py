"""Refusals on the wire: a status code, and google.rpc details for machines; and back, for our clients."""

from __future__ import annotations

from collections.abc import Mapping

from google.rpc import code_pb2, error_details_pb2, status_pb2

from hypervisor.model import Refusal, RefusalReason
from hypervisor.v1 import types_pb2 as pb

ERROR_DOMAIN = "hypervisor.v1"
DETAILS_KEY = "grpc-status-details-bin"

# The numbers of gRPC's status codes.
STATUS_CODES: Mapping[RefusalReason, code_pb2.Code] = {
    RefusalReason.INVALID_ARGUMENT: code_pb2.INVALID_ARGUMENT,
    RefusalReason.GPU_NOT_FOUND: code_pb2.NOT_FOUND,
    RefusalReason.ALLOCATION_NOT_FOUND: code_pb2.NOT_FOUND,
    RefusalReason.WORKER_NOT_FOUND: code_pb2.NOT_FOUND,
    RefusalReason.ALLOCATION_EXISTS: code_pb2.ALREADY_EXISTS,
    RefusalReason.WORKER_EXISTS: code_pb2.ALREADY_EXISTS,
    RefusalReason.WORKER_FAILED: code_pb2.FAILED_PRECONDITION,
    RefusalReason.CHECKPOINT_FAILED: code_pb2.FAILED_PRECONDITION,
    RefusalReason.REVISION_MISMATCH: code_pb2.ABORTED,
    RefusalReason.PAGE_EXPIRED: code_pb2.ABORTED,
    RefusalReason.LIMIT_BELOW_REQUEST: code_pb2.INVALID_ARGUMENT,
    RefusalReason.LIMIT_ABOVE_CAPACITY: code_pb2.INVALID_ARGUMENT,
    RefusalReason.VRAM_BELOW_CONTEXT: code_pb2.INVALID_ARGUMENT,
    RefusalReason.TOO_MANY_DEVICES: code_pb2.INVALID_ARGUMENT,
    RefusalReason.INSUFFICIENT_TFLOPS: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.INSUFFICIENT_VRAM: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.TOO_MANY_WATCHERS: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.TOO_MANY_NODES: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.TOO_MANY_REQUESTS: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.TOO_MANY_STREAMS: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.UNAUTHENTICATED: code_pb2.UNAUTHENTICATED,
    RefusalReason.FORBIDDEN: code_pb2.PERMISSION_DENIED,
    RefusalReason.SIMULATED_REFUSED: code_pb2.FAILED_PRECONDITION,
    RefusalReason.NODE_CONFLICT: code_pb2.ALREADY_EXISTS,
    RefusalReason.TFLOPS_UNKNOWN: code_pb2.FAILED_PRECONDITION,
    RefusalReason.ISOLATION_CONFLICT: code_pb2.FAILED_PRECONDITION,
    RefusalReason.ISOLATION_UNSUPPORTED: code_pb2.FAILED_PRECONDITION,
    RefusalReason.PARTITION_TEMPLATE_MATCH_FAILED: code_pb2.RESOURCE_EXHAUSTED,
    RefusalReason.PARTITION_FAILED: code_pb2.FAILED_PRECONDITION,
    RefusalReason.GPU_UNHEALTHY: code_pb2.FAILED_PRECONDITION,
    RefusalReason.GPU_IN_USE: code_pb2.FAILED_PRECONDITION,
    RefusalReason.USE_UNKNOWN: code_pb2.FAILED_PRECONDITION,
    RefusalReason.STORAGE_FAILED: code_pb2.UNAVAILABLE,
    RefusalReason.NOT_READY: code_pb2.UNAVAILABLE,
    RefusalReason.NOT_LEADER: code_pb2.UNAVAILABLE,
    RefusalReason.READ_ONLY_SOCKET: code_pb2.PERMISSION_DENIED,
    RefusalReason.UNSUPPORTED: code_pb2.UNIMPLEMENTED,
}
_MAX_MESSAGE = 1000  # trailers are headers, and HTTP/2 stacks hold those to a few KiB


def status_of(refusal: Refusal) -> status_pb2.Status:
    """The refusal as google.rpc.Status: our own message, ErrorInfo, and BadRequest where a field is at fault."""
    code = STATUS_CODES[refusal.reason]
    status = status_pb2.Status(code=code, message=str(refusal)[:_MAX_MESSAGE])
    status.details.add().Pack(
        pb.Refusal(
            reason=refusal.reason.value,
            field=refusal.field,
            message=refusal.message[:_MAX_MESSAGE],
            remedy=refusal.remedy[:_MAX_MESSAGE],
        )
    )
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason=refusal.reason.value,
            domain=ERROR_DOMAIN,
            metadata={"field": refusal.field} if refusal.field else None,
        )
    )
    if refusal.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=refusal.field, description=refusal.message[:_MAX_MESSAGE], reason=refusal.reason.value
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return status


def refusal_from_status(status: status_pb2.Status) -> Refusal | None:
    """The refusal that a status carries; None when it carries none. A reason newer than we are is UNSUPPORTED."""
    message = pb.Refusal()
    for detail in status.details:
        if detail.Is(pb.Refusal.DESCRIPTOR) and detail.Unpack(message):
            known = message.reason in RefusalReason.__members__
            reason = RefusalReason(message.reason) if known else RefusalReason.UNSUPPORTED
            return Refusal(reason, message.message, field=message.field, remedy=message.remedy)
    return None
