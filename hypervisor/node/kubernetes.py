"""The Kubernetes mode put together: kubelet's plugins, the watch of Pods, and what binds them to allocations.

It is a guest of the daemon: what fails here is a condition and is tried again, and the rest works on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import structlog
import trio

from hypervisor.allocations import Allocations
from hypervisor.config import Settings
from hypervisor.kube.answers import HostFiles
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.demands import Demands
from hypervisor.model import Condition, ConditionStatus, HealthCode, HealthState, Inventory, NodeSnapshot, OwnerKind
from hypervisor.node.commands import Commands
from hypervisor.node.kubernetes_answering import Answering
from hypervisor.node.kubernetes_api import open_api
from hypervisor.node.kubernetes_asking import Asking
from hypervisor.node.kubernetes_bell import Bell
from hypervisor.node.kubernetes_binder import Binder
from hypervisor.node.kubernetes_binding import Binding
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_grants import GrantStore
from hypervisor.node.kubernetes_host import Host, check_paths
from hypervisor.node.kubernetes_pods import PodWatch
from hypervisor.node.kubernetes_recovery import adopt
from hypervisor.node.kubernetes_tentative import Tentative
from hypervisor.node.kubernetes_use import CardUse
from hypervisor.node.kubernetes_view import HasStatistics
from hypervisor.node.publisher import EmitEvent, failed
from hypervisor.rpc.asyncio_host import AsyncioHost
from hypervisor.rpc.device_plugin import DevicePlugins
from hypervisor.rpc.listening import parse_unix
from hypervisor.rpc.pod_resources import PodResourcesClient
from hypervisor.rpc.pod_resources_proxy import Granted, serve_proxy
from hypervisor.rpc.right_of_way import RightOfWay

log = structlog.get_logger("kubernetes")
LOOK_SECONDS = 1.0
CHECKPOINT_SECONDS = 5.0
_USABLE = frozenset({HealthState.HEALTHY, HealthState.DEGRADED})


class KubernetesNode:
    """The mode's parts, and what the rest of the daemon reads of them. Made by open_kubernetes()."""

    def __init__(
        self,
        settings: Settings,
        *,
        host: AsyncioHost,
        allocations: Allocations,
        inventory: Callable[[], Inventory],
        publish: Callable[[], object],
        snapshot: Callable[[], NodeSnapshot],
        disk: Host,
        files: HostFiles,
        pods: PodWatch,
        events: PodEvents,
        binder: Binder,
        use: CardUse,
        plugins: DevicePlugins,
        pod_resources: PodResourcesClient,
    ) -> None:
        self._settings = settings
        self._host = host
        self._allocations = allocations
        self._inventory = inventory
        self._publish = publish
        self._snapshot = snapshot
        self._disk = disk
        self._files = files
        self._pod_resources = pod_resources
        self.pods = pods
        self.events = events
        self.binder = binder
        self.plugins = plugins
        self.use = use
        self._granted: Granted = {}

    @property
    def feeds(self) -> Mapping[str, HasStatistics]:
        """What has statistics, by name."""
        return {
            "device_plugin": self.plugins,
            "pods": self.pods,
            "pod_events": self.events,
            "binder": self.binder,
            "card_use": self.use,
        }

    @property
    def used_by(self) -> Mapping[str, str]:
        """By GPU UUID, who else has a card."""
        return self.use.used_by

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is wrong with the mode now."""
        found = (
            (HealthCode.KUBELET_UNREACHABLE, self.plugins.failing),
            (HealthCode.API_SERVER_UNREACHABLE, self.pods.failing),
            (HealthCode.POD_RESOURCES_UNREACHABLE, self.binder.kubelet_failing),
            (HealthCode.CHECKPOINT_REJECTED, self._disk.checkpoint_failing),
            (HealthCode.CDI_FAILED, self._disk.cdi_failing),
            (
                HealthCode.PROCESSES_HIDDEN,
                f"{self.use.hidden} processes on GPUs can't be attributed; run with the host's PID namespace"
                if self.use.hidden
                else "",
            ),
        )
        return tuple(failed(code, why) for code, why in found if why)

    def overlaid(self, inventory: Inventory) -> Inventory:
        """The inventory with what is in other hands."""
        return self.use.overlaid(inventory)

    async def run(self) -> None:
        """Serve kubelet and follow the Pods for ever. Cancelling ends the streams and removes the sockets."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._host.call, self.plugins.run)
            nursery.start_soon(self.pods.run)
            nursery.start_soon(self.events.run)
            nursery.start_soon(self.binder.run)
            nursery.start_soon(self._look_around)
            nursery.start_soon(self._check_the_checkpoint)
            if self._settings.pod_resources_proxy:
                address = parse_unix(self._settings.pod_resources_proxy, "pod_resources_proxy")
                nursery.start_soon(
                    self._host.call, serve_proxy, address, self._disk.pod_resources_socket, lambda: self._granted
                )

    def follow(self, snapshot: NodeSnapshot) -> None:
        """Tell kubelet at once how the node is: a Pod that comes while all ids are unhealthy fails for good."""
        self.plugins.publish(healthy=can_give(snapshot))

    def look(self) -> None:
        """Look once at what others use, and bring files up to date."""
        inventory = self._inventory()
        allocations = self._allocations
        if self.use.step(inventory, self.binder.assignments, allocations.all, allocations.usages):
            self.binder.try_again()
        self.follow(self._snapshot())
        self._granted = granted_to_containers(self._allocations)
        self._disk.write_cdi(
            tuple(device.identity for device in inventory.devices),
            self._allocations.all,
            self._files,
            driver_version=inventory.system.driver_version,
        )
        self._publish()

    async def _look_around(self) -> None:
        while True:
            self.look()
            await trio.sleep(LOOK_SECONDS)

    async def _check_the_checkpoint(self) -> None:
        """It is what is left when PodResources fail: that it can't be used is to be known before."""
        while True:
            await self._disk.checkpoint()
            await trio.sleep(CHECKPOINT_SECONDS)


@asynccontextmanager
async def open_kubernetes(
    settings: Settings,
    *,
    host: AsyncioHost,
    allocations: Allocations,
    commands: Commands,
    inventory: Callable[[], Inventory],
    publish: Callable[[], object],
    snapshot: Callable[[], NodeSnapshot],
    emit: EmitEvent,
    node_name: str,
    workload_environment: Mapping[str, str],
    way: RightOfWay,
) -> AsyncIterator[KubernetesNode]:
    """The mode, not yet running; inventory is the driver's own. Raises StartError for settings that can't work."""
    check_paths(settings)
    if settings.pod_resources_proxy:
        parse_unix(settings.pod_resources_proxy, "pod_resources_proxy")
    disk = Host(settings)
    files = disk.provide(workload_environment)
    grants = GrantStore.open(settings.state_path / "kubernetes" / "grants")
    async with open_api(settings.kubeconfig) as api:
        events, bell = PodEvents(api, emit, node_name), Bell()
        pods = PodWatch(api, node_name, bell.ring)
        client = PodResourcesClient(disk.pod_resources_socket)
        use = CardUse(pods=pods, host=disk, events=events)
        seen, demands = lambda: use.overlaid(inventory()), Demands()
        tentative = Tentative(
            settings,
            allocations=allocations,
            commands=commands,
            inventory=seen,
            pods=pods,
            grants=grants,
            demands=demands,
        )
        binding = Binding(
            settings,
            allocations=allocations,
            commands=commands,
            inventory=seen,
            grants=grants,
            events=events,
            demands=demands,
            tentative=tentative,
        )

        def learned(found: tuple[Assignment, ...]) -> None:
            if use.step(inventory(), found, allocations.all, allocations.usages):
                binding.try_again()

        asking = Asking(
            pods=pods,
            host=disk,
            grants=grants,
            ask_kubelet=lambda: host.call(client.list),
            learned=learned,
        )
        binder = Binder(
            allocations=allocations,
            pods=pods,
            host=disk,
            grants=grants,
            events=events,
            demands=demands,
            binding=binding,
            asking=asking,
            publish=publish,
            bell=bell,
            way=way,
        )
        answering = Answering(
            allocations=allocations,
            inventory=seen,
            pods=pods,
            host=disk,
            files=files,
            grants=grants,
            demands=demands,
            tentative=tentative,
            binding=binding,
            answered=binder.look_again,
        )
        adopt(grants, allocations)
        node = KubernetesNode(
            settings,
            host=host,
            allocations=allocations,
            inventory=inventory,
            publish=publish,
            snapshot=snapshot,
            disk=disk,
            files=files,
            pods=pods,
            events=events,
            binder=binder,
            use=use,
            plugins=DevicePlugins(host, disk.plugins_directory, answering, client.allocatable, way),
            pod_resources=client,
        )
        try:
            yield node
        finally:
            with trio.CancelScope(shield=True):
                await host.call(client.close)


def can_give(snapshot: NodeSnapshot) -> bool:
    """Can this node give a share at all? One bad GPU is no reason, all of them are."""
    ready = any(each.type == "Ready" and each.status is ConditionStatus.TRUE for each in snapshot.conditions)
    return ready and any(gpu.health in _USABLE for gpu in snapshot.gpus)


def granted_to_containers(allocations: Allocations) -> Granted:
    """What exporters are told, by namespace, Pod and container."""
    return {
        (owner.namespace, owner.name, owner.container): tuple(each.gpu_uuid for each in allocation.grants)
        for allocation in allocations.all
        if (owner := allocation.spec.owner).kind is OwnerKind.POD
    }
