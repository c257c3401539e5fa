"""An independent builder reads the Dockerfile: buildah, where it is installed, on the same base as our own runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.image import roots

_BASE = "localhost/base"
_IMAGE = "localhost/gpu-hypervisor"


@dataclass(frozen=True, slots=True)
class Built:
    """config: of the image, in Docker's format. root: its files, mounted for reading."""

    config: dict[str, Any]
    root: Path


class Buildah:
    """A store of images of its own in a directory."""

    def __init__(self, place: Path) -> None:
        roots.needs_root()
        program = shutil.which("buildah")
        if program is None:
            pytest.skip("buildah was not found: Debian's package buildah has it")
        self._command = [program, "--root", str(place / "root"), "--runroot", str(place / "run")]

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words],
            cwd=roots.SOURCE,
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def base(self, root: Path) -> str:
        """Makes an image of a root directory, which knows this host's way to its package indexes; its digest."""
        container = self.run("from", "scratch")
        roots.connect(root)
        roots.copied(root, Path(self.run("mount", container)))
        self.run("umount", container)
        for name, value in roots.network().items():
            self.run("config", "--env", f"{name}={value}", container)
        self.run("commit", "--quiet", container, _BASE)
        return self.run("images", "--format", "{{.Digest}}", _BASE)

    @contextmanager
    def build(self, digest: str, **arguments: str) -> Iterator[Built]:
        """The Dockerfile's image on the base with this digest."""
        given = {"BASE": _BASE, "BASE_DIGEST": digest, **arguments}
        flags = [f"--build-arg={name}={value}" for name, value in given.items()]
        self.run("build", "--format=docker", "--network=host", "--pull-never", *flags, f"--tag={_IMAGE}", ".")
        found = json.loads(self.run("inspect", "--type=image", _IMAGE))
        container = self.run("from", "--pull-never", _IMAGE)
        try:
            yield Built(found["Docker"]["config"], Path(self.run("mount", container)))
        finally:
            # Each holds some hundred megabytes.
            self.run("rm", "--all")
            self.run("rmi", "--all", "--force")
