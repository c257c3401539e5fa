"""As test_real_kubelet, with real containers: what kubelet was told holds inside of them, and who they are is known."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.kube.cgroups import residence
from hypervisor.simulation.environment import environment
from hypervisor.v1 import node_pb2 as pb
from tests.daemon_process import wait_until
from tests.kube_fakes.node import GIB, pod, settled
from tests.real_kube import containerd
from tests.real_kube import kubelet as real_kubelet
from tests.real_kube.cluster import missing
from tests.real_kube.images import with_libraries, write_image
from tests.real_kube.node import SECONDS, RealNode, real_node
from tests.simulated_load import LOAD

pytestmark = [pytest.mark.real_kube, pytest.mark.slow]
STEP = 134217728
IMAGE, PRELOADING = "localhost/load:1", "localhost/preloading:1"
SHM, USAGE = "/run/tensor-fusion/shm/shm", "/run/tensor-fusion/shm/usage"
GOOD = {"compute_percent_limit": "30", "vram_limit": "2Gi"}
GROWS = f"/bin/load --idle --grow={STEP} --seconds=0"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    if why := missing() or real_kubelet.missing() or containerd.missing():
        pytest.skip(why)
    place = tmp_path_factory.mktemp("images")
    programs = with_libraries(LOAD, Path("/bin/sh").resolve(), Path("/bin/sleep"), Path("/bin/cat"))
    programs["/bin/sh"] = Path("/bin/sh").resolve()
    preload = place / "ld.so.preload"
    preload.write_text("/opt/theirs.so\n")
    with real_node(containers=True) as found:
        found.kubelet.runtime.take_image(write_image(place / "load.tar", IMAGE, programs))
        found.kubelet.runtime.take_image(
            write_image(place / "preloading.tar", PRELOADING, {**programs, "/etc/ld.so.preload": preload})
        )
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(node: RealNode) -> Iterator[None]:
    yield
    node.clear()


def container(node: RealNode, script: str, *, image: str = IMAGE) -> dict:
    """The container of pod() from an image of ours; the simulated driver lies on the host, as a real one does."""
    return pod("unnamed")["spec"]["containers"][0] | {
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "SIM_GROUP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [{"name": f"driver-{place}", "mountPath": path} for place, path in enumerate(driver(node))],
    }


def driver(node: RealNode) -> list[str]:
    """Paths of the host that a simulated GPU takes."""
    surroundings = environment(node.daemon.machine, {})
    return [*surroundings["LD_LIBRARY_PATH"].split(":"), str(node.daemon.machine)]


def volumes(node: RealNode) -> list[dict]:
    return [{"name": f"driver-{place}", "hostPath": {"path": path}} for place, path in enumerate(driver(node))]


def run_pod(node: RealNode, name: str, script: str, *, image: str = IMAGE, **annotations: str) -> str:
    """A Pod on this node, with a container that runs a script; its UID."""
    document = pod(name, **annotations)
    document["spec"] |= {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container(node, script, image=image)],
        "volumes": volumes(node),
    }
    return node.api.create(document)["metadata"]["uid"]


def processes_of(uid: str) -> dict[int, str]:
    """Programs that run in the containers of a Pod, by host pid, told by the kernel."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if uid in (each / "cgroup").read_text() and (name := (each / "comm").read_text().strip()) != "pause":
                found[int(each.name)] = name
        except OSError:
            continue
    return found


def pid_of(uid: str, program: str) -> int:
    return wait_until(
        lambda: next((pid for pid, name in processes_of(uid).items() if name == program), 0),
        f"{program} in the Pod",
        SECONDS,
    )


def mounts_of(pid: int) -> dict[str, str]:
    """Options of the mounts that a process sees, by where."""
    rows = (line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return {row[4]: row[5] for row in rows}


def in_container(pid: int, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a process of a container sees things."""
    command = ["nsenter", "--target", str(pid), "--mount", "--pid", "--root", "/bin/sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env={"PATH": "/bin"})


def test_a_deployment_of_three_replicas_is_limited_in_its_containers(node: RealNode) -> None:
    """From the Pods' creation to enforced limits, with no scheduler and no webhook of ours."""
    node.run_deployment("replicated", GOOD, container(node, f"{GROWS}; sleep 3600"), volumes=volumes(node))
    try:
        wait_until(lambda: len(node.allocations()) == 3, "three allocations", SECONDS)
        names = [each["spec"]["owner"]["pod"]["name"] for each in node.allocations().values()]
        full = 2 * GIB - STEP - GIB // 2
        wait_until(lambda: all(node.peaks().get(name, 0) > full for name in names), "the replicas to fill up", SECONDS)
        assert all(node.peaks()[name] <= 2 * GIB for name in names), node.peaks()
        for uid in node.allocations():
            node.wait_event(uid, "GPUDeviceAllocated")
    finally:
        node.end_deployment("replicated")


def test_what_a_container_is_given_is_there_and_its_limits_are_not_its_own(node: RealNode) -> None:
    uid = run_pod(node, "inside", "/bin/load --idle --hold=1048576 --seconds=3600", **GOOD)
    node.wait_allocation(uid)
    pid = pid_of(uid, "load")
    mounts = mounts_of(pid)
    assert mounts[SHM].startswith("ro")
    assert mounts[USAGE].startswith("rw")
    assert mounts["/etc/ld.so.preload"].startswith("ro")
    libraries = [path for path in mounts if path.endswith("libcuda_limiter.so")]
    assert libraries
    assert all(mounts[path].startswith("ro") for path in libraries)
    assert "libcuda_limiter.so" in Path(f"/proc/{pid}/maps").read_text()
    told = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in each)
    assert told["TF_SHM_PATH"] == SHM
    assert told["TF_ISOLATION_MODE"] == "soft"
    refused = in_container(pid, f"echo overwritten > {SHM}")
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr
    other = Path(node.allocations()[uid]["directory"]).parent
    assert in_container(pid, f"test -e {other}").returncode != 0  # nothing of other Pods


def test_processes_of_containers_are_known_by_their_pids_on_the_host(node: RealNode) -> None:
    """Inside it is another pid; what the Pod and the container are is told by the cgroups of a real runtime."""
    uid = run_pod(node, "named", "/bin/load --idle --hold=1048576 --seconds=3600", **GOOD)
    node.wait_allocation(uid)
    pid = pid_of(uid, "load")
    inner = re.search(r"NSpid:\s+\d+\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert inner is not None
    assert int(inner[1]) != pid

    def attached() -> list[dict]:
        return node.allocations()[uid].get("processes", [])

    (process,) = wait_until(attached, "the process to be attached", SECONDS)
    assert (process["hostPid"], process["pid"]) == (pid, int(inner[1]))
    lives = residence(Path(f"/proc/{pid}/cgroup").read_text())
    status = node.api.pods[uid]["status"]["containerStatuses"][0]
    assert lives.pod_uid == uid
    assert status["containerID"] == f"containerd://{lives.container_id}"
    assert not node.conditions() & {"ProcessesHidden", "UseUnknown"}  # the driver's list is attributed too


def test_live_changes_and_restarts_reach_running_containers(node: RealNode) -> None:
    uid = run_pod(node, "living", f"while :; do {GROWS}; sleep 1; done", **GOOD)
    before = settled(node.wait_allocation(uid))
    wait_until(lambda: node.peaks().get("living", 0) > 1.3 * GIB, "the first limit to be reached", SECONDS)
    node.daemon.kill()
    node.daemon.start().wait_ready()
    node.wait_followed()
    assert settled(node.wait_allocation(uid)) == before
    assert node.peaks()["living"] <= 2 * GIB
    node.api.annotate(uid, vram_limit="4Gi")
    node.wait_event(uid, "GPULimitsChanged")
    wait_until(lambda: node.peaks()["living"] > 3 * GIB, "the new limit to be reached", SECONDS)
    assert node.peaks()["living"] <= 4 * GIB


def test_a_container_that_was_given_nothing_makes_its_card_foreign(node: RealNode) -> None:
    document = pod("stranger", resources={})
    found = container(node, "/bin/load --idle --hold=1048576 --seconds=3600")
    del found["resources"]
    surroundings = environment(node.daemon.machine, {})
    found["env"] += [{"name": key, "value": value} for key, value in surroundings.items()]
    document["spec"] |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    document["spec"] |= {"containers": [found], "volumes": volumes(node)}
    node.api.create(document)

    def used_by() -> set[str]:
        return {gpu["usedBy"] for gpu in node.gpus() if gpu.get("usedBy")}

    wait_until(lambda: used_by() == {"unmanaged-pod"}, "the card to be foreign", SECONDS)


def test_an_images_own_preload_is_told_from_the_layers_of_a_real_image(node: RealNode) -> None:
    uid = run_pod(node, "covered", "/bin/load --idle --hold=1048576 --seconds=3600", image=PRELOADING, **GOOD)
    node.wait_allocation(uid)
    pid_of(uid, "load")

    def told() -> list[dict]:
        events = node.ask("ListEvents", pb.ListEventsRequest()).get("events", [])
        return [each for each in events if each["reason"] == "PreloadCovered"]

    (event,) = wait_until(told, "the event", SECONDS)
    assert "/opt/theirs.so" in event["message"]
