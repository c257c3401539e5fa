"""NodeService: every RPC of the node, on the read sockets or on the admin socket. Lives on the asyncio loop."""

# ruff: noqa: N802 - the names are those of the protos

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from hypervisor.model import (
    Allocation,
    AllocationUsage,
    Gpu,
    NodeSnapshot,
    ProcessOnGpu,
    Refusal,
    RefusalReason,
    Worker,
)
from hypervisor.rpc import convert
from hypervisor.rpc.answering import streaming, unary
from hypervisor.rpc.asyncio_host import AsyncioHost
from hypervisor.rpc.convert.enums import EVENT_TYPES
from hypervisor.rpc.convert.requests import gpu_name, invalid, plain_text, revision_from_proto
from hypervisor.rpc.event_feed import EventFeed, EventFilter
from hypervisor.rpc.holder import process_command
from hypervisor.rpc.interfaces import Diagnose, NodeCommands
from hypervisor.rpc.node_feed import NodeFeed
from hypervisor.rpc.pages import Pages, decode_token, encode_token, page_size
from hypervisor.rpc.recent import RecentMessages
from hypervisor.rpc.statistics import CallCounter
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import types_pb2

Message = TypeVar("Message")
MAX_REASON = 253
MAX_SUBJECT = 512  # pod/, a namespace and a name, of at most 253 characters each


class NodeService:
    """One instance for each kind of socket; admin_address is None on the admin socket itself."""

    def __init__(
        self,
        *,
        latest: Callable[[], NodeSnapshot],
        node_feed: NodeFeed,
        event_feed: EventFeed,
        commands: NodeCommands,
        diagnose: Diagnose | None,
        host: AsyncioHost,
        calls: CallCounter,
        admin_address: str | None,
    ) -> None:
        self.calls = calls
        self._latest = latest
        self._node_feed = node_feed
        self._event_feed = event_feed
        self._commands = commands
        self._diagnose = diagnose
        self._host = host
        self._admin_address = admin_address
        self._pages = Pages()
        self._gpus = RecentMessages(convert.gpu_to_proto)
        self._allocations = RecentMessages(convert.allocation_to_proto)

    @unary
    async def GetNode(self, request: pb.GetNodeRequest) -> pb.GetNodeResponse:
        return pb.GetNodeResponse(node=convert.node_to_proto(self._latest(), convert.Moment.now()))

    @unary
    async def ListGpus(self, request: pb.ListGpusRequest) -> pb.ListGpusResponse:
        def pick(snapshot: NodeSnapshot) -> tuple[Gpu, ...]:
            return snapshot.gpus

        page = self._pages.cut("ListGpus", request.page, self._latest(), pick, self._gpus.get)
        return pb.ListGpusResponse(
            gpus=page.items, revision=convert.revision_to_proto(page.revision), next_page_token=page.next_token
        )

    @unary
    async def GetTopology(self, request: pb.GetTopologyRequest) -> pb.GetTopologyResponse:
        snapshot = self._latest()
        known = [convert.topology_to_proto(gpu.topology) for gpu in snapshot.gpus if gpu.topology is not None]
        return pb.GetTopologyResponse(
            topology=types_pb2.Topology(gpus=known), revision=convert.revision_to_proto(snapshot.revision)
        )

    @streaming
    async def WatchNode(self, request: pb.WatchNodeRequest) -> AsyncIterator[pb.WatchNodeResponse]:
        resume = revision_from_proto(request.resume_after) if request.HasField("resume_after") else None
        async for message in self._node_feed.watch(resume):
            yield message

    @unary
    async def ListAllocations(self, request: pb.ListAllocationsRequest) -> pb.ListAllocationsResponse:
        uuid = gpu_name(request.gpu_uuid, "gpu_uuid").lower() if request.gpu_uuid else ""
        wanted = convert.identifier(request.allocation_id, "allocation_id") if request.allocation_id else ""

        def pick(snapshot: NodeSnapshot) -> list[tuple[Allocation, AllocationUsage | None]]:
            usages = {usage.allocation_id: usage for usage in snapshot.usages}
            return [
                (allocation, usages.get(allocation.spec.allocation_id))
                for allocation in snapshot.allocations
                if wanted in ("", allocation.spec.allocation_id)
                and (not uuid or any(grant.gpu_uuid.lower() == uuid for grant in allocation.grants))
            ]

        page = self._pages.cut(
            f"ListAllocations {uuid} {wanted}",
            request.page,
            self._latest(),
            pick,
            lambda pair: self._allocations.get(*pair),
        )
        return pb.ListAllocationsResponse(
            allocations=page.items, revision=convert.revision_to_proto(page.revision), next_page_token=page.next_token
        )

    @unary
    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self._require_admin("Allocate")
        spec = convert.spec_from_proto(request.spec)
        dry_run = request.dry_run

        async def allocate() -> pb.AllocateResponse:
            allocation, existed, environment = await self._commands.allocate(spec, dry_run=dry_run)
            return pb.AllocateResponse(
                allocation=convert.allocation_to_proto(allocation, None, convert.Moment.now()),
                existed=existed,
                environment=environment,
            )

        return await self._host.call_trio(allocate)

    @unary
    async def UpdateLimits(self, request: pb.UpdateLimitsRequest) -> pb.UpdateLimitsResponse:
        self._require_admin("UpdateLimits")
        allocation_id = convert.identifier(request.allocation_id, "allocation_id")
        devices = convert.devices_from_proto(request.devices, "devices")
        if not devices:
            raise invalid("devices", "no device is given, so that nothing would change", "name what is to change")
        expected = revision_from_proto(request.expected_revision) if request.HasField("expected_revision") else None
        allocation = await self._host.call_trio(self._commands.update_limits, allocation_id, devices, expected)
        usages = {usage.allocation_id: usage for usage in self._latest().usages}
        return pb.UpdateLimitsResponse(
            allocation=convert.allocation_to_proto(allocation, usages.get(allocation_id), convert.Moment.now())
        )

    @unary
    async def Release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self._require_admin("Release")
        allocation_id = convert.identifier(request.allocation_id, "allocation_id")
        remaining = await self._host.call_trio(self._commands.release, allocation_id)
        return pb.ReleaseResponse(remaining=[convert.process_to_proto(process) for process in remaining])

    @unary
    async def ListWorkers(self, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
        def pick(snapshot: NodeSnapshot) -> tuple[Worker, ...]:
            return snapshot.workers

        page = self._pages.cut("ListWorkers", request.page, self._latest(), pick, convert.worker_to_proto)
        return pb.ListWorkersResponse(
            workers=page.items, revision=convert.revision_to_proto(page.revision), next_page_token=page.next_token
        )

    @unary
    async def StartWorker(self, request: pb.StartWorkerRequest) -> pb.StartWorkerResponse:
        self._require_admin("StartWorker")
        grace = self._commands.worker_grace_seconds
        spec = convert.worker_spec_from_proto(request, default_grace_seconds=grace)
        worker = await self._host.call_trio(self._commands.start_worker, spec)
        return pb.StartWorkerResponse(worker=convert.worker_to_proto(worker))

    @unary
    async def StopWorker(self, request: pb.StopWorkerRequest) -> pb.StopWorkerResponse:
        self._require_admin("StopWorker")
        grace, name, forget = convert.grace_from_proto(request), request.worker_id, request.forget

        async def stop() -> Worker:
            return await self._commands.stop_worker(name, grace_seconds=grace, forget=forget)

        return pb.StopWorkerResponse(worker=convert.worker_to_proto(await self._host.call_trio(stop)))

    @unary
    async def Snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotResponse:
        self._require_admin("Snapshot")
        allocation, worker = _subject(request)

        async def snapshot() -> tuple[tuple[int, ...], int]:
            return await self._commands.snapshot(allocation_id=allocation, worker_id=worker)

        pids, held = await self._host.call_trio(snapshot)
        return pb.SnapshotResponse(pids=pids, bytes=held)

    @unary
    async def Resume(self, request: pb.ResumeRequest) -> pb.ResumeResponse:
        self._require_admin("Resume")
        allocation, worker = _subject(request)

        async def resume() -> tuple[int, ...]:
            return await self._commands.resume(allocation_id=allocation, worker_id=worker)

        return pb.ResumeResponse(pids=await self._host.call_trio(resume))

    @unary
    async def ListEvents(self, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        wanted = _event_filter(request.regarding, request.type)
        query = f"ListEvents {wanted}"
        after = decode_token(query, request.page.token)[:2] if request.page.token else (0, 0)
        found, end, lost = await self._event_feed.page(after, page_size(request.page), wanted)
        if lost:
            raise Refusal(
                RefusalReason.PAGE_EXPIRED,
                f"{lost} events behind the page before are no longer kept",
                field="page.token",
                remedy="begin again without a token",
            )
        return pb.ListEventsResponse(
            events=[convert.event_to_proto(event) for event in found],
            next_page_token=encode_token(query, *end, 0) if end is not None else "",
        )

    @streaming
    async def WatchEvents(self, request: pb.WatchEventsRequest) -> AsyncIterator[pb.WatchEventsResponse]:
        wanted = _event_filter(request.regarding, request.type)
        after = (request.after_epoch, request.after_sequence)
        async for message in self._event_feed.watch(after, wanted, only_new=request.only_new):
            yield message

    @unary
    async def Diagnose(self, request: pb.DiagnoseRequest) -> pb.DiagnoseResponse:
        if self._diagnose is None:
            raise _not_in_this_version("diagnoses")
        subject = plain_text(request.subject, "subject", MAX_SUBJECT)
        return convert.diagnosis_to_proto(await self._host.call_trio(self._diagnose, subject))

    @unary
    async def DetachGpu(self, request: pb.DetachGpuRequest) -> pb.DetachGpuResponse:
        self._require_admin("DetachGpu")
        uuid = self._known_gpu(request.gpu_uuid)
        reason = plain_text(request.reason, "reason", MAX_REASON)
        holders = await self._host.call_trio(self._commands.detach_gpu, uuid, reason)
        snapshot = self._latest()
        return pb.DetachGpuResponse(
            gpu=_gpu_message(snapshot, uuid), holders=[_holder_message(snapshot, process) for process in holders]
        )

    @unary
    async def AttachGpu(self, request: pb.AttachGpuRequest) -> pb.AttachGpuResponse:
        self._require_admin("AttachGpu")
        uuid = self._known_gpu(request.gpu_uuid)
        await self._host.call_trio(self._commands.attach_gpu, uuid)
        return pb.AttachGpuResponse(gpu=_gpu_message(self._latest(), uuid))

    def _require_admin(self, method: str) -> None:
        if self._admin_address is not None:
            raise Refusal(
                RefusalReason.READ_ONLY_SOCKET,
                f"{method} changes the node, and this socket answers queries only",
                remedy=f"use {self._admin_address}",
            )

    def _known_gpu(self, name: str) -> str:
        """The UUID of a GPU of this node, by its UUID or its index."""
        wanted = gpu_name(name, "gpu_uuid")
        snapshot = self._latest()
        gpu = snapshot.gpu(wanted)
        if gpu is None and wanted.isdecimal():
            gpu = next((each for each in snapshot.gpus if str(each.identity.index) == wanted), None)
        if gpu is None:
            raise Refusal(
                RefusalReason.GPU_NOT_FOUND,
                f"there is no GPU {wanted} on this node",
                field="gpu_uuid",
                remedy="see 'hypervisor get gpus'",
            )
        return gpu.identity.uuid


def _subject(request: pb.SnapshotRequest | pb.ResumeRequest) -> tuple[str, str]:
    """The allocation or the worker that is meant."""
    if not request.worker_id:
        return convert.identifier(request.allocation_id, "allocation_id"), ""
    return "", plain_text(request.worker_id, "worker_id")


def _not_in_this_version(what: str) -> Refusal:
    return Refusal(RefusalReason.UNSUPPORTED, f"{what} are not in this version of the daemon")


def _event_filter(regarding: types_pb2.ObjectReference, number: int) -> EventFilter:
    kind, namespace, name, uid = convert.reference_from_proto(regarding, "regarding")
    wanted = next((model for model, api in EVENT_TYPES.items() if api == number), None)
    if number and wanted is None:
        raise invalid("type", f"{number} is not a type of event that this version knows")
    return EventFilter(kind=kind, namespace=namespace, name=name, uid=uid, type=wanted)


def _gpu_message(snapshot: NodeSnapshot, uuid: str) -> types_pb2.Gpu | None:
    gpu = snapshot.gpu(uuid)
    return convert.gpu_to_proto(gpu, convert.Moment.now()) if gpu is not None else None


def _holder_message(snapshot: NodeSnapshot, process: ProcessOnGpu) -> pb.DeviceHolder:
    owner = next(
        (
            usage.allocation_id
            for usage in snapshot.usages
            if any(attached.host_pid == process.pid for attached in usage.processes)
        ),
        "",
    )
    return pb.DeviceHolder(pid=process.pid, command=process_command(process.pid), allocation_id=owner)
