"""Commands over the admin socket: what the node is asked, and what a client gets back."""

from __future__ import annotations

from decimal import Decimal

import grpc
import pytest
import trio

from hypervisor.model import Compute, Owner, OwnerKind, Resources, Revision
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2 as types
from tests import builders
from tests.integration.rpc.conftest import in_thread, run, serving, stub_of
from tests.integration.rpc.test_queries import DEADLINE, refusal


def spec(name: str = "trainer", **parts) -> types.AllocationSpec:
    base = {
        "allocation_id": name,
        "owner": types.Owner(name=name),
        "devices": [
            types.DeviceRequest(
                gpu="0",
                limits=types.Resources(compute=types.Compute(percent="12.5"), vram_bytes=8 * builders.GIB),
            )
        ],
    }
    return types.AllocationSpec(**{**base, **parts})


def test_allocate_update_release(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            granted = stub.Allocate(pb.AllocateRequest(spec=spec()), timeout=DEADLINE)
            assert granted.allocation.spec.allocation_id == "trainer"
            assert not granted.existed
            assert granted.environment["TF_SHM_PATH"] == granted.allocation.directory
            assert stub.Allocate(pb.AllocateRequest(spec=spec()), timeout=DEADLINE).existed
            with pytest.raises(grpc.RpcError) as caught:
                stub.Allocate(pb.AllocateRequest(spec=spec(isolation=types.ISOLATION_MODE_SHARED)), timeout=DEADLINE)
            assert refusal(caught.value)[:1] == (grpc.StatusCode.ALREADY_EXISTS,)
            changed = types.DeviceRequest(limits=types.Resources(compute=types.Compute(tflops="98.9")))
            updated = stub.UpdateLimits(
                pb.UpdateLimitsRequest(
                    allocation_id="trainer",
                    devices=[changed],
                    expected_revision=types.Revision(epoch=1, revision=1),
                ),
                timeout=DEADLINE,
            )
            assert updated.allocation.uid == granted.allocation.uid
            released = stub.Release(pb.ReleaseRequest(allocation_id="trainer"), timeout=DEADLINE)
            assert [process.host_pid for process in released.remaining] == [4711]
            with pytest.raises(grpc.RpcError) as caught:
                stub.Release(pb.ReleaseRequest(allocation_id="trainer"), timeout=DEADLINE)
            code, ours, _ = refusal(caught.value)
            assert (code, ours.reason) == (grpc.StatusCode.NOT_FOUND, "ALLOCATION_NOT_FOUND")

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)
            allocate, *_, update, release, _ = node.commands.calls
            assert allocate[1].owner == Owner(kind=OwnerKind.NAMED, name="trainer")
            assert allocate[1].devices[0].limits == Resources(
                compute=Compute(percent=Decimal("12.5")), vram_bytes=8 * builders.GIB
            )
            assert update[1] == "trainer"
            assert update[2][0].limits == Resources(compute=Compute(tflops=Decimal("98.9")))
            assert update[2][0].requests == Resources()
            assert update[3] == Revision(1, 1)
            assert release == ("release", "trainer")

    run(body)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"allocation_id": ""}, "spec.allocation_id"),
        ({"allocation_id": "../up"}, "spec.allocation_id"),
        ({"allocation_id": ".hidden"}, "spec.allocation_id"),
        ({"allocation_id": "a" * 64}, "spec.allocation_id"),
        ({"allocation_id": "a\n"}, "spec.allocation_id"),
        ({"allocation_id": "a" * 1_000_000}, "spec.allocation_id"),
        ({"owner": None}, "spec.owner"),
        ({"owner": types.Owner(process=types.Owner.Process(pid=1))}, "spec.owner.process"),
        ({"owner": types.Owner(declared_in="x")}, "spec.owner.declared_in"),
        ({"owner": types.Owner(pod=types.Owner.Pod(namespace="a/b", name="c", uid="d"))}, "spec.owner.pod.namespace"),
        ({"owner": types.Owner(pod=types.Owner.Pod(namespace="a", name="..", uid="d"))}, "spec.owner.pod.name"),
        ({"owner": types.Owner(pod=types.Owner.Pod(namespace="a", name="b", uid="c/d"))}, "spec.owner.pod.uid"),
        ({"devices": []}, "spec.devices"),
        ({"devices": [types.DeviceRequest()] * 17}, "spec.devices"),
        ({"devices": [types.DeviceRequest(gpu="/dev/nvidia0")]}, "spec.devices[0].gpu"),
        (
            {"devices": [types.DeviceRequest(), types.DeviceRequest(limits=types.Resources(vram_bytes=0))]},
            "spec.devices[1].limits.vram_bytes",
        ),
        (
            {"devices": [types.DeviceRequest(requests=types.Resources(vram_bytes=2**44))]},
            "spec.devices[0].requests.vram_bytes",
        ),
        (
            {"devices": [types.DeviceRequest(limits=types.Resources(compute=types.Compute()))]},
            "spec.devices[0].limits.compute",
        ),
        ({"isolation": 99}, "spec.isolation"),
        ({"qos": -1}, "spec.qos"),
        ({"policy": 2**31 - 1}, "spec.policy"),
        ({"host_memory_limit_bytes": 2**60}, "spec.host_memory_limit_bytes"),
        ({"labels": {"": "x"}}, "spec.labels"),
        ({"labels": {"k": "line\nbreak"}}, "spec.labels['k']"),
        ({"labels": {f"k{number}": "v" for number in range(33)}}, "spec.labels"),
    ],
)
def test_bad_specs_name_the_field(changes, field: str) -> None:
    from hypervisor.model import Refusal
    from hypervisor.rpc.convert import spec_from_proto

    message = spec(**changes)
    with pytest.raises(Refusal) as caught:
        spec_from_proto(message)
    assert caught.value.field == field
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", "40%", "-1", "0", "1e3", "NaN", "inf", "٤٠", " 4", "100.1", "1.1234567", "9" * 9])
def test_bad_percentages(text: str) -> None:
    from hypervisor.model import Refusal
    from hypervisor.rpc.convert import spec_from_proto

    compute = types.Compute(percent=text)
    message = spec(devices=[types.DeviceRequest(limits=types.Resources(compute=compute))])
    with pytest.raises(Refusal) as caught:
        spec_from_proto(message)
    assert caught.value.field == "spec.devices[0].limits.compute.percent"


def test_update_that_changes_nothing_is_refused(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.UpdateLimits(pb.UpdateLimitsRequest(allocation_id="a"), timeout=DEADLINE)
        assert refusal(caught.value)[1].field == "devices"

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)

    run(body)


def test_detach_by_index_and_a_defect_of_ours(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub:
            answer = stub.DetachGpu(pb.DetachGpuRequest(gpu_uuid="3", reason="reset"), timeout=DEADLINE)
            assert answer.gpu.uuid == builders.uuid(3)
            assert [(holder.pid, holder.allocation_id) for holder in answer.holders] == [(4711, "pod-0")]
            with pytest.raises(grpc.RpcError) as caught:
                stub.DetachGpu(pb.DetachGpuRequest(gpu_uuid="8"), timeout=DEADLINE)
            assert refusal(caught.value)[1].reason == "GPU_NOT_FOUND"
            # FakeCommands.attach_gpu fails on purpose: the client hears of it, and the server goes on.
            with pytest.raises(grpc.RpcError) as caught:
                stub.AttachGpu(pb.AttachGpuRequest(gpu_uuid=builders.uuid(3).lower()), timeout=DEADLINE)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "on purpose" not in caught.value.details()
            assert stub.GetNode(pb.GetNodeRequest(), timeout=DEADLINE).node.gpu_count == 8

    async def body() -> None:
        async with serving(settings) as node:
            await in_thread(client, node.admin)
            assert node.commands.calls[0] == ("detach_gpu", builders.uuid(3), "reset")
            calls = {(method, code): count for method, code, count in node.server.statistics().calls}
            assert calls["AttachGpu", "INTERNAL"] == 1
            assert calls["DetachGpu", "OK"] == 1

    run(body)


def test_a_deadline_cancels_the_command(settings) -> None:
    def client(address: str) -> None:
        with stub_of(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Allocate(pb.AllocateRequest(spec=spec()), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async def body() -> None:
        async with serving(settings) as node:
            node.commands.hold = trio.Event()
            await in_thread(client, node.admin)
            await node.commands.cancelled.wait()
            assert node.commands.allocations == {}

    run(body)


def test_a_stop_answers_commands_in_flight(settings) -> None:
    codes: list[grpc.StatusCode] = []

    def client(address: str) -> None:
        with stub_of(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Allocate(pb.AllocateRequest(spec=spec()), timeout=DEADLINE)
        codes.append(caught.value.code())

    async def body() -> None:
        async with trio.open_nursery() as nursery, serving(settings) as node:
            node.commands.hold = trio.Event()
            nursery.start_soon(in_thread, client, node.admin)
            await node.commands.entered.wait()
        assert codes[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    run(body)
