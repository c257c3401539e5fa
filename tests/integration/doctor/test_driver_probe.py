"""The gate as a Job on a new node: what it tells Kubernetes, and the manifest and the units that run it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hypervisor.cli.doctor import node as node_command
from tests.daemon_process import DaemonProcess
from tests.integration.doctor.command import doctor
from tests.kube_fakes.api_server import FakeApiServer

PROJECT = Path(__file__).parents[3]
MANIFEST = PROJECT / "deploy/driver-probe.yaml"
UNITS = PROJECT / "systemd"


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    server = FakeApiServer().start()
    yield server
    server.stop()


def test_a_node_that_does_not_pass_is_an_event_on_the_job(
    api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events reference: DriverProbeFailed, Warning, on the Job, when all tries were in vain."""
    monkeypatch.setenv("HYPERVISOR_NODE_NAME", "gpu-node-01")
    root = tmp_path / "root"
    root.mkdir()
    config = api.kubeconfig(tmp_path / "kubeconfig")
    job = ("--job", "gpus/driver-probe/uid-7", "--kubeconfig", str(config))
    done = doctor("node", "--gate", "--within", "0.1", "--root", str(root), *job)
    assert done.returncode == 1
    assert done.stderr.startswith("hypervisor: the node does not pass the gate: pci.gpu-present, ")
    assert len(done.stderr.splitlines()) == 1
    (event,) = api.events_of("uid-7")
    assert (event["reason"], event["type"]) == ("DriverProbeFailed", "Warning")
    assert event["involvedObject"]["kind"] == "Job"
    assert event["message"].startswith("node gpu-node-01 does not pass: pci.gpu-present: ")


def test_a_node_that_passes_tells_nothing(api: FakeApiServer, shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "kubeconfig")
    done = doctor(
        "node", "--gate", "--within", "60", "--job", "a/b/c", "--kubeconfig", str(config), daemon=shared_daemon
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert api.events_of("c") == []


def test_an_api_server_that_is_not_there_does_not_hide_the_verdict(api: FakeApiServer, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "kubeconfig")
    api.stop()
    done = doctor("node", "--gate", "--root", str(tmp_path), "--job", "a/b/c", "--kubeconfig", str(config))
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "DriverProbeFailed could not be written" in first
    assert "does not pass the gate" in second


def test_the_manifest_runs_what_the_program_takes() -> None:
    documents = {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}
    job = documents["Job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["args"][:3] == ["doctor", "node", "--gate"]
    taken = {name for parameter in node_command.params for name in parameter.opts}
    assert {argument.partition("=")[0] for argument in container["args"][2:]} <= taken
    assert job["backoffLimit"] == 0
    within = next(each for each in container["args"] if each.startswith("--within="))
    assert float(within.partition("=")[2]) < job["activeDeadlineSeconds"]
    assert {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]} in documents["Role"]["rules"]
    assert documents["RoleBinding"]["subjects"][0]["name"] == job["template"]["spec"]["serviceAccountName"]


def test_the_manifest_s_own_words_put_the_node_in_and_change_nothing_else() -> None:
    text = MANIFEST.read_text()
    placeholder = re.search(r"sed 's/([^/]+)/gpu-node-01/'", text)
    assert placeholder is not None
    done = subprocess.run(["sed", f"s/{placeholder[1]}/gpu-node-01/"], input=text, capture_output=True, text=True)
    job = next(each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "Job")
    assert job["metadata"]["name"] == "driver-probe-gpu-node-01"
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "gpu-node-01"}
    names = {variable["name"] for variable in pod["containers"][0]["env"]}
    assert names >= {"HYPERVISOR_NODE_NAME", "NVIDIA_VISIBLE_DEVICES"}
    assert "gpu-node-01" not in "".join(names)


def test_the_timer_s_service_runs_what_the_program_takes() -> None:
    unit = (UNITS / "hypervisor-inspection.service").read_text()
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2].split()
    assert command[:3] == ["hypervisor", "doctor", "node"]
    taken = {name for parameter in node_command.params for name in parameter.opts}
    assert {word for word in command if word.startswith("-")} <= taken


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_are_clean(tmp_path: Path) -> None:
    for unit in UNITS.glob("hypervisor-inspection.*"):
        # The program is not installed here; everything else is judged as it is.
        (tmp_path / unit.name).write_text(unit.read_text().replace("ExecStart=hypervisor ", "ExecStart=/bin/true "))
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
