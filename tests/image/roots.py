"""Root directories of Debian for tests: made once into the cache, copied for each use, entered with chroot."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
CACHE = SOURCE / ".cache" / "image"
SUITE = "bookworm"
HOST_TRUST = Path("/etc/ssl/certs/ca-certificates.crt")
TRUST = "/var/tmp/host-trust.crt"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PIP_CACHE = "/var/tmp/pip-cache"


def needs_root() -> None:
    """Skip where no root directory can be entered, and say why."""
    if os.geteuid() != 0:
        pytest.skip("a root directory can be made and entered by root only")
    for tool in ("apt-get", "dpkg", "unshare", "chroot"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} was not found: this needs Debian or Ubuntu")


@contextmanager
def _alone() -> Iterator[None]:
    """While the cache is changed: tests of several files run side by side."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tools(*packages: str) -> Path:
    """A directory with Debian's packages unpacked, for programs that the host need not have installed."""
    with _alone():
        return _tools(*packages)


def _tools(*packages: str) -> Path:
    place = CACHE / "tools"
    for package in packages:
        mark = place / f".{package}"
        if mark.exists():
            continue
        downloads = place / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        _checked(["apt-get", "download", "-qq", package], cwd=downloads)
        (archive,) = downloads.glob(f"{package}_*.deb")
        _checked(["dpkg", "-x", str(archive), str(place)])
        mark.touch()
    return place


def base(name: str, *packages: str) -> Path:
    """A root directory with a minimal Debian and some packages; made once."""
    root, ready = CACHE / name, CACHE / f"{name}.ready"
    with _alone():
        if not ready.exists() or ready.read_text() != " ".join(packages):
            ready.unlink(missing_ok=True)
            shutil.rmtree(root, ignore_errors=True)
            _make(root, packages)
            ready.write_text(" ".join(packages))
    return root


def _make(root: Path, packages: Sequence[str]) -> None:
    """Debian's smallest root directory by debootstrap's quicker brother; others are that one and their packages."""
    minimal, ready = CACHE / "minimal", CACHE / "minimal.ready"
    if not packages or not ready.exists():
        shutil.rmtree(minimal, ignore_errors=True)
        program = _tools("mmdebstrap") / "usr/bin/mmdebstrap"
        _checked(["perl", str(program), "--quiet", "--mode=root", "--variant=minbase", SUITE, str(minimal), *_mirror()])
        # As in the images of containers: a file system that may be lost needs no sync after each file.
        (minimal / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        ready.write_text("")
    if packages:
        root.mkdir()
        copied(minimal, root)
        install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages]
        for command in (["apt-get", "update", "-qq"], install):
            done = inside(root, command, environment={"DEBIAN_FRONTEND": "noninteractive"})
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _mirror() -> list[str]:
    """Where this host has its packages from: a root directory must not ask another network place."""
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    sites = [
        line for line in found.stdout.splitlines() if line.startswith("http") and line.rstrip("/").endswith("/debian")
    ]
    return sites[:1]


def copied(root: Path, target: Path) -> Path:
    """A copy of a root directory."""
    _checked(["cp", "-a", "--reflink=auto", f"{root}/.", str(target)])
    return target


def inside(
    root: Path, command: Sequence[str], *, environment: Mapping[str, str] | None = None, user: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a root directory, with a /proc and a /dev of its own and the host's network."""
    script = (
        'root=$1; shift; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; '
        f'mkdir -p "$root{PIP_CACHE}"; mount --bind "{CACHE}/pip" "$root{PIP_CACHE}"; '
        'exec chroot ${CHROOT_USER:+--userspec="$CHROOT_USER"} "$root" "$@"'
    )
    variables = {
        "PATH": PATH,
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "PIP_CACHE_DIR": PIP_CACHE,
    }
    (CACHE / "pip").mkdir(parents=True, exist_ok=True)
    connect(root)
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh", str(root), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**variables, **network(), **(environment or {}), "CHROOT_USER": user},
    )


def connect(root: Path) -> None:
    """Names are looked up in it as on this host, and whom this host trusts on the way to its indexes, it trusts too."""
    resolv = root / "etc/resolv.conf"
    if Path("/etc/resolv.conf").exists() and not resolv.is_symlink():
        shutil.copyfile("/etc/resolv.conf", resolv)
    trust = root / TRUST.lstrip("/")
    if HOST_TRUST.exists() and not trust.exists():
        trust.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HOST_TRUST, trust)


def network() -> dict[str, str]:
    """What pip and apt need on this host to reach their indexes."""
    kept = ("http_proxy", "https_proxy", "no_proxy", "pip_index_url", "pip_extra_index_url")
    found = {name: value for name, value in os.environ.items() if name.lower() in kept}
    return {**found, "PIP_CERT": TRUST, "SSL_CERT_FILE": TRUST} if HOST_TRUST.exists() else found


def _checked(command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}")
