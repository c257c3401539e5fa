"""PodResources for those who want real GPUs: kubelet's answers, with our index ids replaced by the cards behind them.

An exporter that labels GPUs with Pods looks for nvidia.com/gpu and UUIDs; of ours it would see ids that mean nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import grpc

from hypervisor.kube.names import INDEX_RESOURCE, NATIVE_RESOURCE
from hypervisor.rpc.address import UnixAddress
from hypervisor.rpc.channel_options import SERVER_OPTIONS
from hypervisor.rpc.listening import ListenError, remove_socket, unix_socket_place
from hypervisor.rpc.pod_resources import CALL_SECONDS, MOST_BYTES, OPTIONS
from hypervisor.v1 import podresources_v1_pb2 as api
from hypervisor.v1 import podresources_v1_pb2_grpc as api_grpc

MODE = 0o660
# By namespace, Pod and container, the UUIDs that were granted.
Granted = Mapping[tuple[str, str, str], tuple[str, ...]]
_OPTIONS = (
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.max_send_message_length"),
    ("grpc.max_send_message_length", MOST_BYTES),
)


async def serve_proxy(address: UnixAddress, kubelet: Path, granted: Callable[[], Granted]) -> None:
    """Serve for ever, on the loop. Raises ListenError. Cancelling ends the server and its socket."""
    server = grpc.aio.server(options=_OPTIONS)
    async with grpc.aio.insecure_channel(f"unix:{kubelet}", options=OPTIONS) as channel:
        api_grpc.add_PodResourcesListerServicer_to_server(_Proxy(channel, granted), server)
        with unix_socket_place(address, mode=MODE):
            try:
                server.add_insecure_port(address.target)
            except RuntimeError as error:
                raise ListenError(f"can't listen on {address}: {error}") from error
            inode = address.path.lstat().st_ino
        await server.start()
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop(0)
            remove_socket(address, inode)


class _Proxy(api_grpc.PodResourcesListerServicer):
    """Forwards each call, and rewrites what is ours."""

    def __init__(self, channel: grpc.aio.Channel, granted: Callable[[], Granted]) -> None:
        self._kubelet = api_grpc.PodResourcesListerStub(channel)
        self._granted = granted

    async def List(self, request: Any, context: Any) -> api.ListPodResourcesResponse:  # noqa: N802
        reply: api.ListPodResourcesResponse = await _forwarded(
            self._kubelet.List(request, timeout=CALL_SECONDS), context
        )
        for pod in reply.pod_resources:
            rewrite(pod, self._granted())
        return reply

    async def Get(self, request: Any, context: Any) -> api.GetPodResourcesResponse:  # noqa: N802
        reply: api.GetPodResourcesResponse = await _forwarded(self._kubelet.Get(request, timeout=CALL_SECONDS), context)
        rewrite(reply.pod_resources, self._granted())
        return reply

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await _forwarded(self._kubelet.GetAllocatableResources(request, timeout=CALL_SECONDS), context)


def rewrite(pod: api.PodResources, granted: Granted) -> None:
    """Replace our resources in place; a container that was granted nothing yet keeps none of them."""
    for container in pod.containers:
        kept = [each for each in container.devices if not each.resource_name.startswith(INDEX_RESOURCE)]
        if len(kept) == len(container.devices):
            continue
        uuids = granted.get((pod.namespace, pod.name, container.name), ())
        if uuids:
            kept.append(api.ContainerDevices(resource_name=NATIVE_RESOURCE, device_ids=uuids))
        del container.devices[:]
        container.devices.extend(kept)


async def _forwarded(call: Coroutine[Any, Any, Any], context: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), f"kubelet: {error.details()}")
