"""The program on this machine, with a daemon on simulated GPUs and without any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.model import Refusal, RefusalReason
from hypervisor.rpc.client import connect
from hypervisor.v1 import node_pb2 as pb
from hypervisor.v1 import node_pb2_grpc
from tests.daemon_process import DaemonProcess, wait_until


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hypervisor", "doctor", *arguments], capture_output=True, text=True, timeout=60
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, object]]:
    assert done.returncode in (0, 1), done.stderr
    return {each["checkId"]: each for each in json.loads(done.stdout)["checks"]}


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
    daemon = make_daemon().start().wait_ready()
    fault = [sys.executable, "-m", "hypervisor", "sim", "fault", "--machine", str(daemon.machine), "gpu=3,xid=79,lost"]
    subprocess.run(fault, check=True, timeout=60, stdout=subprocess.DEVNULL)

    def told() -> bool:
        found = checks(daemon.cli("doctor", "node", "-o", "json", check=False))
        return found["driver.health"]["verdict"] == "fail" and "lost" in str(found["driver.health"]["evidence"])

    wait_until(told, "the doctor to tell of the lost card")


def test_pod_that_is_not_here(shared_daemon: DaemonProcess) -> None:
    done = shared_daemon.cli("doctor", "pod", "ml/nobody", "-o", "json", check=False)
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
