"""The environment that an image was built with, from files: an OCI layout, a `docker save` archive, or its config."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypervisor.doctor.root import Root, UnreadableError

MOST_JSON_BYTES = 16 << 20
MOST_INDEXES = 8  # one within the other; two are usual, and nothing keeps them from naming each other
_DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RecursionError,
    tarfile.TarError,
    UnreadableError,
)
_PLATFORM = ("linux", "amd64")


class ImageError(Exception):
    """Not an image that can be understood; the text says what is wrong."""


def environment_of(path: Path) -> Mapping[str, str]:
    """Variables that the image sets. Raises ImageError."""
    try:
        if path.is_dir():
            return _of_layout(_reads_below(path))
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                return _of_archive(archive)
        return _of_config(json.loads(path.read_bytes()))
    except _DAMAGED as error:
        raise ImageError(f"{path} is no image: {error or type(error).__name__}") from error


def _reads_below(directory: Path) -> Callable[[str], bytes]:
    """What reads plain files of a layout that somebody else made: no pipe that nobody writes to, no way out."""
    below = Root(directory)

    def read(name: str) -> bytes:
        data = below.document(f"/{name}")
        if data is None:
            raise ValueError(f"it has no file {name}")
        return data

    return read


def _of_archive(archive: tarfile.TarFile) -> Mapping[str, str]:
    def read(name: str) -> bytes:
        member = archive.extractfile(name)
        if member is None:
            raise KeyError(name)
        return member.read(MOST_JSON_BYTES)

    if "index.json" in archive.getnames():
        return _of_layout(read)
    manifest = json.loads(read("manifest.json"))[0]
    return _of_config(json.loads(read(manifest["Config"])))


def _of_layout(read: Callable[[str], bytes]) -> Mapping[str, str]:
    found = json.loads(read("index.json"))
    for _ in range(MOST_INDEXES):
        if "config" in found:
            break
        found = json.loads(read(_blob(_choice(found["manifests"])["digest"])))
    return _of_config(json.loads(read(_blob(found["config"]["digest"]))))


def _choice(manifests: list[Any]) -> Any:
    """The manifest for this kind of machine, or the first where none names one."""
    for each in manifests:
        platform = each.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == _PLATFORM:
            return each
    return manifests[0]


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if not (algorithm.isalnum() and value.isalnum()):
        raise ValueError(f"the digest {digest!r} is none")
    return f"blobs/{algorithm}/{value}"


def _of_config(config: Any) -> Mapping[str, str]:
    section = config.get("config") or config.get("Config") or {}
    pairs = (str(entry).partition("=") for entry in section.get("Env") or ())
    return {name: value for name, _, value in pairs}
