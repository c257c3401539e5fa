"""`hypervisor doctor`: why a GPU is not usable, a limit not in force, or a Pod not placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hypervisor.cli.connection import server_option
from hypervisor.cli.failure import EXIT_FAILED, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hypervisor.doctor.inspection import Inspection
    from hypervisor.doctor.subject import NodeSubject
    from hypervisor.model import Diagnosis

F = TypeVar("F", bound=Callable[..., Any])

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    envvar="HYPERVISOR_HOST_ROOT",
    show_envvar=True,
    help="Directory to examine instead of this machine: a mounted root, or a bundle that was unpacked.",
)
kubernetes_option = click.option(
    "--kubernetes",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory with KIND.json files as 'kubectl get KIND -o json' writes them.",
)
xid_policy_option = click.option(
    "--xid-policy",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="HYPERVISOR_XID_POLICY",
    show_envvar=True,
    help="The site's own meaning of single Xids, as the daemon has it.",
)
output_option = click.option("-o", "--output", type=click.Choice(["table", "json", "html"]), default="table")


@click.group()
def doctor() -> None:
    """Find the broken link between a GPU and a workload.

    Ends with 0 when no check fails, with 1 when one does.
    """


@doctor.command()
@root_option
@server_option
@kubernetes_option
@xid_policy_option
@output_option
@click.option("--gate", is_flag=True, help="End with 0 only if every check that a new node needs has passed.")
@click.option(
    "--within", metavar="SECONDS", type=click.FloatRange(0, 86400), default=0.0, help="Try the gate again for so long."
)
@click.option(
    "--job", metavar="NAMESPACE/NAME[/UID]", help="Job that gets the event DriverProbeFailed when the gate refuses."
)
@click.option("--kubeconfig", default="", help="Kubeconfig for --job; by default the service account of this Pod.")
@click.option("--cuda", metavar="VERSION", help="CUDA version that this node must be able to run, 12.4 for instance.")
@click.option(
    "--image",
    type=click.Path(path_type=Path, exists=True),
    help="Image that this node must be able to run: an OCI layout, a 'docker save' archive, or its config as JSON.",
)
@click.option("--pod", metavar="NAMESPACE/NAME", help="Running Pod whose CUDA version this node must be able to run.")
@click.option(
    "--write", "to", type=click.Path(path_type=Path, dir_okay=False), help="File for the report, for a timer to write."
)
@click.option(
    "--since",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that keeps counters from one HTML report to the next, so that it tells what has grown.",
)
@click.option(
    "--metrics",
    metavar="URL",
    default="http://127.0.0.1:8001/metrics",
    show_default=True,
    help="The daemon's metrics, from which an HTML report takes memory errors.",
)
def node(
    *,
    root: Path,
    server: str | None,
    kubernetes: Path | None,
    xid_policy: Path | None,
    output: str,
    gate: bool,
    within: float,
    job: str | None,
    kubeconfig: str,
    cuda: str | None,
    image: Path | None,
    pod: str | None,
    to: Path | None,
    since: Path | None,
    metrics: str,
) -> None:
    """Examine this node, with or without a daemon."""
    from hypervisor.cli.doctor_gate import passing, refuse
    from hypervisor.cli.doctor_inspection import inspected
    from hypervisor.cli.doctor_subject import node_subject, requirement
    from hypervisor.doctor.diagnose import diagnose_node

    subject: NodeSubject | None = None

    def look() -> Diagnosis:
        nonlocal subject
        learned = node_subject(root, server=server, kubernetes=kubernetes, xid_policy=xid_policy)
        subject = replace(learned, requirement=requirement(learned.root, cuda=cuda, image=image, pod=pod))
        return diagnose_node(subject)

    if (within or job) and not gate:
        raise CommandError("--within and --job are for --gate: give that too", status=EXIT_USAGE)
    if gate:
        diagnosis, refused = passing(look, within=within)
    else:
        diagnosis, refused = look(), ()
    # Of the very state that was diagnosed; asking once more would take as long again where somebody does not answer.
    inspection = inspected(subject, metrics=metrics, since=since) if output == "html" and subject else None
    _show(diagnosis, output, to=to, inspection=inspection)
    if refused:
        refuse(refused, job=job, kubeconfig=kubeconfig)
    elif diagnosis.first_broken and not gate:
        raise SystemExit(EXIT_FAILED)


@doctor.command("pod")
@click.argument("name", metavar="NAMESPACE/NAME")
@root_option
@server_option
@kubernetes_option
@output_option
def pod_command(*, name: str, root: Path, server: str | None, kubernetes: Path | None, output: str) -> None:
    """Examine one Pod on its node: was it injected, placed, handed its devices, and is its limit in force?"""
    from hypervisor.cli.doctor_subject import node_subject, pod_name
    from hypervisor.doctor.diagnose import diagnose_pod

    namespace, pod = pod_name(name)
    subject = node_subject(root, server=server, kubernetes=kubernetes)
    diagnosis = diagnose_pod(subject, namespace, pod)
    _show(diagnosis, output)
    if diagnosis.first_broken:
        raise SystemExit(EXIT_FAILED)


@doctor.command()
@root_option
@server_option
@kubernetes_option
@output_option
def cluster(*, root: Path, server: str | None, kubernetes: Path | None, output: str) -> None:
    """Examine all nodes of an aggregator, and the product's parts in Kubernetes."""
    from hypervisor.cli.doctor_subject import cluster_subject
    from hypervisor.doctor.diagnose import diagnose_cluster

    diagnosis = diagnose_cluster(cluster_subject(root, server=server, kubernetes=kubernetes))
    _show(diagnosis, output)
    if diagnosis.first_broken:
        raise SystemExit(EXIT_FAILED)


@doctor.command()
@click.argument("file", metavar="FILE.tar.gz", type=click.Path(path_type=Path, dir_okay=False))
@root_option
@server_option
@kubernetes_option
@click.option("--kubectl", is_flag=True, help="Take the cluster's objects along, by the kubectl of this machine.")
@click.option("--pod", "pods", metavar="NAMESPACE/NAME", multiple=True, help="A Pod besides those with a share.")
def bundle(
    *, file: Path, root: Path, server: str | None, kubernetes: Path | None, kubectl: bool, pods: tuple[str, ...]
) -> None:
    """Make a support bundle, without secrets, to be unpacked and examined elsewhere with --root.

    It holds what the checks read: look at it before you pass it on.
    """
    from hypervisor.cli.doctor_subject import node_subject, pod_name
    from hypervisor.doctor.bundle import record, write
    from hypervisor.doctor.kubectl import collect

    subject = node_subject(root, server=server, kubernetes=kubernetes)
    if kubectl:
        objects, missing = collect()
        subject = replace(subject, objects=objects)
        for line in missing:
            click.echo(f"not in the bundle: {line}", err=True)
    contents = record(root, subject, pods=[pod_name(each) for each in pods])
    try:
        write(contents, file)
    except OSError as error:
        raise CommandError(f"can't write {file}: {error.strerror or error}; name another file") from error
    click.echo(f"{file}: {len(contents.texts)} files. Examine it with 'hypervisor doctor node --root DIRECTORY'")


def _show(diagnosis: Diagnosis, output: str, *, to: Path | None = None, inspection: Inspection | None = None) -> None:
    """Print the report, or write it whole to a file."""
    from hypervisor.doctor import report
    from hypervisor.doctor.report_html import as_html
    from hypervisor.durable import check_replaceable, write_atomically

    match output:
        case "json":
            text = report.as_json(diagnosis)
        case "html":
            text = as_html(diagnosis, inspection)
        case _:
            text = report.as_text(diagnosis)
    if to is None:
        click.echo(text)
        return
    try:
        check_replaceable(to)
        write_atomically(to, f"{text}\n".encode(), mode=0o644)
    except OSError as error:
        raise CommandError(f"can't write {to}: {error.strerror or error}; name another file") from error
