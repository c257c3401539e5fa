"""Kubelet's device manager: wipes its directory when it starts, keeps a checkpoint, dials plugins back, forgets a
resource whose stream ends, and tells PodResources. One container is asked for in a call, as kubelet does today."""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from hypervisor.kube.checkpoint import checksum
from hypervisor.v1 import deviceplugin_v1beta1_pb2 as plugin_api
from hypervisor.v1 import deviceplugin_v1beta1_pb2_grpc as plugin_grpc
from hypervisor.v1 import podresources_v1_pb2 as pods_api
from hypervisor.v1 import podresources_v1_pb2_grpc as pods_grpc


class AdmissionError(Exception):
    """UnexpectedAdmissionError: the Pod has failed and is not tried again."""


@dataclass
class Given:
    """Devices of one container."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    ids: list[str]
    answer: plugin_api.ContainerAllocateResponse | None = None


@dataclass
class _Endpoint:
    resource: str
    name: str
    channel: grpc.Channel
    stub: plugin_grpc.DevicePluginStub
    devices: dict[str, str] = field(default_factory=dict)
    messages: int = 0
    stream: object = None
    stopped: bool = False


class FakeKubelet(plugin_grpc.RegistrationServicer, pods_grpc.PodResourcesListerServicer):
    """One node's kubelet, below a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugins = directory / "device-plugins"
        self.pod_resources = directory / "pod-resources"
        for each in (self.plugins, self.pod_resources):
            each.mkdir(parents=True, exist_ok=True)
        self.registrations: list[tuple[str, str]] = []
        self.given: list[Given] = []
        self.refuse_registration = 0
        self.allocate_seconds: list[float] = []
        self.preferred_seconds: list[float] = []
        self.keeps_checkpoint = True
        self.padding = 0  # Pods of no interest in each PodResources reply
        self.withheld: set[str] = set()  # resources that it has taken for stopped, whatever their stream says
        self.hide: set[str] = set()  # names of Pods that PodResources does not tell yet
        self._endpoints: dict[str, _Endpoint] = {}
        self._lock = threading.RLock()
        self._servers: list[grpc.Server] = []

    # --- life

    def start(self, *, pod_resources: bool = True) -> FakeKubelet:
        """Wipe all sockets, keep the checkpoint, serve."""
        for path in self.plugins.iterdir():
            if path.name != "kubelet_internal_checkpoint":
                path.unlink()
        self._endpoints = {}
        self._serve(self.plugins / "kubelet.sock", plugin_grpc.add_RegistrationServicer_to_server)
        if pod_resources:
            self.serve_pod_resources()
        return self

    def serve_pod_resources(self) -> None:
        (self.pod_resources / "kubelet.sock").unlink(missing_ok=True)
        self._serve(self.pod_resources / "kubelet.sock", pods_grpc.add_PodResourcesListerServicer_to_server)

    def stop(self) -> None:
        for server in self._servers:
            server.stop(0).wait()
        self._servers = []
        for endpoint in self._endpoints.values():
            endpoint.channel.close()

    def restart(self) -> FakeKubelet:
        self.stop()
        return self.start()

    def drop_stream(self, resource: str) -> None:
        """The stream ends, as when its connection breaks; the devices stay in capacity and can't be given."""
        self._endpoints[resource].stream.cancel()

    def _serve(self, socket: Path, add) -> None:
        server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=8), options=[("grpc.max_send_message_length", 16 * 2**20)]
        )
        add(self, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    # --- plugins

    def Register(self, request, context):
        if self.refuse_registration:
            self.refuse_registration -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the device manager is not ready")
        assert request.version == "v1beta1"
        assert "/" not in request.endpoint
        channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}")
        endpoint = _Endpoint(request.resource_name, request.endpoint, channel, plugin_grpc.DevicePluginStub(channel))
        with self._lock:
            self.registrations.append((request.resource_name, request.endpoint))
            self._endpoints[request.resource_name] = endpoint
        threading.Thread(target=self._follow, args=(endpoint,), daemon=True).start()
        return plugin_api.Empty()

    def _follow(self, endpoint: _Endpoint) -> None:
        try:
            endpoint.stub.GetDevicePluginOptions(plugin_api.Empty(), timeout=5)
            endpoint.stream = endpoint.stub.ListAndWatch(plugin_api.Empty())
            for message in endpoint.stream:
                assert message.ByteSize() < 4 * 2**20
                endpoint.devices = {each.ID: each.health for each in message.devices}
                endpoint.messages += 1
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
            pass
        endpoint.stopped = True

    def allocatable(self, resource: str) -> int:
        """Healthy devices of a resource with a live stream."""
        endpoint = self._endpoints.get(resource)
        if endpoint is None or endpoint.stopped:
            return 0
        return sum(health == "Healthy" for health in endpoint.devices.values())

    def capacity(self, resource: str) -> int:
        endpoint = self._endpoints.get(resource)
        return len(endpoint.devices) if endpoint is not None else 0

    # --- Pods

    def admit(self, pod: dict) -> list[Given]:
        """Give a Pod's containers their devices. Raises AdmissionError."""
        metadata, found = pod["metadata"], []
        for container in pod["spec"]["containers"]:
            for resource, amount in container.get("resources", {}).get("limits", {}).items():
                if "/" in resource:
                    found.append(self._give(metadata, container["name"], resource, int(amount)))
        return found

    def _give(self, metadata: dict, container: str, resource: str, count: int) -> Given:
        with self._lock:
            endpoint = self._endpoints.get(resource)
            if endpoint is None or endpoint.stopped:
                raise AdmissionError(f"cannot allocate unregistered device {resource}")
            used = {each for given in self.given if given.resource == resource for each in given.ids}
            free = sorted(each for each, health in endpoint.devices.items() if health == "Healthy" and each not in used)
            if len(free) < count:
                raise AdmissionError(f"requested {count} of {resource}, available {len(free)}")
            try:
                ids, answer = self._asked(endpoint.stub, free, count)
            except grpc.RpcError as error:
                raise AdmissionError(error.details()) from error
            given = Given(
                metadata["uid"],
                metadata["namespace"],
                metadata["name"],
                container,
                resource,
                ids,
                answer,
            )
            self.given.append(given)
            self._write_checkpoint()
            return given

    def _asked(
        self, stub: plugin_grpc.DevicePluginStub, free: list[str], count: int
    ) -> tuple[list[str], plugin_api.ContainerAllocateResponse]:
        """The ids that the plugin prefers, and its answer for them. Raises grpc.RpcError."""
        began = time.perf_counter()
        preferred = stub.GetPreferredAllocation(
            plugin_api.PreferredAllocationRequest(
                container_requests=[
                    plugin_api.ContainerPreferredAllocationRequest(
                        available_deviceIDs=free, must_include_deviceIDs=[], allocation_size=count
                    )
                ]
            ),
            timeout=5,
        )
        self.preferred_seconds.append(time.perf_counter() - began)
        ids = list(preferred.container_responses[0].deviceIDs)
        began = time.perf_counter()
        reply = stub.Allocate(
            plugin_api.AllocateRequest(container_requests=[plugin_api.ContainerAllocateRequest(devices_ids=ids)]),
            timeout=10,
        )
        self.allocate_seconds.append(time.perf_counter() - began)
        return ids, reply.container_responses[0]

    def give_foreign(self, metadata: dict, container: str, resource: str, ids: list[str]) -> None:
        """Another plugin's devices."""
        with self._lock:
            self.given.append(Given(metadata["uid"], metadata["namespace"], metadata["name"], container, resource, ids))
            self._write_checkpoint()

    def forget(self, pod_uid: str) -> None:
        """The devices of a Pod that is over are free again."""
        with self._lock:
            self.given = [each for each in self.given if each.pod_uid != pod_uid]
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        if not self.keeps_checkpoint:
            return
        data = {
            "PodDeviceEntries": [
                {
                    "PodUID": each.pod_uid,
                    "ContainerName": each.container,
                    "ResourceName": each.resource,
                    "DeviceIDs": {"-1": each.ids},
                    "AllocResp": base64.b64encode(
                        each.answer.SerializeToString() if each.answer is not None else b""
                    ).decode(),
                }
                for each in self.given
            ],
            "RegisteredDevices": {resource: sorted(endpoint.devices) for resource, endpoint in self._endpoints.items()},
        }
        path = self.plugins / "kubelet_internal_checkpoint"
        unfinished = path.with_name(".checkpoint")
        unfinished.write_text(json.dumps({"Data": data, "Checksum": checksum(data)}))
        unfinished.replace(path)

    # --- PodResources

    def List(self, request, context):
        by_container: dict[tuple[str, str, str], list[Given]] = {}
        with self._lock:
            for each in self.given:
                if each.pod not in self.hide:
                    by_container.setdefault((each.namespace, each.pod, each.container), []).append(each)
        reply = pods_api.ListPodResourcesResponse()
        for (namespace, pod, container), given in by_container.items():
            entry = reply.pod_resources.add(name=pod, namespace=namespace)
            resources = entry.containers.add(name=container)
            for each in given:
                resources.devices.add(resource_name=each.resource, device_ids=each.ids)
        for number in range(self.padding):
            entry = reply.pod_resources.add(name=f"padding-{number}", namespace="padding")
            entry.containers.add(name="c").devices.add(
                resource_name="example.com/thing", device_ids=[f"thing-{number}-{each}" for each in range(100)]
            )
        return reply

    def Get(self, request, context):
        for pod in self.List(None, context).pod_resources:
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pods_api.GetPodResourcesResponse(pod_resources=pod)
        return context.abort(grpc.StatusCode.NOT_FOUND, "no such Pod")

    def GetAllocatableResources(self, request, context):
        reply = pods_api.AllocatableResourcesResponse()
        for resource, endpoint in self._endpoints.items():
            healthy = [each for each, health in endpoint.devices.items() if health == "Healthy"]
            if healthy and not endpoint.stopped and resource not in self.withheld:
                reply.devices.add(resource_name=resource, device_ids=sorted(healthy))
        return reply
