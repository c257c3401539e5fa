"""From a Pod and a container to the allocation that it asks for. Pure, but for asking admission what would fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from hypervisor.config import Settings
from hypervisor.kube.annotations import AnnotationError, Demand, parse
from hypervisor.kube.names import WORKLOAD
from hypervisor.kube.placing import place, shares_of_containers
from hypervisor.kube.pod import Pod
from hypervisor.model import (
    Allocation,
    AllocationSpec,
    DeviceRequest,
    GpuIdentity,
    IsolationMode,
    Owner,
    OwnerKind,
    Refusal,
    RefusalReason,
    Resources,
)


class Demands:
    """Parses each set of annotations once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[tuple[str, str], ...], Demand | AnnotationError]] = {}

    def of(self, pod: Pod) -> Demand:
        """The demand of a Pod. Raises AnnotationError."""
        known = self._known.get(pod.uid)
        if known is None or known[0] != pod.annotations:
            try:
                known = (pod.annotations, parse(dict(pod.annotations)))
            except AnnotationError as error:
                known = (pod.annotations, error)
            self._known[pod.uid] = known
        if isinstance(known[1], AnnotationError):
            raise known[1]
        return known[1]

    def indices(self, pods: Mapping[str, Pod]) -> Mapping[str, int]:
        """By Pod UID, the index that a scheduler has written."""
        found = {}
        for pod in pods.values():
            try:
                index = self.of(pod).index
            except AnnotationError:
                continue
            if index is not None:
                found[pod.uid] = index
        return found

    def forget_all_but(self, pods: Mapping[str, Pod]) -> None:
        """Keep nothing of Pods that are gone."""
        for uid in [uid for uid in self._known if uid not in pods]:
            del self._known[uid]


def spec_of(
    pod: Pod,
    container: str,
    demand: Demand,
    devices: Sequence[GpuIdentity],
    *,
    settings: Settings,
    held: Collection[str],
    fits: Callable[[AllocationSpec], object],
    given: Sequence[str] = (),
    existing: bool = False,
) -> AllocationSpec:
    """What is asked of admission for one container. fits raises Refusal for what can't be granted; given are the cards
    that it has already; existing: no MIG
    instance is to be made for it. Raises Refusal."""
    _check_mode(demand.isolation, settings)
    draft = AllocationSpec(
        allocation_id=_allocation_id(pod, container, demand),
        owner=Owner(kind=OwnerKind.POD, name=pod.name, namespace=pod.namespace, pod_uid=pod.uid, container=container),
        devices=(),
        isolation=demand.isolation,
        qos=demand.qos,
        labels=((WORKLOAD, pod.workload),) if pod.workload else (),
    )
    requests = place(
        demand,
        container,
        devices,
        held=held,
        fits=lambda some: fits(replace(draft, devices=some)),
        given=given,
        existing=existing,
    )
    return replace(draft, devices=requests)


def changed_requests(allocation: Allocation, demand: Demand) -> tuple[DeviceRequest, ...] | None:
    """The devices of an allocation with the figures of a demand; None when it has them already. Raises Refusal for
    another mode."""
    if demand.isolation is not allocation.spec.isolation:
        raise Refusal(
            RefusalReason.ISOLATION_CONFLICT,
            f"the Pod runs in {allocation.spec.isolation.value} mode, and its annotation now says "
            f"{demand.isolation.value}",
            field="isolation",
            remedy="delete the Pod to change its mode",
        )
    if demand.isolation is IsolationMode.PARTITIONED:
        return None  # an instance has the figures of its profile
    wanted = tuple(
        replace(
            each,
            requests=_over(each.requests, demand.requests),
            limits=_over(each.limits, demand.limits),
        )
        for each in allocation.spec.devices
    )
    return None if wanted == allocation.spec.devices else wanted


def _over(now: Resources, wanted: Resources) -> Resources:
    """What a change can change: a figure can't be taken back to "none"."""
    return Resources(
        compute=wanted.compute if wanted.compute is not None else now.compute,
        vram_bytes=wanted.vram_bytes if wanted.vram_bytes is not None else now.vram_bytes,
    )


def _check_mode(isolation: IsolationMode, settings: Settings) -> None:
    if settings.isolation_policy == "static" and isolation.value != settings.isolation_mode:
        raise Refusal(
            RefusalReason.ISOLATION_CONFLICT,
            f"all cards of this node are in {settings.isolation_mode} mode, and the Pod asks for {isolation.value}",
            field="isolation",
            remedy=f"ask for {settings.isolation_mode}, or for another node",
        )


def _allocation_id(pod: Pod, container: str, demand: Demand) -> str:
    """The Pod's UID; with the place of the container where several share the Pod's GPUs."""
    asking = [each.name for each in pod.containers if each.index_resource]
    named = shares_of_containers(demand)
    if container not in asking:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"container {container} of Pod {pod.label} asks for no index resource",
            field="owner.container",
        )
    if len(asking) == 1 and (not named or container in named):
        return pod.uid
    if container not in named:
        raise Refusal(
            RefusalReason.INVALID_ARGUMENT,
            f"{len(asking)} containers of the Pod ask for index resources ({', '.join(asking)}), and the annotations do"
            f" not say what {container} gets",
            field="owner.container",
            remedy="say it with tensor-fusion.ai/container-gpu-count, or let one container ask",
        )
    return f"{pod.uid}.{asking.index(container)}"
