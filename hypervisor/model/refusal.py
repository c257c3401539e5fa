"""Why something that was asked for is refused: a type with fields, turned into words and codes at the edges."""

from __future__ import annotations

from enum import Enum


class RefusalReason(Enum):
    """Machine-readable reasons; the names are part of the API and of the metric allocation_failures_total."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    GPU_NOT_FOUND = "GPU_NOT_FOUND"
    ALLOCATION_NOT_FOUND = "ALLOCATION_NOT_FOUND"
    ALLOCATION_EXISTS = "ALLOCATION_EXISTS"
    REVISION_MISMATCH = "REVISION_MISMATCH"
    LIMIT_BELOW_REQUEST = "LIMIT_BELOW_REQUEST"
    LIMIT_ABOVE_CAPACITY = "LIMIT_ABOVE_CAPACITY"
    VRAM_BELOW_CONTEXT = "VRAM_BELOW_CONTEXT"
    INSUFFICIENT_TFLOPS = "INSUFFICIENT_TFLOPS"
    INSUFFICIENT_VRAM = "INSUFFICIENT_VRAM"
    TFLOPS_UNKNOWN = "TFLOPS_UNKNOWN"
    ISOLATION_CONFLICT = "ISOLATION_CONFLICT"
    ISOLATION_UNSUPPORTED = "ISOLATION_UNSUPPORTED"
    PARTITION_TEMPLATE_MATCH_FAILED = "PARTITION_TEMPLATE_MATCH_FAILED"
    PARTITION_FAILED = "PARTITION_FAILED"
    GPU_UNHEALTHY = "GPU_UNHEALTHY"
    GPU_IN_USE = "GPU_IN_USE"
    USE_UNKNOWN = "USE_UNKNOWN"
    TOO_MANY_DEVICES = "TOO_MANY_DEVICES"
    STORAGE_FAILED = "STORAGE_FAILED"
    NOT_READY = "NOT_READY"
    NOT_LEADER = "NOT_LEADER"
    READ_ONLY_SOCKET = "READ_ONLY_SOCKET"
    PAGE_EXPIRED = "PAGE_EXPIRED"
    TOO_MANY_WATCHERS = "TOO_MANY_WATCHERS"
    TOO_MANY_NODES = "TOO_MANY_NODES"
    SIMULATED_REFUSED = "SIMULATED_REFUSED"
    NODE_CONFLICT = "NODE_CONFLICT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    TOO_MANY_STREAMS = "TOO_MANY_STREAMS"
    WORKER_NOT_FOUND = "WORKER_NOT_FOUND"
    WORKER_EXISTS = "WORKER_EXISTS"
    WORKER_FAILED = "WORKER_FAILED"
    CHECKPOINT_FAILED = "CHECKPOINT_FAILED"
    UNSUPPORTED = "UNSUPPORTED"


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that is refused. field is the path in the request, for instance devices[0].limits.vram_bytes."""

    def __init__(self, reason: RefusalReason, message: str, *, field: str = "", remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.reason = reason
        self.message = message
        self.field = field
        self.remedy = remedy
