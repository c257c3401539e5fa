"""A Debian that systemd has booted in a root directory, with the package installed and a simulated node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from hypervisor.simulation.machine import create
from hypervisor.simulation.profiles import load_description
from tests.daemon_process import wait_until
from tests.image import roots

BOOT_SECONDS = 120.0
NATIVE = "usr/lib/gpu-hypervisor/lib/python3.11/site-packages/hypervisor/native"
# The machine's cards are open to all users, as those of a driver are.
SIMULATED_MACHINE = "/var/lib/simulated/machine"
SIMULATED = f"""[Service]
Environment=HYPERVISOR_SIMULATE={SIMULATED_MACHINE}
ReadWritePaths=/var/lib/simulated
WatchdogSec=5
"""
USER = "ann"
_NOT_BUILT_FROM = ("tests/", "docs/", "deploy/", ".ci/")


def package() -> Path:
    """The package of this source, built in a root directory with Debian's own Python and compiler; once, as it is."""
    listed = subprocess.run(
        ["git", "-C", str(roots.SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(name for name in listed.stdout.split("\0") if name and not name.startswith(_NOT_BUILT_FROM))
    files = {name: roots.SOURCE / name for name in names if (roots.SOURCE / name).is_file()}
    kept = roots.CACHE / "package" / _digest(files)
    if not kept.exists():
        shutil.rmtree(kept.parent, ignore_errors=True)
        _build_package(files, kept)
    (found,) = kept.glob("*.deb")
    return found


def _digest(files: Mapping[str, Path]) -> str:
    found = hashlib.sha256()
    for name, path in files.items():
        content = path.read_bytes()
        found.update(f"{name} {path.stat().st_mode} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def _build_package(files: Mapping[str, Path], target: Path) -> None:
    build = roots.base(
        "build", "python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "ca-certificates", "xz-utils"
    )
    unfinished = target.with_name("unfinished")
    root = roots.copied(build, made(unfinished / "root"))
    for name, path in files.items():
        place = root / "source" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    # Not compressed, which takes longest; what is in it is the same.
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
    done = roots.inside(root, ["/source/packaging/build-deb", "/dist", "/usr/bin/python3"], environment=quick)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made(target)
    for deb in (root / "dist").glob("*.deb"):
        shutil.move(deb, target)
    shutil.rmtree(unfinished)


def later_package(deb: Path, target: Path, version: str) -> None:
    """The same package under a later version."""
    tree = target.with_suffix(".tree")
    subprocess.run(["dpkg-deb", "-R", str(deb), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", f"Version: {version}", control.read_text(), flags=re.MULTILINE))
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(target)], check=True, capture_output=True)
    shutil.rmtree(tree)


def made(path: Path) -> Path:
    """A new directory."""
    path.mkdir(parents=True)
    return path


class Machine:
    """One machine. Its programs see no network but their own loopback."""

    def __init__(self, work: Path, deb: Path) -> None:
        self.root = roots.copied(
            roots.base("host", "systemd", "systemd-sysv", "dbus", "python3", "procps"), made(work / "host")
        )
        self.deb = deb
        self._name = f"hypervisor-{uuid.uuid4().hex[:8]}"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def install(self) -> None:
        """Install the package before the first boot, as in an image of a host."""
        shutil.copyfile(self.deb, self.root / "root" / self.deb.name)
        done = roots.inside(self.root, ["dpkg", "-i", f"/root/{self.deb.name}"])
        assert done.returncode == 0, done.stderr
        drop_in = made(self.root / "etc/systemd/system/hypervisor.service.d")
        (drop_in / "simulated.conf").write_text(SIMULATED)
        for folder in ("simulator", "clients"):
            (self.root / NATIVE / folder).mkdir(exist_ok=True)
        machine = self.root / SIMULATED_MACHINE.lstrip("/")
        machine.parent.mkdir()
        create(machine, load_description("h100-sxm-80gb"))
        machine.chmod(0o666)
        roots.inside(self.root, ["useradd", "--create-home", USER])

    def boot(self) -> None:
        """Start systemd, and wait until it has started what it starts."""
        nspawn = roots.tools("systemd-container") / "usr/bin/systemd-nspawn"
        native = roots.SOURCE / "hypervisor/native"
        binds = [f"--bind-ro={native / folder}:/{NATIVE}/{folder}" for folder in ("simulator", "clients")]
        with (self.root.parent / "boot.log").open("wb") as log:
            self._nspawn = self._started_nspawn(nspawn, binds, log)
        self._leader = int(wait_until(self._first_process, "the machine's first process", BOOT_SECONDS))
        wait_until(self._started, f"systemd to be up; see {self.root.parent / 'boot.log'}", BOOT_SECONDS)

    def _started_nspawn(self, nspawn: Path, binds: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                str(nspawn),
                "-D",
                str(self.root),
                f"--machine={self._name}",
                "--boot",
                "--register=no",
                "--keep-unit",
                "--private-network",
                "--console=pipe",
                *binds,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/systemd"},
            start_new_session=True,
        )

    def _first_process(self) -> int:
        """The child that is process 1 of its own PID namespace; nspawn has others while it sets up."""
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, (self.root.parent / "boot.log").read_text()
        for child in Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # it may have ended
                status = Path(f"/proc/{child}/status").read_text()
                (pids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
                if pids[1:] == ["1"]:
                    return int(child)
        return 0

    def _started(self) -> bool:
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def run(self, *command: str, check: bool = True, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine as root."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-n", "-p", "--", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done

    def unbind(self) -> None:
        """Take the simulated driver out of the package's folder; programs that run keep it."""
        for folder in ("simulator", "clients"):
            self.run("umount", "--lazy", f"/{NATIVE}/{folder}")
            self.run("rmdir", f"/{NATIVE}/{folder}")

    def property(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--property", name, "--value", unit).stdout.strip()

    def close(self) -> None:
        """Stop it and take it away."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            os.kill(self._leader, signal.SIGRTMIN + 4)  # systemd's poweroff
            try:
                self._nspawn.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._nspawn.pid, signal.SIGKILL)
                self._nspawn.wait()
        shutil.rmtree(self.root, ignore_errors=True)
