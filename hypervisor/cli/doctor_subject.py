"""What the options of `hypervisor doctor` name, made into what its checks take."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hypervisor.cli.failure import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hypervisor.doctor.cluster_subject import ClusterSubject
    from hypervisor.doctor.cuda import CudaRequirement
    from hypervisor.doctor.kubernetes import Objects
    from hypervisor.doctor.root import Root
    from hypervisor.doctor.subject import NodeSubject


def node_subject(
    root: Path, *, server: str | None, kubernetes: Path | None, xid_policy: Path | None = None
) -> NodeSubject:
    """The node that a root, or this machine, is, with what can be learned of it. Raises CommandError."""
    from hypervisor.cli.doctor_source import facts_of_node, open_root
    from hypervisor.doctor.subject import NodeSubject
    from hypervisor.gpu.health.policy import PolicyError

    files = open_root(root)
    facts, why = facts_of_node(files, server)
    subject = NodeSubject(
        root=files,
        facts=facts,
        facts_absent=why,
        objects=objects_from(files, kubernetes),
        now=time.time(),
        xid_policy_file=xid_policy,
    )
    try:
        _ = subject.xid_policy
    except PolicyError as error:
        raise CommandError(f"--xid-policy: {error}", status=EXIT_USAGE) from error
    return subject


def cluster_subject(root: Path, *, server: str | None, kubernetes: Path | None) -> ClusterSubject:
    """The cluster of an aggregator, of Kubernetes objects, or of a bundle."""
    from hypervisor.cli.doctor_source import facts_of_cluster, open_root
    from hypervisor.doctor.cluster_subject import ClusterSubject

    files = open_root(root)
    facts, why = facts_of_cluster(files, server)
    return ClusterSubject(root=files, facts=facts, facts_absent=why, objects=objects_from(files, kubernetes))


def objects_from(root: Root, directory: Path | None) -> Objects:
    """Kubernetes objects of a directory, or those that a bundle brings. Raises CommandError."""
    from hypervisor.doctor.kubernetes import Objects
    from hypervisor.doctor.root import UnreadableError

    try:
        return Objects.read(root) if directory is None else Objects.read_directory(directory)
    except UnreadableError as error:
        where = "--root" if directory is None else f"--kubernetes {directory}"
        raise CommandError(f"{where}: {error}", status=EXIT_USAGE) from error


def requirement(root: Root, *, cuda: str | None, image: Path | None, pod: str | None) -> CudaRequirement | None:
    """The CUDA version that was asked for by one of the three options; None when none was given."""
    from hypervisor.doctor.cuda import CudaRequirement
    from hypervisor.doctor.image import ImageError, environment_of

    if sum(option is not None for option in (cuda, image, pod)) > 1:
        raise CommandError("--cuda, --image and --pod exclude each other: give one of them", status=EXIT_USAGE)
    if cuda is not None:
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?", cuda):
            raise CommandError(f"--cuda takes a version like 12.4, and not {cuda!r}", status=EXIT_USAGE)
        return CudaRequirement("--cuda", cuda)
    if image is not None:
        try:
            variables = environment_of(image)
        except ImageError as error:
            raise CommandError(f"--image: {error}", status=EXIT_USAGE) from error
        found = CudaRequirement.from_environment(variables, origin=f"image {image.name}")
        if found is None:
            raise CommandError(f"--image: {image} says nothing of CUDA (no CUDA_VERSION, no NVIDIA_REQUIRE_CUDA)")
        return found
    return None if pod is None else _of_pod(root, pod)


def _of_pod(root: Root, pod: str) -> CudaRequirement:
    from hypervisor.doctor.cuda import CudaRequirement
    from hypervisor.doctor.pod_processes import pod_processes
    from hypervisor.doctor.process_files import environment

    namespace, name = pod_name(pod)
    for process in pod_processes(root, namespace, name):
        found = CudaRequirement.from_environment(environment(root, process), origin=f"Pod {pod}")
        if found is not None:
            return found
    raise CommandError(f"--pod: no process of {pod} on this node says which CUDA it has; does it run here?")


def pod_name(text: str) -> tuple[str, str]:
    """Namespace and name. Raises CommandError."""
    namespace, slash, name = text.partition("/")
    if not (slash and namespace and name) or "/" in name:
        raise CommandError(f"a Pod is named NAMESPACE/NAME, and not {text!r}", status=EXIT_USAGE)
    return namespace, name
