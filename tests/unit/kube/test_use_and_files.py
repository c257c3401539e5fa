"""Cards in other hands, CDI files, declarations: pure parts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.config import Settings
from hypervisor.kube.answers import HostFiles, Injection, answer, read_mig_minors
from hypervisor.kube.cdi import cdi_files
from hypervisor.kube.cgroups import Residence
from hypervisor.kube.checkpoint import Assignment
from hypervisor.kube.declared import DeclarationError, read_declarations
from hypervisor.kube.foreign import foreign_uses, overlaid
from hypervisor.kube.pod import Pod
from hypervisor.model import HealthCode, IsolationMode, Partition, ProcessOnGpu
from hypervisor.node.failure import StartError
from hypervisor.node.kubernetes_host import Host, check_paths
from tests import node_values as v

POD = Pod(uid="u1", namespace="ns", name="p", node="n")
FILES = HostFiles(limiter="/host/lib.so", preload="/host/preload", limiter_32="/host/lib32.so")
FOLDERS = ("lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
FOLDERS_32 = ("lib/i386-linux-gnu", "lib32")


def inventory(*processes: ProcessOnGpu):
    return v.inventory(v.device(0, readings=v.readings(processes=processes)), v.device(1))


def process(pid: int) -> ProcessOnGpu:
    return ProcessOnGpu(pid=pid, memory_bytes=v.GIB, busy_ratio=None)


def uses(found, *, assignments=(), residences=None, granted=None, our_pids=frozenset(), pods=None):
    return foreign_uses(
        found,
        assignments=assignments,
        pods=pods if pods is not None else {"u1": POD},
        granted=granted or {},
        residences=residences or {},
        our_pids=our_pids,
    )


@pytest.mark.parametrize(
    ("resource", "device_id", "used_by"),
    [
        ("nvidia.com/gpu", v.uuid(1), "nvidia-device-plugin"),
        ("nvidia.com/gpu", v.uuid(1).lower(), "nvidia-device-plugin"),
        ("nvidia.com/gpu", f"{v.uuid(1)}-3", "3rd-party-device-plugin"),
        ("nvidia.com/gpu.shared", f"{v.uuid(1)}::2", "3rd-party-device-plugin"),
        ("nvidia.com/gpu", "nvidia1", "nvidia-device-plugin"),
    ],
)
def test_other_plugins(resource: str, device_id: str, used_by: str) -> None:
    assignment = Assignment(
        resource=resource, device_ids=(device_id,), container="c", namespace="ns", pod_name="native"
    )
    found, _ = uses(inventory(), assignments=[assignment])
    assert {uuid: use.used_by for uuid, use in found.items()} == {v.uuid(1): used_by}
    held = overlaid(inventory(), found).devices[1]
    assert [each.code for each in held.conditions] == [HealthCode.FOREIGN_USE]
    assert overlaid(inventory(), {}) == inventory()


def test_what_an_ended_pod_had_is_free() -> None:
    assignment = Assignment(
        resource="nvidia.com/gpu", device_ids=(v.uuid(1),), container="c", namespace="ns", pod_name="p"
    )
    assert uses(inventory(), assignments=[assignment], pods={"u1": replace(POD, ended=True)})[0] == {}
    assert uses(inventory(), assignments=[replace(assignment, resource="tensor-fusion.ai/index_0")])[0] == {}


def test_processes_are_ours_foreign_unknown_or_nobodys() -> None:
    found = inventory(process(7))
    in_pod = {7: Residence(pod_uid="u1", container_id="c")}
    assert uses(found, residences=in_pod, our_pids=frozenset({7}))[0] == {}
    assert uses(found, residences=in_pod, granted={"u1": frozenset({v.uuid(0)})})[0] == {}
    foreign, strays = uses(found, residences=in_pod)
    assert foreign[v.uuid(0)].used_by == "unmanaged-pod"
    assert strays == ()
    _, strays = uses(found, residences=in_pod, granted={"u1": frozenset({v.uuid(1)})})
    assert [(each.pid, each.gpu_uuid) for each in strays] == [(7, v.uuid(0))]
    assert uses(found, residences={7: Residence()})[0] == {}, "a process of no Pod makes no card foreign"
    assert uses(found, residences={})[0] == {}, "it has ended"


@pytest.mark.parametrize("hidden", [None, Residence(hidden=True)])
def test_unknown_use_holds_new_grants_with_the_reason(hidden) -> None:  # 9.4 row 69
    found, _ = uses(inventory(process(7)), residences={7: hidden})
    held = overlaid(inventory(), found).devices[0]
    assert [each.code for each in held.conditions] == [HealthCode.USE_UNKNOWN]
    assert held.vram_bytes == inventory().devices[0].vram_bytes


def test_a_foreign_card_is_foreign_with_its_instances() -> None:
    part = Partition(parent_uuid=v.uuid(0), gpu_instance_id=3, compute_instance_id=0, profile="1g.10gb")
    instance = v.device(1)
    instance = replace(instance, identity=replace(instance.identity, partition=part))
    both = v.inventory(v.device(0), instance)
    card = Assignment(resource="nvidia.com/gpu", device_ids=(v.uuid(0),), container="c", pod_uid="x")
    found, _ = uses(both, assignments=[card])
    assert all(device.conditions for device in overlaid(both, found).devices)
    gke = Assignment(resource="nvidia.com/gpu", device_ids=("nvidia0/gi3",), container="c", pod_uid="x")
    found, _ = uses(both, assignments=[gke])
    assert [bool(device.conditions) for device in overlaid(both, found).devices] == [False, True]


def test_answers_by_injection() -> None:  # 9.6 row 94
    card = v.device(0).identity
    there = ("/dev/nvidia0", "/dev/nvidiactl")

    def made(injection: Injection, isolation: IsolationMode | None = None):
        return answer(
            "/base/g",
            replace(FILES, injection=injection),
            cards=[card],
            isolation=isolation,
            chosen=True,
            existing_nodes=there,
        )

    by_environment = made(Injection.ENVIRONMENT)
    assert dict(by_environment.environment)["NVIDIA_VISIBLE_DEVICES"] == card.uuid
    assert by_environment.nodes == there
    assert made(Injection.CDI).cdi_devices == (f"tensor-fusion.ai/gpu={card.uuid}",)
    assert made(Injection.CDI).nodes == ()
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(made(Injection.NODES).environment)
    paths = [mount.container_path for mount in made(Injection.NODES, IsolationMode.SHARED).mounts]
    assert "/etc/ld.so.preload" not in paths


def test_programs_of_either_class_find_a_library_of_theirs() -> None:
    """The loader puts a folder of its class in place of $LIB: 32-bit programs get one with nothing in it."""
    given = answer(
        "/base/g", FILES, cards=[v.device(0).identity], isolation=IsolationMode.SOFT, chosen=True, existing_nodes=()
    )
    libraries = {m.container_path: m.host_path for m in given.mounts if m.container_path.endswith(".so")}
    expected = dict.fromkeys(FOLDERS, "/host/lib.so") | dict.fromkeys(FOLDERS_32, "/host/lib32.so")
    assert libraries == {
        f"/tensor-fusion-limiter/{folder}/libcuda_limiter.so": library for folder, library in expected.items()
    }


def test_cdi_files_name_cards_and_allocations() -> None:
    cards = [v.device(0).identity]

    def made(allocations=()):
        return cdi_files(cards, allocations, FILES, existing_nodes=("/dev/nvidia0",))

    plain = made()
    assert set(plain) == {"tensor-fusion.json"}
    document = json.loads(plain["tensor-fusion.json"])
    assert document["kind"] == "tensor-fusion.ai/gpu"
    assert document["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert made() == plain
    # Podman 4.3 and the first containerd 1.7 refuse files of later versions, and of 0.5.0 fields that came later.
    assert document["cdiVersion"] == "0.5.0"
    assert set(document) == {"cdiVersion", "kind", "devices"}
    limited = json.loads(made([v.allocation("a")])["tensor-fusion-allocations.json"])
    (device,) = limited["devices"]
    assert {mount["containerPath"] for mount in device["containerEdits"]["mounts"]} == {
        "/run/tensor-fusion/shm/shm",
        "/run/tensor-fusion/shm/usage",
        *(f"/tensor-fusion-limiter/{folder}/libcuda_limiter.so" for folder in (*FOLDERS, *FOLDERS_32)),
        "/etc/ld.so.preload",
    }


def test_cdi_files_are_written_anew_for_a_driver_and_go_with_the_last_allocation(tmp_path: Path) -> None:
    host, cards = Host(Settings(cdi_dir=str(tmp_path))), (v.device(0).identity,)

    def written(*allocations, driver: str = "580.65") -> dict[str, int]:
        host.write_cdi(cards, allocations, FILES, driver_version=driver)
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    first = written(v.allocation("a"))
    assert set(first) == {"tensor-fusion.json", "tensor-fusion-allocations.json"}
    assert written(v.allocation("a")) == first
    second = written(v.allocation("a"), driver="581.00")
    assert not set(second.values()) & set(first.values())
    assert set(written(driver="581.00")) == {"tensor-fusion.json"}
    assert host.describes(cards)
    assert not host.describes([v.device(1).identity])


def test_a_hook_keeps_what_an_image_preloads(tmp_path: Path) -> None:
    """The CDI device that an answer names holds a hook, which is run here as a runtime runs it."""
    hooked = replace(FILES, preload_hook=sys.executable)
    given = answer(
        "/base/g", hooked, cards=[v.device(0).identity], isolation=IsolationMode.SOFT, chosen=True, existing_nodes=()
    )
    assert given.cdi_devices == ("tensor-fusion.ai/limiter=preload",)
    assert "/etc/ld.so.preload" not in {mount.container_path for mount in given.mounts}
    files = cdi_files([v.device(0).identity], [v.allocation("a")], hooked, existing_nodes=("/dev/nvidia0",))
    document = json.loads(files["tensor-fusion-limiter.json"])
    assert (document["kind"], document["devices"][0]["name"]) == ("tensor-fusion.ai/limiter", "preload")
    (hook,) = document["devices"][0]["containerEdits"]["hooks"]
    assert hook["hookName"] == "createContainer"
    (of_allocation,) = json.loads(files["tensor-fusion-allocations.json"])["devices"]
    assert of_allocation["containerEdits"]["hooks"] == [hook]
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/ld.so.preload").write_text("/lib/of-the-image.so\n")
    (tmp_path / "config.json").write_text(json.dumps({"root": {"path": "root"}}))
    program, *arguments = hook["args"]
    assert program == hook["path"] == sys.executable
    done = subprocess.run(
        [program, "-m", "hypervisor", *arguments],
        input=json.dumps({"ociVersion": "1.1.0", "bundle": str(tmp_path)}),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    merged = (tmp_path / "root/etc/ld.so.preload").read_text().split()
    assert merged == ["/tensor-fusion-limiter/$LIB/libcuda_limiter.so", "/lib/of-the-image.so"]
    shared = answer(
        "/base/g", hooked, cards=[v.device(0).identity], isolation=IsolationMode.SHARED, chosen=True, existing_nodes=()
    )
    assert shared.cdi_devices == ()


@pytest.mark.parametrize("settings", [{"device_injection": "cdi"}, {"preload_hook": "/usr/bin/hypervisor"}])
def test_what_needs_cdi_files_wants_a_directory_for_them(settings: dict[str, str]) -> None:
    with pytest.raises(StartError, match="--cdi-dir"):
        check_paths(Settings(**settings))
    check_paths(Settings(**settings, cdi_dir="/var/run/cdi"))


def test_declarations() -> None:
    text = '[[allocations]]\nname = "a"\ngpu = "0"\ncompute = "40%"\nvram = "8Gi"\n'
    text += '[[allocations]]\nname = "b"\ncount = 2'
    text += '\n[[workers]]\nname = "w"\nallocation = "a"\ncommand = ["serve", "--all"]\n'
    found = read_declarations(text, file="x.toml")
    first, second = found.allocations
    (worker,) = found.workers
    assert (worker.worker_id, worker.allocation_id, worker.command) == ("declared-w", "a", ("serve", "--all"))
    assert first.devices[0].limits.vram_bytes == 8 * v.GIB
    assert (first.owner.name, len(second.devices)) == ("x.toml", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allocations", "is not TOML"),
        ('[[allocations]]\nname = "a"\ncompute = "lots"', "'lots'"),
        ('[[allocations]]\nname = "a"\nmemory = "1Gi"', "memory"),
        ('[[allocations]]\nname = "../a"', "name"),
        ('[[allocations]]\nname = "a"\n[[allocations]]\nname = "a"', "twice"),
        ('[[allocations]]\nname = "a"\ngpu = "0"\ncount = 2', "count says 2"),
        ('[[workers]]\nname = "w"\nallocation = "a"\ncommand = []', "command"),
        ('[[workers]]\nname = "../w"\nallocation = "a"\ncommand = ["x"]', "name"),
    ],
)
def test_a_wrong_declaration_is_quoted(text: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as refused:
        read_declarations(text, file="x.toml")
    assert "x.toml" in str(refused.value)


def test_an_instance_brings_the_nodes_that_give_access_to_it() -> None:
    """As the driver's table says; those of other instances stay out."""
    table = "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi8/access 75\nnonsense\n"
    minors = read_mig_minors(table)
    part = Partition(parent_uuid="GPU-0", gpu_instance_id=7, compute_instance_id=0, profile="1g.10gb")
    instance = replace(v.device(0).identity, uuid="MIG-1", minor=0, partition=part)
    own = ("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67", "/dev/nvidia0")
    there = (*own, "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidiactl")
    given = answer(
        "/base/g",
        FILES,
        cards=[instance],
        isolation=IsolationMode.PARTITIONED,
        chosen=True,
        existing_nodes=there,
        mig_minors=minors,
    )
    assert given.nodes == (*own, "/dev/nvidiactl")
    files = cdi_files([instance], [], FILES, existing_nodes=there, mig_minors=minors)
    (device,) = json.loads(files["tensor-fusion.json"])["devices"]
    assert {each["path"] for each in device["containerEdits"]["deviceNodes"]} == {*own, "/dev/nvidiactl"}
    assert read_mig_minors("") == {}
