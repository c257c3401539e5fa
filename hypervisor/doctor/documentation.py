"""docs/doctor.md, made from the checks: `python -m hypervisor.doctor.documentation > docs/doctor.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hypervisor.doctor.check import Check
from hypervisor.doctor.checks import CLUSTER_CHECKS, NODE_CHECKS, POD_CHECKS
from hypervisor.doctor.symptoms import SYMPTOMS

_HEAD = """# hypervisor doctor

Finds the broken link between a GPU and a workload, says what it saw, why that is so, and what to do.

| command | examines |
|---|---|
| `hypervisor doctor node` | this node, with or without a daemon: driver, daemon, registration, allocatable, scheduling, runtime |
| `hypervisor doctor node --gate` | the same; ends with 0 only if every check marked **gate** has passed, for new nodes |
| `hypervisor doctor node --gate --image FILE` | also whether the driver runs the CUDA of an image; `--cuda 12.4` or `--pod NS/NAME` instead |
| `hypervisor doctor node --gate --within 300 --job NS/NAME/UID` | the same, tried again for so long; a failure becomes the event DriverProbeFailed on that Job |
| `hypervisor doctor pod NS/NAME` | one Pod on its node: injected, placed, started, handed its devices, limited |
| `hypervisor doctor cluster --server HOST:PORT` | all nodes of an aggregator, and the product's parts in Kubernetes |
| `hypervisor doctor bundle FILE.tar.gz` | nothing: it packs what the checks read, without secrets |

`-o table`, `-o json` (the fields of `DiagnoseResponse`) or `-o html`; `--write FILE` writes the report whole or not at all. `--root DIR` examines a mounted root or an unpacked bundle in place of this machine. `--kubernetes DIR` takes Kubernetes objects from files `nodes.json`, `pods.json`, `events.json` and so on, as `kubectl get nodes -o json` writes them. Without a daemon the driver is asked once, by the same child process that the daemon uses. The daemon runs the same checks for the call `Diagnose`.

Verdicts: `pass`; `warn`, it works with less than it should give, or not for long; `fail`, a broken link; `skip`, the check says nothing of this machine, a link before it is broken, or what it reads may not be read (then run it as root). What depends on a broken link is skipped, and everything else still runs. Exit status: 0 when nothing failed, 1 when something did.

A node passes the gate or does not, so that it can be the last step of an installation, or a Kubernetes Job on a new node (`deploy/driver-probe.yaml`), whose failure is the event DriverProbeFailed on the Job. What a node has not (no kubelet, no container runtime) counts as passed; what may not be read does not.

The daily inspection is the HTML report of a node with what has grown since the last one. `systemd/hypervisor-inspection.timer` makes it each night:

    hypervisor doctor node -o html --write /var/lib/hypervisor/doctor.html --since /var/lib/hypervisor/doctor.json

The daemon runs the checks of its node by itself, a minute after its start and then every `doctor_interval_seconds` (600; 0: never). A check whose verdict has changed is an event about the node (`DoctorCheckFailed`, `DoctorCheckWarned`, `DoctorCheckPassed`), what fails is the condition `DoctorFindings` of the node and its reports, and `gpuhv_doctor_checks` counts checks by verdict.

`--xid-policy FILE` (or `HYPERVISOR_XID_POLICY`) gives the site's own meaning of Xids, as the daemon has it by `xid_policy`.

Sources: *article* is "Kubernetes GPU resource allocation, diagnosed along its whole chain", *handbook* and *events reference* are TensorFusion's, numbers like 9.2/23 are rows of our own collection of bug reports. Where a source's advice is wrong, the check gives the right one and says so in its row.
"""  # noqa: E501 - Markdown has one line a paragraph


def document() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for title, checks in (
        ("Checks of a node", NODE_CHECKS),
        ("Checks of a Pod", tuple(each for each in POD_CHECKS if not each.id.startswith("symptom."))),
        ("Checks of a cluster", CLUSTER_CHECKS),
    ):
        yield f"## {title}\n"
        yield from _table(
            ("check", "stage", "asks", "looks at", "comes after", "source"),
            (_row(each) for each in checks),
        )
        yield ""
    yield "## Messages of a Pod\n"
    yield "Each is a check `symptom.NAME` of `doctor pod`.\n"
    rows = (
        (f"`{each.id}`", each.stage.value, each.place.value, f"`{each.pattern}`", each.cause, each.remedy, each.source)
        for each in SYMPTOMS
    )
    yield from _table(("name", "stage", "where", "words", "cause", "remedy", "source"), rows)


def _row(each: Check[Any]) -> Sequence[str]:
    name = f"`{each.id}`" + (" **gate**" if each.gate else "")
    return name, each.stage.value, each.asks, each.looks_at, ", ".join(each.requires), each.source


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


if __name__ == "__main__":
    sys.stdout.write(document() + "\n")
