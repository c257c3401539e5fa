"""A support bundle: everything that the checks read, without secrets, to be examined elsewhere with --root.

The checks run once over a recording root; what they read is what the bundle holds, so that they come to the same
verdicts over it.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from hypervisor.doctor.cluster_subject import ClusterSubject
from hypervisor.doctor.diagnose import diagnose_cluster, diagnose_node, diagnose_pod
from hypervisor.doctor.facts import NodeFacts
from hypervisor.doctor.kubernetes import DIRECTORY
from hypervisor.doctor.redaction import redact, redact_text
from hypervisor.doctor.report import as_text
from hypervisor.doctor.root import INDEX, METADATA, Recording, Root, encodable
from hypervisor.doctor.subject import NodeSubject
from hypervisor.durable import check_replaceable

FACTS = f"{METADATA}/facts.json"
REPORT = f"{METADATA}/report.txt"


@dataclass(frozen=True)
class Contents:
    """Texts by name, redacted, and the reports that were made while they were recorded."""

    texts: Mapping[str, str]
    reports: tuple[str, ...] = field(default_factory=tuple)


def record(base: Path, subject: NodeSubject, *, pods: Iterable[tuple[str, str]] = ()) -> Contents:
    """Run all checks over a root and keep what they read. subject brings facts and objects; its root is not used."""
    recording = Recording()
    root = Root(base, recording=recording)
    recorded = replace(subject, root=root)
    every = dict.fromkeys([*pods, *_pods_of(subject.facts)])
    diagnoses = [diagnose_node(recorded)]
    diagnoses += [diagnose_pod(recorded, namespace, name) for namespace, name in every]
    if subject.objects.kinds:
        diagnoses.append(diagnose_cluster(ClusterSubject(root=root, objects=subject.objects)))
    texts = {encodable(name): redact(name, text) for name, text in recording.texts.items()}
    for kind, items in subject.objects.kinds.items():
        name = f"{DIRECTORY}/{kind}.json"
        texts[name] = redact(name, msgspec.json.encode({"items": items}).decode())
    if subject.facts is not None:
        texts[FACTS] = redact_text(msgspec.json.encode(subject.facts).decode())
    texts[INDEX] = msgspec.json.encode(_encodable(msgspec.to_builtins(recording.index))).decode()
    reports = tuple(redact_text(as_text(diagnosis)) for diagnosis in diagnoses)
    texts[REPORT] = "\n\n".join(reports) + "\n"
    return Contents(texts, reports)


def write(contents: Contents, path: Path, *, now: float | None = None) -> None:
    """Write the bundle as tar.gz, readable by its owner only; the file appears whole or not at all. Raises OSError."""
    check_replaceable(path)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in sorted(contents.texts.items()):
                data = text.encode()
                member = tarfile.TarInfo(name.lstrip("/"))
                member.size, member.mode, member.mtime = len(data), 0o644, int(time.time() if now is None else now)
                archive.addfile(member, io.BytesIO(data))
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def _encodable(value: Any) -> Any:
    """What is built in, with all names such that JSON can hold them."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def _pods_of(facts: NodeFacts | None) -> list[tuple[str, str]]:
    return [(each.namespace, each.pod) for each in facts.allocations if each.pod] if facts is not None else []
