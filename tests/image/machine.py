"""A Debian that systemd has booted in a root directory, with the package installed and a simulated node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
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


def package(work: Path) -> Path:
    """The package, built in a root directory with Debian's own Python and compiler."""
    build = roots.base(
        "build", "python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "ca-certificates", "xz-utils"
    )
    root = roots.copied(build, _made(work / "build"))
    source = _made(root / "source")
    listed = subprocess.run(
        ["git", "-C", str(roots.SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    packing = ["tar", "-C", str(roots.SOURCE), "--null", "--ignore-failed-read", "-T", "-", "-c"]
    archive = subprocess.run(packing, input=listed.stdout, capture_output=True, check=False)
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
    done = roots.inside(root, ["/source/packaging/build-deb", "/dist", "/usr/bin/python3"], environment=quick)
    assert done.returncode == 0, done.stderr[-3000:]
    (deb,) = (root / "dist").glob("*.deb")
    target = work / deb.name
    shutil.copyfile(deb, target)
    shutil.rmtree(root)
    return target


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


class Machine:
    """One machine. Its programs see no network but their own loopback."""

    def __init__(self, work: Path, deb: Path) -> None:
        self.root = roots.copied(
            roots.base("host", "systemd", "systemd-sysv", "dbus", "python3", "procps"), _made(work / "host")
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
        drop_in = _made(self.root / "etc/systemd/system/hypervisor.service.d")
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
