"""Two replicas: one leads, the other says where; and an API server that is not there, overrun, or has forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.error import HTTPError

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hypervisor.v1 import cluster_pb2, node_pb2
from tests.fleet import messages
from tests.fleet.process import DEADLINE_SECONDS, AggregatorProcess, all_gpus, channel_to, wait_until
from tests.fleet.stream import ReportStream
from tests.integration.aggregator_kube.conftest import GROUP, LEASE, Kube, is_ready

pytestmark = pytest.mark.slow

Replica = Callable[..., AggregatorProcess]
A0 = messages.name("node-a", 0)


def report(stream: ReportStream) -> None:
    stream.send(messages.hello("node-a"))
    stream.wait_for("welcome")
    gpus = [messages.gpu("node-a", 0, peers=1)]
    stream.send(messages.snapshot(messages.revision(1, 1), messages.state("node-a", gpus=gpus)))
    stream.wait_for_revision(1, 1)


def change(stream: ReportStream, revision: int, tflops: float) -> None:
    delta = node_pb2.NodeDelta(gpus=[messages.gpu("node-a", 0, peers=1, available_tflops=tflops)])
    stream.send(messages.delta(messages.revision(1, revision - 1), messages.revision(1, revision), delta))


def reasons(process: AggregatorProcess) -> list[str]:
    try:
        process.get("/readyz")
    except HTTPError as error:
        with error:
            found: list[str] = json.loads(error.read())["reasons"]
            return found
    return []


def refusal(process: AggregatorProcess) -> str:
    with process.cluster() as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ListPools(cluster_pb2.ListPoolsRequest(), timeout=DEADLINE_SECONDS)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(raised.value.details())


def health(process: AggregatorProcess) -> str:
    with channel_to(process.address) as channel:
        found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(found.status))


def test_only_the_leader_answers_and_the_other_says_where_it_is(kube: Kube, replica: Replica) -> None:
    first = replica("one")
    second = replica("two", lead=False)
    wait_until(lambda: reasons(second) == [f"this replica follows one, at {first.address}"], "the follower knows")
    assert refusal(second) == f"this replica follows one, at {first.address}; connect to {first.address}"
    assert (health(first), health(second)) == ("SERVING", "NOT_SERVING")
    with ReportStream(second.address) as stream:
        stream.send(messages.hello("node-a"))
        error = wait_until(lambda: stream.error, "a report to the follower is refused")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert first.address in str(error.details())
    with ReportStream(first.address) as stream:
        report(stream)
    first.kill()
    wait_until(lambda: is_ready(second), "the follower leads when the leader is dead")
    with second.cluster() as stub:
        assert all_gpus(stub).keys() == {A0}
    assert kube.ask("GET", LEASE)["spec"]["holderIdentity"] == "two"
    first.start()
    second.stop()
    wait_until(lambda: is_ready(first), "a leader that stops lets go at once")


def test_a_leader_that_another_has_replaced_ends(kube: Kube, replica: Replica) -> None:
    first = replica("one")
    lease = kube.ask("GET", LEASE)

    def take() -> bool:
        current = kube.ask("GET", LEASE)
        current["spec"] = {**lease["spec"], "holderIdentity": "thief", "leaseDurationSeconds": 60}
        kube.ask("PUT", LEASE, current)
        return True

    wait_until(take, "the lease is taken")
    assert first.wait() == 1
    assert "thief holds the lease" in first.log.read_text()


def test_an_outage_delays_and_loses_nothing(kube: Kube, replica: Replica) -> None:
    process = replica("one", "--lease-seconds", "30")
    with ReportStream(process.address) as stream:
        report(stream)
        kube.fake.refuse = [(429, "1")] * 3 + [(500, "")] * 3
        change(stream, 2, 500.0)
        kube.gpu_until(A0, lambda gpu: gpu["status"]["available"]["tflops"] == "500", "written after 429 and 500")
        kube.fake.compact()
        kube.fake.cut_watches()
        kube.ask("DELETE", f"{GROUP}/gpus/{A0}")
        kube.gpu_until(A0, lambda gpu: True, "a removal is noticed after the watch has expired")


def test_a_leader_without_an_api_server_ends_before_its_lease_does(kube: Kube, replica: Replica) -> None:
    process = replica()
    with ReportStream(process.address) as stream:
        report(stream)
        kube.fake.down = True
        assert process.wait() == 1
        assert "could not be renewed" in process.log.read_text()
    kube.fake.down = False
    process.start()
    wait_until(lambda: is_ready(process), "it leads again")
    with ReportStream(process.address) as stream:
        report(stream)
        change(stream, 2, 400.0)
        kube.gpu_until(A0, lambda gpu: gpu["status"]["available"]["tflops"] == "400", "it writes again")


def test_writes_are_paced_and_in_parts(kube: Kube, replica: Replica) -> None:
    process = replica()
    fake = kube.fake
    with ReportStream(process.address) as stream:
        gpus = [messages.gpu("node-a", index, peers=1) for index in range(300)]
        stream.send(messages.hello("node-a"))
        stream.wait_for("welcome")
        stream.send(messages.snapshot(messages.revision(1, 1), messages.state("node-a", gpus=gpus)))
        stream.wait_for_revision(1, 1)
        # Acknowledged means written: all of its parts.
        assert len(kube.items(f"{GROUP}/gpus")) == 300
        assert fake.count("PATCH", "/gpus/") == 600
        assert fake.count("PATCH", "/gpunodes/node-a") <= 8, "the node is written once a part"
