"""Calls of the node's API as a client makes them, through the generated stubs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from hypervisor.v1 import node_pb2, node_pb2_grpc, types_pb2
from tests.daemon_process import DaemonProcess

SECONDS = 15


class Refused(Exception):
    """A call that failed: its status code and the machine-readable reason."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(error.details())
        self.code = error.code()
        self.reason = ""
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                self.reason = info.reason


@contextmanager
def stub(daemon: DaemonProcess, *, admin: bool = False) -> Iterator[node_pb2_grpc.NodeServiceStub]:
    address = daemon.admin_address if admin else daemon.read_address
    with grpc.insecure_channel(address) as channel:
        try:
            yield node_pb2_grpc.NodeServiceStub(channel)
        except grpc.RpcError as error:
            raise Refused(error) from error


def list_gpus(daemon: DaemonProcess) -> list:
    with stub(daemon) as node:
        return list(node.ListGpus(node_pb2.ListGpusRequest(), timeout=SECONDS).gpus)


def list_allocations(daemon: DaemonProcess) -> list:
    with stub(daemon) as node:
        return list(node.ListAllocations(node_pb2.ListAllocationsRequest(), timeout=SECONDS).allocations)


def list_events(daemon: DaemonProcess) -> list:
    with stub(daemon) as node:
        return list(node.ListEvents(node_pb2.ListEventsRequest(), timeout=SECONDS).events)


def allocate(daemon: DaemonProcess, name: str, *, vram_bytes: int, percent: str, gpu: str = ""):
    """A named allocation of one GPU."""
    limits = types_pb2.Resources(compute=types_pb2.Compute(percent=percent), vram_bytes=vram_bytes)
    spec = types_pb2.AllocationSpec(
        allocation_id=name,
        owner=types_pb2.Owner(name=name),
        devices=[types_pb2.DeviceRequest(gpu=gpu, limits=limits)],
        isolation=types_pb2.ISOLATION_MODE_SOFT,
    )
    with stub(daemon, admin=True) as node:
        return node.Allocate(node_pb2.AllocateRequest(spec=spec), timeout=SECONDS)


def update_limits(daemon: DaemonProcess, name: str, *, vram_bytes: int, percent: str):
    limits = types_pb2.Resources(compute=types_pb2.Compute(percent=percent), vram_bytes=vram_bytes)
    request = node_pb2.UpdateLimitsRequest(
        allocation_id=name, devices=[types_pb2.DeviceRequest(requests=limits, limits=limits)]
    )
    with stub(daemon, admin=True) as node:
        return node.UpdateLimits(request, timeout=SECONDS)


def release(daemon: DaemonProcess, name: str):
    with stub(daemon, admin=True) as node:
        return node.Release(node_pb2.ReleaseRequest(allocation_id=name), timeout=SECONDS)


@contextmanager
def watching(daemon: DaemonProcess) -> Iterator[grpc.Call]:
    """A watch that is open while the block runs, and has had its first message."""
    with grpc.insecure_channel(daemon.read_address) as channel:
        watch = node_pb2_grpc.NodeServiceStub(channel).WatchNode(node_pb2.WatchNodeRequest())
        next(watch)
        yield watch
        watch.cancel()
