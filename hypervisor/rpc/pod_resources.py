"""Kubelet's PodResources API, asked: which containers have which devices. On the asyncio loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from hypervisor.kube.checkpoint import Assignment
from hypervisor.rpc.channel_options import CLIENT_OPTIONS
from hypervisor.v1 import podresources_v1_pb2 as api
from hypervisor.v1 import podresources_v1_pb2_grpc as api_grpc

# Kubelet itself allows its clients this much; a node with many Pods and devices needs more than gRPC's 4 MiB.
MOST_BYTES = 16 * 2**20
CALL_SECONDS = 10.0
OPTIONS = (
    *(option for option in CLIENT_OPTIONS if option[0] != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", MOST_BYTES),
)


class PodResourcesError(Exception):
    """Kubelet could not be asked; the text says why."""


class PodResourcesClient:
    """One kubelet, found again when it restarts: the channel follows the path."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None

    async def list(self) -> tuple[Assignment, ...]:
        """All devices of all containers. Raises PodResourcesError."""
        return assignments(await self._ask("List", api.ListPodResourcesRequest()))

    async def allocatable(self) -> Mapping[str, int]:
        """By resource, how many devices kubelet would give. Raises PodResourcesError."""
        reply = await self._ask("GetAllocatableResources", api.AllocatableResourcesRequest())
        found: Counter[str] = Counter()
        for devices in reply.devices:
            found[devices.resource_name] += len(devices.device_ids)
        return found

    async def _ask(self, method: str, request: Message) -> Any:
        if not self._socket.exists():
            raise PodResourcesError(f"kubelet's socket {self._socket} is not there")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=OPTIONS)
        stub = api_grpc.PodResourcesListerStub(self._channel)
        try:
            return await getattr(stub, method)(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise PodResourcesError(f"kubelet at {self._socket}: {error.details() or error.code().name}") from error

    async def close(self) -> None:
        """End the connection; the next question makes another one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def assignments(reply: api.ListPodResourcesResponse) -> tuple[Assignment, ...]:
    """What a reply says: ids of one container and resource together, whatever their NUMA node."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for pod in reply.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                key = (pod.namespace, pod.name, container.name, devices.resource_name)
                found.setdefault(key, []).extend(devices.device_ids)
    return tuple(
        Assignment(
            resource=resource, device_ids=tuple(sorted(ids)), container=container, namespace=namespace, pod_name=pod
        )
        for (namespace, pod, container, resource), ids in found.items()
    )
