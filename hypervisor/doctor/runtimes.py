"""Configuration of container runtimes, as far as GPUs are concerned; parsers are pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hypervisor.doctor import yaml_text
from hypervisor.doctor.root import Root

CONTAINERD = "/etc/containerd/config.toml"
CRIO = "/etc/crio"
DOCKER = "/etc/docker/daemon.json"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
UNREADABLE = "unreadable"  # in place of a mode
# A later one wins. The last is the second by its other name, for roots in which no link leads from one to the other.
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
BINARIES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/toolkit",
    "/opt/nvidia/toolkit",
    "/run/nvidia/toolkit",
    "/usr/sbin",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One container runtime that is configured here. handlers: names that have an NVIDIA binary, and that binary."""

    name: str
    file: str
    handlers: Mapping[str, str]
    cdi: bool
    default_handler: str = ""
    problem: str = ""


def runtimes(root: Root) -> list[Runtime]:
    """All container runtimes that have a configuration here."""
    found = [_containerd(root), _crio(root), _docker(root)]
    return [runtime for runtime in found if runtime is not None]


def toolkit_mode(root: Root) -> str:
    """Mode of nvidia-container-runtime: auto, legacy, cdi, csv, jit-cdi; "" without its configuration, UNREADABLE where
    that is none."""
    text = root.text(TOOLKIT)
    if text is None:
        return ""
    try:
        mode = tomllib.loads(text).get("nvidia-container-runtime", {}).get("mode", "auto")
    except tomllib.TOMLDecodeError:
        return UNREADABLE
    return str(mode)


def toolkit_binary(root: Root, name: str) -> str:
    """Where a program of the toolkit lies; "" when it is nowhere that is looked at."""
    for folder in BINARIES:
        if root.node(f"{folder}/{name}") is not None:
            return f"{folder}/{name}"
    return ""


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI file: what kind it is for, its devices, and the host paths that it mounts or names."""

    file: str
    kind: str
    devices: tuple[str, ...]
    host_paths: tuple[str, ...]
    device_nodes: tuple[str, ...]
    problem: str = ""


def cdi_specs(root: Root) -> list[CdiSpec]:
    """The CDI files of NVIDIA's kinds that count; one that can't be read has a problem.

    A device that two folders describe is that of the later one, so that a file all of whose devices are described there
    too is used by nobody.
    """
    found: list[CdiSpec] = []
    generated = CDI_FOLDERS[1] if root.names(CDI_FOLDERS[1]) else CDI_FOLDERS[2]
    for folder in (CDI_FOLDERS[0], generated):
        here = []
        for name in root.names(folder):
            if not name.endswith((".yaml", ".yml", ".json")):
                continue
            spec = _cdi(f"{folder}/{name}", root.text(f"{folder}/{name}") or "")
            if "nvidia.com/" in spec.kind or spec.problem:
                here.append(spec)
        taken = {(spec.kind, device) for spec in here for device in spec.devices}
        found = [
            spec
            for spec in found
            if spec.problem or not spec.devices or any((spec.kind, each) not in taken for each in spec.devices)
        ]
        found += here
    return found


def _cdi(file: str, text: str) -> CdiSpec:
    try:
        data = yaml_text.parse(text)
    except yaml.YAMLError as error:
        return CdiSpec(file, "", (), (), (), f"no YAML: {str(error).splitlines()[0]}")
    if not isinstance(data, dict):
        return CdiSpec(file, "", (), (), (), "is empty or no object")
    devices = [each for each in data.get("devices") or () if isinstance(each, dict)]
    edits = [data.get("containerEdits"), *(each.get("containerEdits") for each in devices)]
    mounts: list[str] = []
    nodes: list[str] = []
    for edit in edits:
        if isinstance(edit, dict):
            mounts += [str(mount.get("hostPath", "")) for mount in edit.get("mounts") or ()]
            nodes += [str(node.get("hostPath") or node.get("path", "")) for node in edit.get("deviceNodes") or ()]
    return CdiSpec(
        file,
        str(data.get("kind", "")),
        tuple(str(each.get("name", "")) for each in devices),
        tuple(dict.fromkeys(mounts)),
        tuple(dict.fromkeys(nodes)),
    )


def _containerd(root: Root) -> Runtime | None:
    texts = [(CONTAINERD, root.text(CONTAINERD))]
    texts += [
        (f"{folder}/{name}", root.text(f"{folder}/{name}"))
        for folder in ("/etc/containerd/conf.d", "/etc/containerd/config.d")
        for name in root.names(folder)
        if name.endswith(".toml")
    ]
    handlers: dict[str, str] = {}
    cdi, default, problem, seen = False, "", "", False
    for file, text in texts:
        if text is None:
            continue
        seen = True
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            problem = f"{file}: {error}"
            continue
        # Version 3 (containerd 2) turns CDI on unless it is told not to.
        cdi = cdi or data.get("version") == 3
        for plugin in (data.get("plugins") or {}).values():
            if not isinstance(plugin, dict):
                continue
            cdi = bool(plugin.get("enable_cdi", cdi))
            section = plugin.get("containerd") or {}
            default = str(section.get("default_runtime_name", default))
            for name, runtime in (section.get("runtimes") or {}).items():
                binary = str((runtime.get("options") or {}).get("BinaryName", ""))
                if "nvidia" in name or "nvidia" in binary:
                    handlers[name] = binary
    if not seen:
        return None
    return Runtime(
        name="containerd", file=CONTAINERD, handlers=handlers, cdi=cdi, default_handler=default, problem=problem
    )


def _crio(root: Root) -> Runtime | None:
    files = [f"{CRIO}/crio.conf"]
    files += [f"{CRIO}/crio.conf.d/{name}" for name in root.names(f"{CRIO}/crio.conf.d")]
    handlers: dict[str, str] = {}
    default, problem, seen = "", "", False
    for file in files:
        text = root.text(file)
        if text is None:
            continue
        seen = True
        try:
            data = tomllib.loads(text).get("crio", {}).get("runtime", {})
        except tomllib.TOMLDecodeError as error:
            problem = f"{file}: {error}"
            continue
        default = str(data.get("default_runtime", default))
        for name, runtime in (data.get("runtimes") or {}).items():
            if "nvidia" in name or "nvidia" in str(runtime.get("runtime_path", "")):
                handlers[name] = str(runtime.get("runtime_path", ""))
    if not seen:
        return None
    # CRI-O reads CDI files without being told to.
    return Runtime(name="cri-o", file=CRIO, handlers=handlers, cdi=True, default_handler=default, problem=problem)


def _docker(root: Root) -> Runtime | None:
    text = root.text(DOCKER)
    if text is None:
        return None
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        return Runtime(name="docker", file=DOCKER, handlers={}, cdi=False, problem=f"{DOCKER}: {error}")
    known = data.get("runtimes") or {}
    handlers = {name: str(each.get("path", "")) for name, each in known.items() if "nvidia" in name}
    cdi = bool((data.get("features") or {}).get("cdi"))
    return Runtime(
        name="docker", file=DOCKER, handlers=handlers, cdi=cdi, default_handler=str(data.get("default-runtime", ""))
    )


def toolkit_version(names: Iterable[str]) -> tuple[int, ...]:
    """Version of libnvidia-container from the names of its files; empty when none has one."""
    for name in names:
        match = re.match(r"libnvidia-container\.so\.(\d+)\.(\d+)\.(\d+)$", name)
        if match:
            return tuple(int(part) for part in match.groups())
    return ()
