"""NVIDIA's own user-space libraries out of Debian's non-free packages, unpacked into the cache and never committed.

apt works on lists and folders of its own here; nothing of the machine's is changed. Without network, apt or dpkg the
caller gets a reason instead of a folder.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buildsupport.native import ROOT

CACHE = ROOT / ".cache" / "debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = {535: "bookworm", 550: "trixie", 555: "experimental"}
SECONDS = 300


class Unavailable(Exception):
    """The package could not be had; `reason` says why in one line. A reason to skip a test, not its failure."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took longer than {SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"{command[0]}: {lines[-1]}") from error
    return done.stdout


@contextmanager
def _alone() -> Iterator[None]:
    """Test runs beside this one wait for what it downloads."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _archive() -> str:
    """Where this machine's own apt finds Debian."""
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], CACHE)
    found = [line for line in listed.split() if line.rstrip("/").endswith("/debian")]
    if not found:
        raise Unavailable("apt on this machine knows no Debian archive, where NVIDIA's programs would come from")
    return found[0]


def unpacked(branch: int, package: str) -> Path:
    """The root folder of the package of a driver branch, fetched and unpacked the first time.

    Raises:
        Unavailable: there is no way to it from here.
    """
    return unpacked_from(SUITES[branch], package)


def unpacked_from(suite: str, package: str) -> Path:
    """The same for a package of a suite.

    Raises:
        Unavailable: there is no way to it from here.
    """
    target = CACHE / f"{suite}-{package}"
    with _alone():
        if not (target / "complete").exists():
            _fetch(suite, package, target)
    return target


def _fetch(suite: str, package: str, target: Path) -> None:
    if not KEYRING.exists():
        raise Unavailable(f"{KEYRING} is missing: packages could not be verified")
    folder = CACHE / f"apt-{suite}"
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {_archive()} {suite} main contrib non-free\n")
    apt = [
        "apt-get",
        "-qq",
        f"-oDir::Etc::SourceList={sources}",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={folder / 'lists'}",
        f"-oDir::Cache={folder}",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]
    if not any((folder / "lists").glob("*_Packages*")):
        _run([*apt, "update"], folder)
    for old in folder.glob(f"{package}_*.deb"):
        old.unlink()
    _run([*apt, "download", package], folder)
    archive = next(folder.glob(f"{package}_*.deb"))
    _run(["dpkg", "-x", str(archive), str(target)], folder)
    (target / "complete").touch()


def library(branch: int, package: str, name: str) -> Path:
    """A library of a package, such as libcuda.so.1 of libcuda1.

    Raises:
        Unavailable: as `unpacked`.
    """
    return next(unpacked(branch, package).rglob(name)).resolve()
