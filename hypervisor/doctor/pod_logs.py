"""Logs that the kubelet keeps on the node, below /var/log/pods/NAMESPACE_NAME_UID/CONTAINER."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.doctor.root import Root

DIRECTORY = "/var/log/pods"


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """The newest log of a container; restart is the number in its file's name."""

    namespace: str
    pod: str
    uid: str
    container: str
    restart: int
    lines: tuple[str, ...]


def logs(root: Root, name_contains: str, *, namespace: str | None = None) -> list[ContainerLog]:
    """Logs of all containers of Pods with this text in their name."""
    found = []
    for folder in root.names(DIRECTORY):
        parts = folder.split("_")
        if len(parts) != 3 or name_contains not in parts[1] or namespace not in (None, parts[0]):
            continue
        for container in root.names(f"{DIRECTORY}/{folder}"):
            files = [name for name in root.names(f"{DIRECTORY}/{folder}/{container}") if name.endswith(".log")]
            numbers = sorted(int(name[:-4]) for name in files if name[:-4].isdecimal())
            if numbers:
                text = root.text(f"{DIRECTORY}/{folder}/{container}/{numbers[-1]}.log") or ""
                lines = tuple(_content(line) for line in text.splitlines())
                found.append(ContainerLog(parts[0], parts[1], parts[2], container, numbers[-1], lines))
    return found


def _content(line: str) -> str:
    """Without the runtime's own "TIME stdout F " before each line."""
    parts = line.split(" ", 3)
    return parts[3] if len(parts) == 4 and parts[1] in ("stdout", "stderr") else line
