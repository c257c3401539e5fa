"""From /proc/PID/cgroup to the Pod and the container that a process is of: v1, v2 and hybrid, systemd and cgroupfs
drivers, containerd, CRI-O, Docker, Podman, and nodes that are containers themselves. Pure; fed with recorded text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEX = "[0-9a-f]"
# The UID of a Pod has dashes, which systemd writes as underscores; that of a static Pod is a hash without any.
_UID = rf"{_HEX}{{8}}(?P<dash>[-_])(?:{_HEX}{{4}}(?P=dash)){{3}}{_HEX}{{12}}|{_HEX}{{32}}"
_POD = re.compile(rf"(?:^|[-/])pod(?P<uid>{_UID})(?![0-9a-f])")
_CONTAINER = re.compile(rf"(?:^|[-:/]){_HEX}{{64}}(?![0-9a-f])")
# Lines of cgroup v1 that kubelet always fills, the most telling first; "" is v2's only line.
_CONTROLLERS = ("memory", "devices", "pids", "cpu", "name=systemd", "")


@dataclass(frozen=True, slots=True)
class Residence:
    """Where a process lives. pod_uid is "" outside of Pods, container_id "" outside of containers.

    hidden: the path is cut off by a cgroup namespace, so that nothing can be said.
    """

    pod_uid: str = ""
    container_id: str = ""
    hidden: bool = False


def residence(text: str) -> Residence:
    """The residence that the text of /proc/PID/cgroup tells. A line that matches nothing says nothing."""
    paths = _paths(text)
    found = [_of_path(path) for path in paths]
    best = next((each for each in found if each.pod_uid), None) or next(
        (each for each in found if each.container_id), None
    )
    if best is not None:
        return best
    return Residence(hidden=bool(paths) and all(path == "/" or path.startswith("/..") for path in paths))


def _paths(text: str) -> list[str]:
    """Paths of the lines, the most telling first; malformed lines are left out."""
    ranked: list[tuple[int, str]] = []
    for line in text.split("\n"):  # a cgroup may be named by what other functions take for the end of a line
        number, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if not (first and second and number.isdigit() and path.startswith("/")):
            continue
        ranks = [_CONTROLLERS.index(name) for name in controllers.split(",") if name in _CONTROLLERS]
        ranked.append((min(ranks, default=len(_CONTROLLERS)), path))
    return [path for _, path in sorted(ranked, key=lambda entry: entry[0])]


def _of_path(path: str) -> Residence:
    pod_uid, rest = "", path
    # A node that is a container has its own path in front, and a Pod may run a cluster: the innermost Pod counts,
    # for its kubelet is not ours only where ours can't see it either.
    for match in _POD.finditer(path):
        pod_uid, rest = match["uid"].replace("_", "-"), path[match.end() :]
    containers = _CONTAINER.findall(rest)
    container_id = containers[-1].lstrip("-:/") if containers else ""
    return Residence(pod_uid=pod_uid, container_id=container_id)
