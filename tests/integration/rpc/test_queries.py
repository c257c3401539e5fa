"""What a plain gRPC client gets from a running server."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from hypervisor.model import AttachedProcess, Refusal, RefusalReason
from hypervisor.rpc.refusals import STATUS_CODES, refusal_from_status, status_of
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2
from tests import builders
from tests.integration.rpc.conftest import in_thread, run, serving, stub_of
from tests.integration.rpc.fakes import FakeJournal

DEADLINE = 10


def refusal(error: grpc.RpcError) -> tuple[grpc.StatusCode, types_pb2.Refusal, list[str]]:
    """Code, our own detail and the names of all details, by Google's reader of statuses."""
    status = rpc_status.from_call(error)
    assert status is not None
    ours = types_pb2.Refusal()
    names = []
    for detail in status.details:
        names.append(detail.TypeName())
        if detail.Is(types_pb2.Refusal.DESCRIPTOR):
            detail.Unpack(ours)
    return error.code(), ours, names


def test_node_and_gpus(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            node = stub.GetNode(pb.GetNodeRequest(), timeout=DEADLINE).node
            assert node.identity.name == "gpu-node-1"
            assert (node.gpu_count, node.tflops.value, node.vram.bytes) == (8, 8 * 989.0, 8 * builders.VRAM)
            assert node.simulated
            gpus = stub.ListGpus(pb.ListGpusRequest(), timeout=DEADLINE)
            assert [gpu.index for gpu in gpus.gpus] == list(range(8))
            assert len(gpus.gpus[3].topology.links) == 7
            assert gpus.gpus[0].readings.utilization_ratio.age_seconds > 0
            assert (gpus.revision.epoch, gpus.revision.revision) == (1, 1)
            topology = stub.GetTopology(pb.GetTopologyRequest(), timeout=DEADLINE).topology
            assert [len(gpu.links) for gpu in topology.gpus] == [7] * 8
            workers = stub.ListWorkers(pb.ListWorkersRequest(), timeout=DEADLINE)
            assert list(workers.workers) == []

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.read)
            await in_thread(client, node.admin)

    run(body)


def test_allocations_by_id_and_by_gpu(settings) -> None:
    def ids(stub, **filters) -> list[str]:
        found = stub.ListAllocations(pb.ListAllocationsRequest(**filters), timeout=DEADLINE)
        return [allocation.spec.allocation_id for allocation in found.allocations]

    def client(address: str) -> None:
        with stub_of(address) as stub:
            assert ids(stub) == ["pod-0", "pod-1", "pod-2"]
            assert ids(stub, allocation_id="pod-1") == ["pod-1"]
            assert ids(stub, gpu_uuid=builders.uuid(0).upper()) == ["pod-0", "pod-1", "pod-2"]
            assert ids(stub, gpu_uuid=builders.uuid(1)) == []

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.read)

    run(body)


def test_read_socket_changes_nothing_and_names_the_other(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            for method, request in (
                (stub.Allocate, pb.AllocateRequest()),
                (stub.UpdateLimits, pb.UpdateLimitsRequest()),
                (stub.Release, pb.ReleaseRequest()),
                (stub.StartWorker, pb.StartWorkerRequest()),
                (stub.StopWorker, pb.StopWorkerRequest()),
                (stub.DetachGpu, pb.DetachGpuRequest()),
                (stub.AttachGpu, pb.AttachGpuRequest()),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    method(request, timeout=DEADLINE)
                code, ours, names = refusal(caught.value)
                assert code is grpc.StatusCode.PERMISSION_DENIED
                assert ours.reason == "READ_ONLY_SOCKET"
                assert settings.admin_listen in ours.remedy
                assert "google.rpc.ErrorInfo" in names

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.read)
            assert node.commands.calls == []

    run(body)


def test_what_later_versions_bring_says_so(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            with pytest.raises(grpc.RpcError) as caught:
                stub.Diagnose(pb.DiagnoseRequest(), timeout=DEADLINE)  # this server was given no doctor
            code, ours, _ = refusal(caught.value)
            assert (code, ours.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")
            assert "not in this version" in ours.message

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)

    run(body)


def test_pages_hold_to_one_revision(settings) -> None:
    def page(stub, token: str = "", size: int = 2):
        return stub.ListAllocations(pb.ListAllocationsRequest(page=pb.Page(size=size, token=token)), timeout=DEADLINE)

    def first(address: str) -> str:
        with stub_of(address) as stub:
            found = page(stub)
            assert len(found.allocations) == 2
            return found.next_page_token

    def rest(address: str, token: str) -> None:
        with stub_of(address) as stub:
            found = page(stub, token)
            assert [allocation.spec.allocation_id for allocation in found.allocations] == ["pod-2", "pod-3"]
            assert found.revision.revision == 1  # though the node has moved on
            last = page(stub, found.next_page_token)
            assert [allocation.spec.allocation_id for allocation in last.allocations] == ["pod-4"]
            assert last.next_page_token == ""
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListGpus(pb.ListGpusRequest(page=pb.Page(token=token)), timeout=DEADLINE)
            assert refusal(caught.value)[1].field == "page.token"

    def expired(address: str, token: str) -> None:
        with stub_of(address) as stub, pytest.raises(grpc.RpcError) as caught:
            page(stub, token)
        code, ours, _ = refusal(caught.value)
        assert (code, ours.reason) == (grpc.StatusCode.ABORTED, "PAGE_EXPIRED")

    async def body() -> None:
        async with serving(settings, snapshot=builders.make_snapshot(allocations=5)) as node:
            token = await in_thread(first, node.read)
            node.server.publish(builders.make_snapshot(allocations=1, number=2))
            await in_thread(rest, node.read, token)
            for number in range(3, 30):
                node.server.publish(builders.make_snapshot(allocations=5, number=number))
                await in_thread(first, node.read)
            await in_thread(expired, node.read, token)

    run(body)


@pytest.mark.parametrize("token", ["!", "AAAA", "A" * 40, "\N{SNOWMAN}", "A" * 5000])
def test_tokens_that_are_none(settings, token: str) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            for method, request in (
                (stub.ListGpus, pb.ListGpusRequest),
                (stub.ListEvents, pb.ListEventsRequest),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    method(request(page=pb.Page(token=token)), timeout=DEADLINE)
                code, ours, names = refusal(caught.value)
                assert (code, ours.field) == (grpc.StatusCode.INVALID_ARGUMENT, "page.token")
                assert "google.rpc.BadRequest" in names

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.read)

    run(body)


def test_a_page_stays_below_the_size_of_a_message(settings) -> None:
    processes = tuple(
        AttachedProcess(
            slot=slot,
            pid=slot + 1,
            pid_namespace=1,
            start_time_ticks=2**40 + slot,
            host_pid=slot + 1,
            reserved_bytes=(2**40,) * 16,
        )
        for slot in range(512)
    )
    names = [f"pod-{number}" for number in range(100)]
    snapshot = builders.make_snapshot(
        allocations=tuple(builders.make_allocation(name) for name in names),
        usages=tuple(builders.make_usage(name, processes=processes) for name in names),
    )

    def client(address: str) -> None:
        seen: list[str] = []
        token = ""
        pages = 0
        with stub_of(address) as stub:
            while True:
                found = stub.ListAllocations(
                    pb.ListAllocationsRequest(page=pb.Page(size=1000, token=token)), timeout=DEADLINE
                )
                pages += 1
                seen += [allocation.spec.allocation_id for allocation in found.allocations]
                token = found.next_page_token
                if not token:
                    break
            assert seen == names
            assert pages > 1
            messages = stub.WatchNode(pb.WatchNodeRequest(), timeout=DEADLINE)
            watched: list[str] = []
            for message in messages:
                part = message.reset if message.HasField("reset") else message.delta
                watched += [allocation.spec.allocation_id for allocation in part.allocations]
                if message.HasField("revision"):
                    break
            messages.cancel()
            assert watched == names

    async def body() -> None:
        async with serving(settings, snapshot=snapshot) as node:
            await in_thread(client, node.read)

    run(body)


def test_health_and_reflection(settings) -> None:
    def client(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", "hypervisor.v1.NodeService"):
                answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as caught:
                health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=DEADLINE)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            (answer,) = reflection.ServerReflectionInfo(asked, timeout=DEADLINE)
            names = [service.name for service in answer.list_services_response.service]
            assert "hypervisor.v1.NodeService" in names

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.read)

    run(body)


def test_events_by_page_and_filter(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            sequences: list[int] = []
            token = ""
            while True:
                found = stub.ListEvents(pb.ListEventsRequest(page=pb.Page(size=100, token=token)), timeout=DEADLINE)
                sequences += [event.sequence for event in found.events]
                token = found.next_page_token
                if not token:
                    break
            assert sequences == list(range(1, 601))
            about = types_pb2.ObjectReference(kind="allocation", name="POD-17")
            found = stub.ListEvents(pb.ListEventsRequest(regarding=about), timeout=DEADLINE)
            assert [event.sequence for event in found.events] == [17]
            found = stub.ListEvents(pb.ListEventsRequest(type=types_pb2.EVENT_TYPE_WARNING), timeout=DEADLINE)
            assert list(found.events) == []
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListEvents(
                    pb.ListEventsRequest(regarding=types_pb2.ObjectReference(kind="Shoe")), timeout=DEADLINE
                )
            assert refusal(caught.value)[1].field == "regarding.kind"

    async def body() -> None:
        journal = FakeJournal([builders.make_event(sequence) for sequence in range(1, 601)])
        async with serving(settings, journal=journal) as node:
            await in_thread(client, node.read)

    run(body)


def test_error_info_names_the_domain_and_field() -> None:
    assert set(STATUS_CODES) == set(RefusalReason)
    status = status_of(Refusal(RefusalReason.INSUFFICIENT_VRAM, "no", field="spec.devices[0]", remedy="less"))
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Is(info.DESCRIPTOR) and detail.Unpack(info) for detail in status.details)
    assert (info.reason, info.metadata["field"]) == ("INSUFFICIENT_VRAM", "spec.devices[0]")
    back = refusal_from_status(status)
    assert back is not None
    assert (back.reason, back.message, back.field, back.remedy) == (
        RefusalReason.INSUFFICIENT_VRAM,
        "no",
        "spec.devices[0]",
        "less",
    )
