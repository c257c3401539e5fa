"""A container of a real runc, made from what kubelet was answered and from our CDI files, as a runtime does it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hypervisor.simulation.environment import environment
from hypervisor.simulation.machine import opened
from tests.daemon_process import wait_until
from tests.kube_fakes.node import GIB, KubeNode, pod
from tests.real_kube.containerd import path
from tests.real_kube.images import lay_out, with_libraries
from tests.simulated_load import LOAD

RUNC = shutil.which("runc", path=path())
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(RUNC is None or os.geteuid() != 0, reason="takes runc, in PATH or CONTAINERD_BIN, and root"),
]
THEIRS = "/opt/theirs.so"
SCRIPT = "cat /etc/ld.so.preload; exec load --idle --grow=134217728 --seconds=0"


class Bundle:
    """A container that is about to be made. Its image has an /etc/ld.so.preload of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shell = Path("/bin/sh").resolve()
        files = {**with_libraries(LOAD, shell, Path("/bin/cat")), "/bin/sh": shell}
        lay_out(directory / "rootfs", files, {"/etc/ld.so.preload": f"{THEIRS}\n"})
        assert RUNC is not None
        subprocess.run([RUNC, "spec", "--bundle", directory], check=True)
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.config["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", SCRIPT]}
        self.config["process"]["env"] = ["PATH=/bin"]
        assert self.config["root"]["readonly"]

    def mount(self, host: str, inside: str, *options: str) -> None:
        self.config["mounts"].append(
            {"destination": inside, "source": host, "type": "bind", "options": ["bind", *options]}
        )

    def edit(self, edits: dict[str, Any]) -> None:
        """As the CDI specification has it."""
        self.config["process"]["env"] += edits.get("env", [])
        for each in edits.get("mounts", []):
            self.mount(each["hostPath"], each["containerPath"], *each["options"])
        for each in edits.get("hooks", []):
            hook = {key: each[key] for key in ("path", "args")}
            self.config.setdefault("hooks", {}).setdefault(each["hookName"], []).append(hook)
        assert not edits.get("deviceNodes"), "a simulated card has none"

    def run(self) -> subprocess.CompletedProcess[str]:
        (self.directory / "config.json").write_text(json.dumps(self.config))
        name = f"tf-{uuid.uuid4().hex[:8]}"
        command = [RUNC, "--root", self.directory / "state", "run", "--bundle", self.directory, name]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # type: ignore[arg-type]


def edits_of(directory: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """What CDI files say of devices, found as a runtime finds them."""
    files = [json.loads(file.read_text()) for file in directory.glob("*.json")]
    known = {f"{file['kind']}={each['name']}": each["containerEdits"] for file in files for each in file["devices"]}
    return [known[name] for name in names]


ANSWERED, NAMED, UNHOOKED = "what kubelet was answered", "the CDI device of the allocation", "without the hook"


@pytest.mark.parametrize("way", [ANSWERED, NAMED, UNHOOKED])
def test_a_container_is_limited_and_keeps_what_its_image_preloads(make_node, tmp_path: Path, way: str) -> None:
    cdi = tmp_path / "cdi"
    hook = Path(sys.executable).with_name("hypervisor")
    node: KubeNode = make_node("--cdi-dir", str(cdi), "--device-injection", "cdi", "--preload-hook", str(hook))
    node.start()
    document, given = node.run(pod("a", compute_percent_limit="30", vram_limit="2Gi"), known=True)
    allocation = node.wait_allocation(document["metadata"]["uid"])
    bundle = Bundle(tmp_path / "bundle")
    surroundings = environment(node.daemon.machine, {})
    if way == NAMED:
        names = [f"tensor-fusion.ai/allocation={allocation['uid']}"]
        wait_until((cdi / "tensor-fusion-allocations.json").exists, "the file of allocations")
        bundle.config["process"]["env"] += [f"{key}={value}" for key, value in surroundings.items()]
    else:
        assert given.answer is not None
        bundle.config["process"]["env"] += [f"{key}={value}" for key, value in given.answer.envs.items()]
        for each in given.answer.mounts:
            bundle.mount(each.host_path, each.container_path, "ro" if each.read_only else "rw")
        names = [each.name for each in given.answer.cdi_devices]
        assert names[-1] == "tensor-fusion.ai/limiter=preload"
        names = names[: -1 if way == UNHOOKED else None]
    for edits in edits_of(cdi, names):
        bundle.edit(edits)
    bundle.config["process"]["env"].append("SIM_GROUP=inside")
    for place in (*surroundings["LD_LIBRARY_PATH"].split(":"), str(node.daemon.machine)):
        bundle.mount(place, place, "rw")
    done = bundle.run()
    assert done.returncode == 0, done.stderr
    preloaded = [line for line in done.stdout.splitlines() if line.endswith(".so")]
    with opened(node.daemon.machine) as machine:
        (group,) = (each for each in machine.show()["groups"] if each["name"] == "inside")
    peak = sum(used["peak_bytes"] for used in group["gpus"].values())
    if way == UNHOOKED:
        assert preloaded == [THEIRS]
        assert peak > 4 * GIB, "it is the limiter that holds the others"
    else:
        assert preloaded == ["/tensor-fusion-limiter/$LIB/libcuda_limiter.so", THEIRS]
        assert 1.5 * GIB < peak <= 2 * GIB


PODMAN = shutil.which("podman", path=path())


@pytest.mark.skipif(PODMAN is None, reason="takes podman and conmon, in PATH or CONTAINERD_BIN")
def test_podman_reads_our_cdi_files(make_node, tmp_path: Path) -> None:
    """A runtime's own reading of the format, with its checks of versions and names."""
    cdi = tmp_path / "cdi"
    hook = Path(sys.executable).with_name("hypervisor")
    node: KubeNode = make_node("--cdi-dir", str(cdi), "--preload-hook", str(hook))
    node.start()
    document, _ = node.run(pod("a", compute_percent_limit="30", vram_limit="2Gi"), known=True)
    allocation = node.wait_allocation(document["metadata"]["uid"])
    wait_until((cdi / "tensor-fusion-allocations.json").exists, "the file of allocations")
    bundle = Bundle(tmp_path / "bundle")
    surroundings = environment(node.daemon.machine, {})
    places = (*surroundings["LD_LIBRARY_PATH"].split(":"), str(node.daemon.machine))
    told = {**surroundings, "SIM_GROUP": "inside", "PATH": "/bin"}
    conmon = shutil.which("conmon", path=path())
    command = [
        *(PODMAN, "--root", tmp_path / "root", "--runroot", "/run/podman", "--runtime", RUNC),
        *("--conmon", conmon, "--cgroup-manager", "cgroupfs", "--events-backend", "file", "run", "--rm"),
        *("--network", "none", "--ulimit", "nofile=512:512", "--ulimit", "nproc=4096:4096"),
        *("--device", f"tensor-fusion.ai/allocation={allocation['uid']}"),
        *(word for place in places for word in ("-v", f"{place}:{place}")),
        *(word for key, value in told.items() for word in ("-e", f"{key}={value}")),
        *("--rootfs", bundle.directory / "rootfs", "/bin/sh", "-c", SCRIPT),
    ]
    # It looks for CDI files in /run/cdi, which is ours in a mount namespace of its own.
    script = 'mount -t tmpfs none /run && mkdir /run/cdi && mount --bind "$0" /run/cdi && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, cdi, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["/tensor-fusion-limiter/$LIB/libcuda_limiter.so", THEIRS]
    with opened(node.daemon.machine) as machine:
        (group,) = (each for each in machine.show()["groups"] if each["name"] == "inside")
    assert 1.5 * GIB < sum(used["peak_bytes"] for used in group["gpus"].values()) <= 2 * GIB
