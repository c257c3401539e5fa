"""Kubelet's device plugin API, served: one socket a resource, registered anew whenever kubelet's or ours is another.

Kubelet wipes the directory when it starts, tells nobody, and forgets a plugin whose stream ends. So what is there is
looked at again and again, and a resource is registered when kubelet's socket, our socket or the stream is not the one
that was registered; and when kubelet, asked, does not offer what it was told, for the end of an earlier stream may have
been taken for that of the new one. On the asyncio loop, but for publish() and what is read of an instance.
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from hypervisor.kube.answers import ContainerAnswer, preferred
from hypervisor.kube.indices import bucket_of, device_ids, resource_names
from hypervisor.model import Refusal
from hypervisor.rpc.address import UnixAddress
from hypervisor.rpc.asyncio_host import AsyncioHost, HostClosing
from hypervisor.rpc.channel_options import CLIENT_OPTIONS, SERVER_OPTIONS
from hypervisor.rpc.listening import ListenError, remove_socket, unix_socket_place
from hypervisor.rpc.pod_resources import PodResourcesError
from hypervisor.rpc.right_of_way import RightOfWay
from hypervisor.v1 import deviceplugin_v1beta1_pb2 as api
from hypervisor.v1 import deviceplugin_v1beta1_pb2_grpc as api_grpc

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
LOOK_SECONDS = 0.25
# Kubelet opens the stream as soon as a plugin has registered; one that is registered and has none was forgotten.
STREAM_SECONDS = 3.0
# How often kubelet is asked what it offers, and how long it may offer something else than it was told.
VERIFY_SECONDS = 15.0
MISMATCH_SECONDS = 30.0
CALL_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 10.0
SOCKET_MODE = 0o600


class PluginHandler(Protocol):
    """Who decides what a container is given; awaited in trio."""

    async def allocate(self, resource: str, containers: Sequence[tuple[str, ...]]) -> tuple[ContainerAnswer, ...]:
        """One answer a container. Raises Refusal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatistics:
    """State now and counters since the start; allocate_seconds is how long the last Allocate took."""

    registered: int
    streams: int
    registrations_total: int
    registration_failures_total: int
    mismatches_total: int
    allocations_total: int
    allocation_failures_total: int
    last_allocate_seconds: float


class DevicePlugins:
    """All index resources of a node. Made in trio, run on the loop."""

    def __init__(
        self,
        host: AsyncioHost,
        directory: Path,
        handler: PluginHandler,
        offered: Callable[[], Awaitable[Mapping[str, int]]],
        way: RightOfWay,
    ) -> None:
        """offered: by resource, how many devices kubelet would give; awaited on the loop, raises PodResourcesError.
        way: what Allocate passes by."""
        self._host = host
        self._way = way
        self._offered = offered
        self._next_verification = 0.0
        self.mismatches = 0
        self._directory = directory
        self._handler = handler
        self._plugins = tuple(_Plugin(self, resource) for resource in resource_names())
        self._healthy = False
        self._changed: asyncio.Event | None = None
        self._closing = False
        self._failing = "the plugins have not been registered yet"
        self._failures = 0
        self._next_try = 0.0
        self.registrations = self.registration_failures = 0
        self.allocations = self.allocation_failures = 0
        self.last_allocate_seconds = 0.0

    @property
    def failing(self) -> str:
        """Why kubelet does not have our resources; "" when it does."""
        return self._failing

    @property
    def healthy(self) -> bool:
        """What kubelet is told of all ids."""
        return self._healthy

    @property
    def closing(self) -> bool:
        """Do the streams end?"""
        return self._closing

    def publish(self, *, healthy: bool) -> None:
        """Tell kubelet whether anything can be given; from any thread, and cheap when nothing changes."""
        if healthy != self._healthy:
            self._host.post(self._set_healthy, healthy)

    def statistics(self) -> PluginStatistics:
        """Counters since the start."""
        return PluginStatistics(
            registered=sum(plugin.registered_with is not None for plugin in self._plugins),
            streams=sum(plugin.streams for plugin in self._plugins),
            registrations_total=self.registrations,
            registration_failures_total=self.registration_failures,
            mismatches_total=self.mismatches,
            allocations_total=self.allocations,
            allocation_failures_total=self.allocation_failures,
            last_allocate_seconds=self.last_allocate_seconds,
        )

    async def run(self) -> None:
        """Serve and keep registered for ever. Cancelling ends the streams, the servers and the sockets."""
        self._changed = asyncio.Event()
        try:
            while True:
                await self._look()
                if time.monotonic() >= self._next_verification:
                    self._next_verification = time.monotonic() + VERIFY_SECONDS
                    await self._verify()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._closing = True
            self._wake()
            await asyncio.gather(*(plugin.stop() for plugin in self._plugins))

    async def changed(self) -> None:
        """Until the health changes, or the end begins; on the loop."""
        if self._changed is not None:
            await self._changed.wait()

    async def allocate(self, resource: str, containers: Sequence[tuple[str, ...]]) -> tuple[ContainerAnswer, ...]:
        """Ask the handler. Raises Refusal or HostClosing."""
        began = time.monotonic()
        try:
            with self._way.asked():
                answers = await self._host.call_trio(self._handler.allocate, resource, containers)
        except Refusal:
            self.allocation_failures += 1
            raise
        self.allocations += 1
        self.last_allocate_seconds = time.monotonic() - began
        return answers

    def _set_healthy(self, healthy: bool) -> None:  # noqa: FBT001 - posted with positional arguments
        self._healthy = healthy
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = asyncio.Event()

    async def _look(self) -> None:
        if time.monotonic() < self._next_try:
            return
        try:
            await self._bring_about()
        except ListenError as error:
            self._wait(str(error))
        except OSError as error:
            self._wait(f"kubelet's directory {self._directory} can't be used: {error.strerror or error}")
        except grpc.aio.AioRpcError as error:
            self.registration_failures += 1
            self._wait(f"kubelet did not take the registration: {error.details() or error.code().name}")
        else:
            self._failures = 0

    async def _bring_about(self) -> None:
        socket = self._directory / KUBELET_SOCKET
        os.stat(self._directory)  # noqa: PTH116 - it is kubelet's to make, and not ours
        for plugin in self._plugins:
            if not plugin.is_served():
                await plugin.serve(self._directory)
        kubelet = _identity(socket)
        if kubelet is None:
            self._failing = f"kubelet's socket {socket} is not there; it is waited for"
            return
        wanting = [plugin for plugin in self._plugins if plugin.wants_registration(kubelet)]
        if wanting:
            await self._register(socket, kubelet, wanting)
        self._failing = ""

    async def _register(self, socket: Path, kubelet: tuple[int, int, int], wanting: list[_Plugin]) -> None:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CLIENT_OPTIONS) as channel:
            stub = api_grpc.RegistrationStub(channel)
            for plugin in wanting:
                await stub.Register(
                    api.RegisterRequest(
                        version=VERSION,
                        endpoint=plugin.socket_name,
                        resource_name=plugin.resource,
                        options=api.DevicePluginOptions(get_preferred_allocation_available=True),
                    ),
                    timeout=CALL_SECONDS,
                )
                plugin.registered(kubelet)
                self.registrations += 1

    async def _verify(self) -> None:
        """Forget the registration of what kubelet has not offered for long, so that it is made anew."""
        if not self._healthy:
            return  # nothing is offered, and rightly
        try:
            offered = await self._offered()
        except PodResourcesError:
            return  # it is a condition of who asks for assignments
        for plugin in self._plugins:
            if plugin.is_withheld(offered.get(plugin.resource, 0)):
                self.mismatches += 1
                plugin.registered_with = None

    def _wait(self, why: str) -> None:
        self._failing = why
        self._failures += 1
        longest = min(LONGEST_WAIT_SECONDS, LOOK_SECONDS * 2**self._failures)
        # Spread out, for all nodes of a cluster may be upgraded at once.
        self._next_try = time.monotonic() + longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class _Plugin(api_grpc.DevicePluginServicer):
    """One resource: its socket, its server, and what of it kubelet knows."""

    def __init__(self, owner: DevicePlugins, resource: str) -> None:
        self._owner = owner
        self.resource = resource
        self.socket_name = f"tensor-fusion-{resource.rpartition('/')[2].replace('_', '-')}.sock"
        self.registered_with: tuple[int, int, int] | None = None
        self.streams = 0
        self._without_stream_since = 0.0
        self._withheld_since: float | None = None
        self._server: grpc.aio.Server | None = None
        self._address: UnixAddress | None = None
        self._inode = 0
        ids = device_ids(bucket_of(resource) or 0)
        self._lists = {
            healthy: api.ListAndWatchResponse(
                devices=[api.Device(ID=each, health="Healthy" if healthy else "Unhealthy") for each in ids]
            )
            for healthy in (True, False)
        }

    def is_served(self) -> bool:
        """Is our socket still the one in the directory?"""
        if self._server is None or self._address is None:
            return False
        try:
            return self._address.path.lstat().st_ino == self._inode
        except OSError:
            return False

    def wants_registration(self, kubelet: tuple[int, int, int]) -> bool:
        """Is this kubelet without us? It is when it is another one, or when it let go of our stream."""
        if self.registered_with != kubelet:
            return True
        return not self.streams and time.monotonic() - self._without_stream_since > STREAM_SECONDS

    def is_withheld(self, offered: int) -> bool:
        """Has kubelet offered another number of devices than we told it, for long, over a stream that lives?"""
        if offered == len(self._lists[True].devices) or not self.streams:
            self._withheld_since = None
            return False
        self._withheld_since = self._withheld_since or time.monotonic()
        return time.monotonic() - self._withheld_since > MISMATCH_SECONDS

    def registered(self, kubelet: tuple[int, int, int]) -> None:
        """This kubelet has taken us."""
        self.registered_with, self._withheld_since = kubelet, None
        self._without_stream_since = time.monotonic()

    async def serve(self, directory: Path) -> None:
        """Bind the socket anew and serve. Raises ListenError or OSError."""
        await self.stop()
        address = UnixAddress(directory / self.socket_name)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        api_grpc.add_DevicePluginServicer_to_server(self, server)
        with unix_socket_place(address, mode=SOCKET_MODE):
            try:
                server.add_insecure_port(address.target)
            except RuntimeError as error:
                raise ListenError(f"can't listen on {address}: {error}") from error
            self._inode = address.path.lstat().st_ino
        await server.start()
        self._server, self._address, self.registered_with = server, address, None

    async def stop(self) -> None:
        """End the server, and its socket unless another one is in its place."""
        server, self._server, self.registered_with = self._server, None, None
        if server is not None:
            await server.stop(0)
        if self._address is not None:
            remove_socket(self._address, self._inode)

    async def GetDevicePluginOptions(self, request: object, context: object) -> api.DevicePluginOptions:  # noqa: N802
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[api.ListAndWatchResponse]:  # noqa: N802
        self.streams += 1
        try:
            told: bool | None = None
            while not self._owner.closing:
                if told is not self._owner.healthy:
                    told = self._owner.healthy
                    yield self._lists[told]
                else:
                    await self._owner.changed()
        finally:
            self.streams -= 1
            self._without_stream_since = time.monotonic()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: object
    ) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(
                    deviceIDs=preferred(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
                )
                for each in request.container_requests
            ]
        )

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:  # noqa: N802
        containers = [tuple(each.devices_ids) for each in request.container_requests]
        try:
            answers = await self._owner.allocate(self.resource, containers)
        except Refusal as refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refusal.reason.value}: {refusal}")
            raise  # abort() has raised
        except HostClosing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the daemon is stopping")
            raise
        return api.AllocateResponse(container_responses=[_to_proto(each) for each in answers])

    async def PreStartContainer(self, request: object, context: object) -> api.PreStartContainerResponse:  # noqa: N802
        return api.PreStartContainerResponse()


def _to_proto(answer: ContainerAnswer) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(answer.environment),
        mounts=[
            api.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[api.DeviceSpec(container_path=node, host_path=node, permissions="rw") for node in answer.nodes],
        cdi_devices=[api.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def _identity(socket: Path) -> tuple[int, int, int] | None:
    """Which socket this is; an inode number alone may come again at once."""
    try:
        found = os.lstat(socket)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None
