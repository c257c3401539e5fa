"""The plain manifests of deploy/, and the table of values in the docs, from the Helm chart, which is their source; and
the names of settings in the schema of its values, from the settings.

    make manifests

writes them; a test fails while they differ from what is there. Helm comes with the development environment.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from buildsupport.native import ROOT
from hypervisor.config import setting_names

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
SCHEMA = CHART / "values.schema.json"
DOCUMENT = ROOT / "docs/install-kubernetes.md"
HELM = Path(sys.executable).parent / "helm"
NAMESPACE = "tensor-fusion-sys"
TABLE = ("<!-- values: made by `make manifests` -->\n", "<!-- end of values -->\n")
# Settings that the chart gives by itself, from other values and from what it mounts.
_OWN_SETTINGS = frozenset(
    {
        "base_dir",
        "host_dir",
        "http_listen",
        "http_port",
        "kubeconfig",
        "kubelet_dir",
        "kubernetes",
        "node_name",
        "pod_logs_dir",
        "report_to",
        "report_token",
        "state_dir",
        "tls_dir",
        "worker_launcher",
    }
)
_SOURCE = "# Source: gpu-hypervisor/templates/"


class HelmError(Exception):
    """What Helm says of a chart or of values that it can't use."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One plain file: which templates it holds, with which values, and what people read at its top."""

    name: str
    templates: tuple[str, ...]
    values: tuple[str, ...]
    head: str


_NODE = ("namespace", "node-rights", "node-daemonset")
_AGGREGATOR = ("aggregator-rights", "aggregator-services", "aggregator-deployment")
MANIFESTS = (
    Manifest(
        "node.yaml",
        _NODE,
        ("namespace.create=true", "aggregator.enabled=false"),
        "The hypervisor on each GPU node: kubectl apply -f deploy/node.yaml\n"
        "Label the nodes that it shall run on: kubectl label node NODE nvidia.com/gpu.present=true",
    ),
    Manifest(
        "aggregator.yaml",
        _AGGREGATOR,
        (),
        "The aggregator of a cluster: kubectl apply -f deploy/crds -f deploy/aggregator.yaml\n"
        "Before it: the namespace (deploy/node.yaml makes it), and the Secret tensor-fusion-aggregator-tls with\n"
        "ca.crt, tls.crt and tls.key, which `hypervisor certs` or the cluster's own authority makes.",
    ),
    Manifest(
        "cluster.yaml",
        (*_NODE, *_AGGREGATOR, "annotations-policy", "network-policy"),
        ("namespace.create=true",),
        "All of it, with nodes that report to the aggregator: kubectl apply -k deploy, which takes deploy/crds along.\n"
        "Before it, the Secret and the ConfigMap of docs/install-kubernetes.md.",
    ),
    Manifest(
        "workers.yaml",
        ("workers-daemonset",),
        ("node.workers.enabled=true",),
        "The worker Pod of each node: supervised workers and MPS control daemons run in it, so that they outlive the\n"
        "Pod of the daemon. Apply it beside node.yaml, and tell the daemon:\n"
        "  kubectl -n tensor-fusion-sys set env daemonset/hypervisor \\\n"
        "    HYPERVISOR_WORKER_LAUNCHER=unix:/run/hypervisor/workers.sock",
    ),
    Manifest(
        "annotations-policy.yaml",
        ("annotations-policy",),
        (),
        "Who may patch a Pod may write an annotation. Those that only schedulers and operators write are kept to\n"
        "them: kubectl apply -f deploy/annotations-policy.yaml   (Kubernetes 1.30 or later)",
    ),
    Manifest(
        "network-policy.yaml",
        ("network-policy",),
        (),
        "Lets in only what each port is for: kubectl apply -f deploy/network-policy.yaml",
    ),
    Manifest(
        "gpupool.yaml",
        ("gpupool",),
        ("pool.create=true",),
        "A pool of all nodes with GPUs: kubectl apply -f deploy/gpupool.yaml",
    ),
    Manifest(
        "driver-probe.yaml",
        ("driver-probe",),
        ("driverProbe.nodes={GPU-NODE}",),
        "The gate of a new node: a Job that ends well only if the node passes every check that GPUs need, the\n"
        "driver's first. Its failure is the event DriverProbeFailed on the Job. It looks at the node's files and\n"
        "changes nothing.\n"
        "\n"
        "  sed 's/GPU-NODE/gpu-node-01/' deploy/driver-probe.yaml | kubectl apply -f -\n"
        "  kubectl -n tensor-fusion-sys wait --for=condition=complete job/driver-probe-gpu-node-01 --timeout=10m",
    ),
)


@functools.cache
def render(*arguments: str | Path) -> str:
    """What `helm template` makes of the chart with these arguments.

    Raises:
        HelmError: values that the chart or its schema refuses.
    """
    command = [HELM, "template", "gpu-hypervisor", CHART, "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return done.stdout


def documents(text: str) -> Iterator[tuple[str, str]]:
    """Each document of Helm's output with the name of its template."""
    for part in text.split("---\n"):
        first, _, rest = part.partition("\n")
        if first.startswith(_SOURCE):
            yield first.removeprefix(_SOURCE).removesuffix(".yaml"), rest


def plain(manifest: Manifest) -> str:
    """The text of a plain file. In Helm's order: what others need comes first."""
    settings = [argument for value in manifest.values for argument in ("--set", value)]
    parts = [text.strip("\n") for name, text in documents(render(*settings)) if name in manifest.templates]
    head = "".join(f"# {line}".rstrip() + "\n" for line in manifest.head.split("\n"))
    return f"{head}# Made from deploy/chart by `make manifests`.\n" + "\n---\n".join(parts) + "\n"


def kustomization() -> str:
    """What `kubectl apply -k deploy` takes."""
    crds = [f"crds/{path.name}" for path in sorted((DEPLOY / "crds").glob("*.yaml"))]
    lines = "".join(f"  - {name}\n" for name in [*crds, "cluster.yaml"])
    return (
        "# kubectl apply -k deploy; with a kustomization of your own, this directory is a resource of it.\n"
        "# Made from deploy/chart by `make manifests`.\n"
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{lines}"
    )


def value_rows(text: str) -> Iterator[tuple[str, str]]:
    """Path and meaning of each value that has a comment `# -- …`."""
    place: list[tuple[int, str]] = []
    meaning = ""
    for line in text.splitlines():
        content = line.strip()
        if content.startswith("#"):
            meaning = content.removeprefix("# -- ") if content.startswith("# -- ") else ""
        elif content and not content.startswith("- "):
            indent = len(line) - len(line.lstrip())
            place = [*((at, name) for at, name in place if at < indent), (indent, content.partition(":")[0])]
            if meaning:
                yield ".".join(name for _, name in place), meaning
            meaning = ""


def value_table() -> str:
    """The values as a table of Markdown."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    lines = ["| value | default | what |", "|---|---|---|"]
    for path, meaning in value_rows(text):
        default = json.dumps(_at(values, path.split(".")), ensure_ascii=False)
        lines.append(f"| `{path}` | `{default}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def with_table(text: str) -> str:
    """The docs page with the table as it shall be."""
    before, rest = text.split(TABLE[0])
    _, after = rest.split(TABLE[1])
    return before + TABLE[0] + value_table() + TABLE[1] + after


def schema() -> str:
    """The schema of the values, with the names of all settings that people may give."""
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    names = found["properties"]["node"]["properties"]["settings"]["propertyNames"]
    names["enum"] = sorted(set(setting_names()) - _OWN_SETTINGS)
    return json.dumps(found, indent=1) + "\n"


def files() -> dict[Path, str]:
    """Every file that is made from the chart, with its content."""
    made = {DEPLOY / manifest.name: plain(manifest) for manifest in MANIFESTS}
    made[DEPLOY / "kustomization.yaml"] = kustomization()
    made[SCHEMA] = schema()
    made[DOCUMENT] = with_table(DOCUMENT.read_text(encoding="utf-8"))
    return made


def main() -> None:
    """Write them."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
