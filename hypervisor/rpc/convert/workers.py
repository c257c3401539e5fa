"""Workers as they are asked for; raises Refusal with the path of the field that is at fault."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from hypervisor.model import Probe, RestartPolicy, WorkerSpec
from hypervisor.rpc.convert import enums
from hypervisor.rpc.convert.requests import identifier, invalid
from hypervisor.v1 import node_pb2 as pb

MAX_SECONDS = 86_400.0
MAX_THRESHOLD = 1000
_MAX_VARIABLES = 1024


def worker_spec_from_proto(request: pb.StartWorkerRequest, *, default_grace_seconds: float) -> WorkerSpec:
    """What is to run, without what its allocation adds."""
    if not request.worker_id:
        raise invalid("worker_id", "the name of the worker is empty", "give it a name")
    if len(request.environment) > _MAX_VARIABLES:
        raise invalid(
            "environment", f"{len(request.environment)} variables are given, and {_MAX_VARIABLES} are the most"
        )
    for name in request.environment:
        if not name or "=" in name:
            raise invalid("environment", f"{name[:64]!a} is no name of a variable")
    policies = {number: policy for policy, number in enums.RESTART_POLICIES.items()}
    if request.restart_policy and request.restart_policy not in policies:
        raise invalid("restart_policy", f"{request.restart_policy} is no restart policy that this version knows")
    grace = _seconds(request.grace, "grace") if request.HasField("grace") else default_grace_seconds
    return WorkerSpec(
        worker_id=request.worker_id,
        allocation_id=identifier(request.allocation_id, "allocation_id") if request.allocation_id else "",
        command=tuple(request.command),
        environment=tuple(sorted(_plain(request.environment).items())),
        restart_policy=policies.get(request.restart_policy, RestartPolicy.ALWAYS),
        readiness=_probe(request.readiness, "readiness") if request.HasField("readiness") else None,
        liveness=_probe(request.liveness, "liveness") if request.HasField("liveness") else None,
        grace_seconds=grace,
    )


def grace_from_proto(request: pb.StopWorkerRequest) -> float | None:
    """Seconds between the request to stop and the kill; None when none is given."""
    return _seconds(request.grace, "grace") if request.HasField("grace") else None


def _plain(variables: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(value) for name, value in variables.items()}


def _probe(message: pb.Probe, field: str) -> Probe:
    check = message.WhichOneof("check")
    if check is None or (check == "exec" and not message.exec.command):
        raise invalid(field, "the probe has no check", "give it a command, a unix socket or a file")
    if message.failure_threshold > MAX_THRESHOLD:
        raise invalid(f"{field}.failure_threshold", f"at most {MAX_THRESHOLD} failures can be waited for")
    timeout = _seconds(message.timeout, f"{field}.timeout") if message.HasField("timeout") else 5.0
    period = _seconds(message.period, f"{field}.period") if message.HasField("period") else 5.0
    if timeout <= 0 or period <= 0:
        raise invalid(field, "the period and the timeout of a probe must be above 0")
    return Probe(
        command=tuple(message.exec.command) if check == "exec" else (),
        unix_socket=message.unix_socket if check == "unix_socket" else "",
        file=message.file if check == "file" else "",
        initial_delay_seconds=_seconds(message.initial_delay, f"{field}.initial_delay"),
        period_seconds=period,
        timeout_seconds=timeout,
        failure_threshold=message.failure_threshold or 3,
    )


def _seconds(duration: Duration, field: str) -> float:
    seconds = duration.seconds + duration.nanos / 1e9
    if not 0 <= seconds <= MAX_SECONDS:
        raise invalid(field, f"{seconds:g} s is no time between 0 s and a day")
    return seconds
