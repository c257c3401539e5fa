"""Which processes of this node belong to a Pod: by their cgroup, whatever the runtime, and else by their variables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypervisor.doctor.pod_logs import DIRECTORY
from hypervisor.doctor.process_files import Process, environment, processes
from hypervisor.doctor.root import Root, UnreadableError

_POD = re.compile(r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")


def pod_uid_of(cgroup: str) -> str:
    """UID of the Pod in the text of /proc/PID/cgroup, with dashes; "" when it is in none."""
    uid = ""
    for match in _POD.finditer(cgroup):
        uid = match["uid"].replace("_", "-")
    return uid


def pod_uids(root: Root, namespace: str, name: str) -> frozenset[str]:
    """UIDs of the Pod of this name, by the kubelet's log folders."""
    prefix = f"{namespace}_{name}_"
    return frozenset(folder[len(prefix) :] for folder in root.names(DIRECTORY) if folder.startswith(prefix))


def pod_processes(root: Root, namespace: str, name: str, *, known: Iterable[int] = ()) -> tuple[Process, ...]:
    """Processes of a Pod, by pid. known are host pids that the daemon names."""
    uids, pids = pod_uids(root, namespace, name), frozenset(known)
    return tuple(
        process
        for process in processes(root)
        if process.pid in pids or _in_pod(root, process, uids) or _says_so(root, process, namespace, name)
    )


def _in_pod(root: Root, process: Process, uids: frozenset[str]) -> bool:
    try:
        return bool(uids) and pod_uid_of(root.text(f"/proc/{process.pid}/cgroup") or "") in uids
    except UnreadableError:
        return False


def _says_so(root: Root, process: Process, namespace: str, name: str) -> bool:
    try:
        variables = environment(root, process)
    except UnreadableError:
        return False
    return (variables.get("POD_NAMESPACE"), variables.get("POD_NAME")) == (namespace, name)
