"""`hypervisor kube`: what this node would do with a Pod, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from hypervisor.cli.connection import admin_server_option, connected
from hypervisor.cli.failure import EXIT_USAGE, CommandError
from hypervisor.model import GpuIdentity, Partition, Refusal


@click.group()
def kube() -> None:
    """Kubernetes on this node."""


@kube.command(name="dry-run")
@click.argument("file", type=click.File("r"))
@admin_server_option
def dry_run(*, file: Any, server: str | None) -> None:
    """Say what this node would do with the Pod of FILE (YAML or JSON, - for stdin), and why not.

    Nothing is changed. The status is 0 when every container would get what it asks for, and 1 otherwise.
    """
    pod = _read(file)
    with connected(server, admin=True) as client:
        lines = list(_judged(pod, client))
    failed = False
    for good, text in lines:
        click.echo(f"{'ok' if good else 'no'}  {text}")
        failed = failed or not good
    if failed:
        raise CommandError(f"the Pod {pod.label} would not run as it asks; the lines above say why")


def _read(file: Any) -> Any:
    import yaml

    from hypervisor.kube.pod import PodError, pod_from_mapping

    try:
        documents = [each for each in yaml.safe_load_all(file) if each is not None]
        if len(documents) != 1:
            raise CommandError(f"{file.name} has {len(documents)} documents; give one Pod", status=EXIT_USAGE)
        document = documents[0]
        if isinstance(document, dict) and document.get("kind") != "Pod":
            raise CommandError(f"{file.name} is a {document.get('kind')} and no Pod", status=EXIT_USAGE)
        return pod_from_mapping(document)
    except (yaml.YAMLError, UnicodeDecodeError, PodError) as error:
        raise CommandError(f"{file.name}: {' '.join(str(error).split())}", status=EXIT_USAGE) from error
    except RecursionError as error:
        raise CommandError(f"{file.name} is nested too deeply to be a Pod; give one Pod", status=EXIT_USAGE) from error


def _judged(pod: Any, client: Any) -> Iterator[tuple[bool, str]]:
    """Lines about a Pod, and whether each is good."""
    from hypervisor.kube.annotations import AnnotationError, is_ours, parse, unknown_keys

    annotations = dict(pod.annotations)
    for key in unknown_keys(annotations):
        yield False, f"annotation {key} means nothing; is it misspelt?"
    asking = [container for container in pod.containers if container.index_resource]
    if not asking:
        words = "a share" if is_ours(annotations) else "nothing of this node's GPUs"
        yield (
            not is_ours(annotations),
            (
                f"its annotations ask for {words}, and no container asks for tensor-fusion.ai/index_0 to index_f,"
                " so kubelet would not ask for it"
            ),
        )
        return
    try:
        demand = parse(annotations)
    except AnnotationError as error:
        yield False, str(error)
        return
    cards, held = _cards(client)
    for container in asking:
        yield _judge_container(pod, container, demand, cards, held, client)


def _judge_container(
    pod: Any, container: Any, demand: Any, cards: list[GpuIdentity], held: set[str], client: Any
) -> tuple[bool, str]:
    from dataclasses import replace

    from hypervisor.config import Settings
    from hypervisor.kube.demands import spec_of
    from hypervisor.kube.indices import BadIndexError, index_of, requested_index
    from hypervisor.rpc.convert.requests import spec_to_proto
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    def fits(spec: Any) -> Any:
        named = replace(spec, owner=replace(spec.owner, pod_uid=spec.owner.pod_uid or "dry-run"))
        request = node_pb2.AllocateRequest(spec=spec_to_proto(named), dry_run=True)
        return client.call(node_pb2_grpc.NodeServiceStub(client.channel).Allocate, request)

    try:
        resource, count = requested_index(dict(container.resources)) or ("", 0)
        index = index_of(resource, count)
        known = replace(pod, uid=pod.uid or "dry-run")
        spec = spec_of(known, container.name, demand, cards, settings=Settings(), held=held, fits=fits)
        granted = fits(spec).allocation
    except (BadIndexError, Refusal) as error:
        return False, f"container {container.name}: {error}"
    from hypervisor.cli.allocate import granted_words

    return True, (
        f"container {container.name} would get {granted_words(granted)}, {demand.isolation.value} isolation, as index "
        f"{index} ({count} of {resource})"
    )


def _cards(client: Any) -> tuple[list[GpuIdentity], set[str]]:
    """The node's GPUs, and the UUIDs of those with allocations."""
    from hypervisor.v1 import node_pb2, node_pb2_grpc

    found = client.call(node_pb2_grpc.NodeServiceStub(client.channel).ListGpus, node_pb2.ListGpusRequest()).gpus
    return [_identity(gpu) for gpu in found], {gpu.uuid for gpu in found if gpu.allocation_ids}


def _identity(gpu: Any) -> GpuIdentity:
    partition = None
    if gpu.HasField("partition"):
        partition = Partition(
            parent_uuid=gpu.partition.parent_uuid,
            gpu_instance_id=gpu.partition.gpu_instance_id,
            compute_instance_id=gpu.partition.compute_instance_id,
            profile=gpu.partition.profile,
        )
    return GpuIdentity(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor if gpu.HasField("minor") else None,
        pci_bus_id=gpu.pci_bus_id,
        pci_device_id=gpu.pci_device_id,
        model=gpu.model,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        compute_capability=gpu.compute_capability,
        sm_count=None,
        serial=gpu.serial,
        vbios_version=gpu.vbios_version,
        partition=partition,
        simulated=gpu.simulated,
    )
