"""What an image preloads by itself and loses, because our /etc/ld.so.preload is mounted over its own.

The file below a mount can't be seen through the container's root. It is looked for in the layers that the root is made
of, which the mount table names; where they can't be reached from here, nothing is known and nothing is said.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hypervisor.allocations.held import Held
from hypervisor.allocations.processes import ProcessTable
from hypervisor.allocations.telling import Tell
from hypervisor.model import EventType, OwnerKind

PRELOAD = "/etc/ld.so.preload"
_MOST_BYTES = 4096
_MOST_NAMES = 5


def tell_covered(all_held: Iterable[Held], table: ProcessTable, tell: Tell) -> None:
    """One event for each container of a Pod whose image had an /etc/ld.so.preload of its own."""
    for held in all_held:
        if held.allocation.spec.owner.kind is not OwnerKind.POD:
            continue
        for process in held.processes:
            mark = f"preload in {process.pid_namespace}"  # a container's, mostly: each is looked at once
            if process.host_pid is None or mark in held.reported:
                continue
            held.reported.add(mark)
            names = covered_preload(process.host_pid, table.proc)
            if names:
                _tell(held, process.host_pid, names, tell)


def _tell(held: Held, pid: int, names: tuple[str, ...], tell: Tell) -> None:
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += f" and {len(names) - _MOST_NAMES} more"
    tell.event(
        held.reference,
        EventType.WARNING,
        "PreloadCovered",
        f"the image of process {pid} of '{held.allocation.spec.allocation_id}' preloads {shown} in {PRELOAD}, which "
        "the limiter's covers, so these are not loaded; run the node with --preload-hook and --cdi-dir to keep both",
        pid=str(pid),
    )


def covered_preload(pid: int, proc: Path) -> tuple[str, ...] | None:
    """What the image of a host process names in the file that a mount covers; empty where nothing is covered.

    None where that can't be said from here: no mount table, a root that is not made of layers, layers out of reach.
    """
    try:
        mounts = [_parse(line) for line in (proc / str(pid) / "mountinfo").read_text(errors="replace").splitlines()]
    except OSError:
        return None
    known = [mount for mount in mounts if mount is not None]
    if not any(mount.point == PRELOAD for mount in known):
        return ()
    layers = next((mount.layers for mount in reversed(known) if mount.point == "/"), ())
    if not layers:
        return None
    for layer in layers:
        # The host's root is that of its first process; of a host that does not let us look there, it is our own.
        found = _read(proc / "1" / "root" / layer.lstrip("/")) or _read(Path(layer))
        if found is None:
            return None
        if found.there:
            return tuple(found.text.replace(":", " ").split())
    return ()


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    layers: tuple[str, ...]  # of an overlay with absolute paths, the uppermost first


def _parse(line: str) -> _Mount | None:
    """A line of mountinfo: fields, a dash, type, source and options."""
    fields, _, rest = line.partition(" - ")
    parts, kind = fields.split(), rest.split(" ", 2)
    if len(parts) < 5 or len(kind) < 3:
        return None
    if kind[0] != "overlay":
        return _Mount(_plain(parts[4]), ())
    upper: list[str] = []
    lower: list[str] = []
    for option in kind[2].split(","):
        name, _, value = option.partition("=")
        if name == "upperdir":
            upper = [_plain(value)]
        elif name in ("lowerdir", "lowerdir+"):
            lower += [_plain(each) for each in value.split(":") if each]
    layers = (*upper, *lower)
    return _Mount(_plain(parts[4]), layers if all(layer.startswith("/") for layer in layers) else ())


def _plain(text: str) -> str:
    """Blanks and the like are written as octal numbers."""
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\054", ","), ("\\072", ":"), ("\\134", "\\")):
        text = text.replace(escaped, plain)
    return text


@dataclass(frozen=True, slots=True)
class _Found:
    there: bool  # here, or removed here: what lies below does not count
    text: str = ""


def _read(layer: Path) -> _Found | None:
    """The file in one layer; None: the layer can't be reached. A tenant writes there, so no link is followed."""
    try:
        root = os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        etc = os.open("etc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    except OSError:
        return _Found(there=False)
    finally:
        os.close(root)
    try:
        status = os.stat("ld.so.preload", dir_fd=etc, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return _Found(there=True)  # removed by this layer, or nothing that the loader would read
        file = os.open("ld.so.preload", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=etc)
        try:
            data = os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
    except OSError:
        return _Found(there=False)
    finally:
        os.close(etc)
    text = "".join(
        chr(byte) if 32 < byte < 127 else " " for line in data.splitlines() for byte in line.split(b"#")[0] + b" "
    )
    return _Found(there=True, text=text)
