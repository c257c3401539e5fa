"""The program on this machine, with a daemon on simulated GPUs and without any."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hypervisor.doctor.root import KERNEL_LOG
from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.client import connect
from hypervisor.simulation.faults import parse_fault_text
from hypervisor.simulation.machine import Machine
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import node_pb2_grpc
from tests.daemon_process import DaemonProcess, wait_until
from tests.integration.doctor.command import checks, doctor
from tests.integration.node import calls


def test_node_with_a_daemon(shared_daemon: DaemonProcess) -> None:
    found = checks(shared_daemon.cli("doctor", "node", "-o", "json", check=False))
    assert found["hypervisor.running"]["verdict"] == "pass"
    assert found["hypervisor.ready"]["verdict"] == "pass"
    assert found["driver.nvml"]["verdict"] == "pass"
    assert "8 GPUs by the daemon" in str(found["driver.nvml"]["evidence"])
    assert found["driver.health"]["verdict"] == "pass"
    assert found["pci.gpu-present"]["skipReason"] == "not applicable"


def test_node_without_a_daemon(tmp_path: Path) -> None:
    done = doctor("node", "--server", f"unix:{tmp_path}/none.sock")
    assert done.returncode == 1, done.stderr
    assert "hypervisor.running" in done.stdout
    assert "no daemon runs on this node" in done.stdout
    assert done.stderr == ""


def test_a_fault_of_the_simulated_card_is_told(make_daemon: Callable[..., DaemonProcess]) -> None:
    """By the command, and by the daemon itself: an event and a condition of the node."""
    daemon = make_daemon("--doctor-interval-seconds", "1").start().wait_ready()
    with closing(Machine.open(daemon.machine)) as machine:
        machine.add_fault(parse_fault_text("gpu=3,xid=79,lost", machine.gpu_count))

    def told() -> bool:
        found = checks(doctor("node", "-o", "json", daemon=daemon))
        return found["driver.health"]["verdict"] == "fail" and "lost" in str(found["driver.health"]["evidence"])

    wait_until(told, "the doctor to tell of the lost card")
    wait_until(
        lambda: any(
            event.reason == "DoctorCheckFailed" and event.message.startswith("driver.health: ")
            for event in calls.list_events(daemon)
        ),
        "the event",
    )
    wait_until(lambda: 'condition="DoctorFindings"' in daemon.get("/metrics")[1], "the condition")


def test_pod_that_is_not_here(shared_daemon: DaemonProcess) -> None:
    done = doctor("pod", "ml/nobody", "-o", "json", daemon=shared_daemon)
    assert done.returncode == 1
    assert json.loads(done.stdout)["firstBroken"] == "pod.found"


def test_a_pod_needs_its_namespace() -> None:
    done = doctor("pod", "train")
    assert done.returncode == 2
    assert "NAMESPACE/NAME" in done.stderr


def test_diagnose_through_the_api(shared_daemon: DaemonProcess) -> None:
    with connect(shared_daemon.read_address) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        node = client.call(stub.Diagnose, pb.DiagnoseRequest())
        verdicts = {each.check_id: each.verdict for each in node.checks}
        assert verdicts["driver.health"] == pb.VERDICT_PASS
        assert verdicts["hypervisor.running"] == pb.VERDICT_PASS

        uuid = client.call(stub.ListGpus, pb.ListGpusRequest()).gpus[2].uuid
        card = client.call(stub.Diagnose, pb.DiagnoseRequest(subject=f"gpu/{uuid.lower()}"))
        health = next(each for each in card.checks if each.check_id == "driver.health")
        assert list(health.evidence) == ["1 GPUs are healthy"]

        pod = client.call(stub.Diagnose, pb.DiagnoseRequest(subject="pod/ml/nobody"))
        assert pod.first_broken == "pod.found"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("gpu/GPU-nowhere", RefusalReason.GPU_NOT_FOUND),
        ("pod/ml", RefusalReason.INVALID_ARGUMENT),
        ("node/x", RefusalReason.INVALID_ARGUMENT),
        ("pod/a/b/c", RefusalReason.INVALID_ARGUMENT),
    ],
)
def test_subjects_that_there_are_not(subject: str, reason: RefusalReason, shared_daemon: DaemonProcess) -> None:
    with connect(shared_daemon.read_address) as client:
        stub = node_pb2_grpc.NodeServiceStub(client.channel)
        with pytest.raises(Refusal) as refused:
            client.call(stub.Diagnose, pb.DiagnoseRequest(subject=subject))
        assert refused.value.reason is reason
        assert refused.value.field == "subject"


def test_the_gate_of_a_simulated_node(shared_daemon: DaemonProcess) -> None:
    """What a simulated node has not counts as passed; an image that its driver can't run does not."""
    passing = doctor("node", "--gate", "--cuda", "11.4", daemon=shared_daemon)
    assert passing.returncode == 0, passing.stderr
    refused = doctor("node", "--gate", "--cuda", "13.0", daemon=shared_daemon)
    told = checks(doctor("node", "--cuda", "13.0", "-o", "json", daemon=shared_daemon))
    newest = told["runtime.cuda-version"]["verdict"]
    assert (refused.returncode == 0) == (newest == "pass"), refused.stderr
    assert refused.stderr == "" or "does not pass the gate: runtime.cuda-version" in refused.stderr


def test_a_bundle_is_examined_elsewhere(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    archive, directory = tmp_path / "bundle.tar.gz", tmp_path / "elsewhere"
    assert doctor("bundle", str(archive), daemon=shared_daemon).returncode == 0
    with tarfile.open(archive) as file:
        # Debian's Python 3.11.2 has the filters as no argument yet.
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(directory)
    here = checks(doctor("node", "-o", "json", daemon=shared_daemon))
    there = checks(doctor("node", "--root", str(directory), "-o", "json"))
    # Processes and counters of the machine move on between the two.
    moving = {"driver.hang", "runtime.process-limits", "memory.sources-agree"}
    assert {name: each["verdict"] for name, each in there.items() if name not in moving} == {
        name: each["verdict"] for name, each in here.items() if name not in moving
    }


def test_the_daily_report_is_written_by_a_timer(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    page, state = tmp_path / "doctor.html", tmp_path / "state.json"
    arguments = ("node", "-o", "html", "--write", str(page), "--since", str(state))
    done = doctor(*arguments, "--metrics", f"{shared_daemon.http_url}/metrics", daemon=shared_daemon)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout == ""
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "the daemon" in text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_cluster_that_nobody_tells_of() -> None:
    done = doctor("cluster")
    assert done.returncode == 1
    assert "cluster.aggregator" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("node", "--cuda", "twelve"), "takes a version like 12.4"),
        (("node", "--cuda", "12.4", "--pod", "a/b"), "exclude each other"),
        (("node", "--image", __file__), "is no image"),
        (("node", "--root", "/nowhere"), "does not exist"),
        (("node", "-o", "html", "--metrics", "ftp://x"), "takes http://HOST:PORT/PATH"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_site_s_own_xids(tmp_path: Path) -> None:
    """A number that the site treats otherwise is treated so by the command too."""
    root, policy = tmp_path / "root", tmp_path / "xids.toml"
    (root / "hypervisor-doctor").mkdir(parents=True)
    policy.write_text("version = 1\n[classes]\nignore = [62]\n")
    write = root / KERNEL_LOG.lstrip("/")
    write.parent.mkdir(parents=True, exist_ok=True)
    write.write_text("[    5.0] NVRM: Xid (PCI:0000:18:00): 62, pid=1, name=python, halt\n")
    assert checks(doctor("node", "--root", str(root), "-o", "json"))["driver.xid"]["verdict"] == "fail"
    own = doctor("node", "--root", str(root), "-o", "json", "--xid-policy", str(policy))
    assert checks(own)["driver.xid"]["verdict"] == "pass"
    policy.write_text("version = 2\n")
    refused = doctor("node", "--root", str(root), "--xid-policy", str(policy))
    assert (refused.returncode, "--xid-policy" in refused.stderr) == (2, True)
