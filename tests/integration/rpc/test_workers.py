"""StartWorker and StopWorker over a real socket: what arrives, and what is refused before it does."""

from __future__ import annotations

import grpc
import pytest
import trio

from hypervisor.model import Probe, RestartPolicy
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2
from tests.integration.rpc.conftest import in_thread, serving, stub_of
from tests.integration.rpc.test_queries import DEADLINE, refusal


def test_a_request_arrives_whole(settings) -> None:
    def client(address: str) -> None:
        request = pb.StartWorkerRequest(
            worker_id="w",
            allocation_id="a",
            command=["prog", "--flag"],
            environment={"B": "2", "A": "1"},
            restart_policy=types_pb2.RESTART_POLICY_ON_FAILURE,
        )
        request.readiness.exec.command.extend(["check", "it"])
        request.readiness.period.FromMilliseconds(250)
        request.liveness.unix_socket = "/run/w.sock"
        request.grace.FromSeconds(3)
        with stub_of(address) as stub:
            assert stub.StartWorker(request, timeout=DEADLINE).worker.worker_id == "w"
            stop = pb.StopWorkerRequest(worker_id="w", forget=True)
            stop.grace.FromMilliseconds(1500)
            stub.StopWorker(stop, timeout=DEADLINE)

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)
            (_, spec), stopped = node.commands.calls
            assert spec.environment == (("A", "1"), ("B", "2"))
            assert spec.restart_policy is RestartPolicy.ON_FAILURE
            assert spec.readiness == Probe(command=("check", "it"), period_seconds=0.25)
            assert spec.liveness == Probe(unix_socket="/run/w.sock")
            assert (spec.allocation_id, spec.command, spec.grace_seconds) == ("a", ("prog", "--flag"), 3.0)
            assert stopped == ("stop_worker", "w", 1.5, True)

    trio.run(body)


def _probe_without_check() -> pb.StartWorkerRequest:
    request = pb.StartWorkerRequest(worker_id="w", command=["x"])
    request.readiness.failure_threshold = 2
    return request


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.StartWorkerRequest(command=["x"]), "worker_id"),
        (pb.StartWorkerRequest(worker_id="w", command=["x"], environment={"A=B": "c"}), "environment"),
        (pb.StartWorkerRequest(worker_id="w", command=["x"], allocation_id="../x"), "allocation_id"),
        (pb.StartWorkerRequest(worker_id="w", command=["x"], restart_policy=77), "restart_policy"),  # type: ignore[arg-type]
        (_probe_without_check(), "readiness"),
    ],
)
def test_what_can_not_be_understood_is_refused_with_its_field(settings, request_, field) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.StartWorker(request_, timeout=DEADLINE)
        code, ours, _ = refusal(caught.value)
        assert (code, ours.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)
            assert node.commands.calls == []

    trio.run(body)
