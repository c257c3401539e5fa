"""Events on the API server: on the object with its UID, a series for repeats, none lost and none doubled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hypervisor.aggregator.kubernetes.crash_loops import Recreation
from hypervisor.v1 import node_pb2
from tests.fleet import messages
from tests.fleet.process import AggregatorProcess, all_events, wait_until
from tests.fleet.stream import ReportStream
from tests.integration.aggregator_kube.conftest import EVENTS, GROUP, NAMESPACE, Kube, is_ready

pytestmark = pytest.mark.slow

Replica = Callable[..., AggregatorProcess]
A0 = messages.name("node-a", 0)
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def report(stream: ReportStream, node: str = "node-a") -> None:
    stream.send(messages.hello(node))
    stream.wait_for("welcome")
    gpus = [messages.gpu(node, 0, peers=1)]
    stream.send(messages.snapshot(messages.revision(1, 1), messages.state(node, gpus=gpus)))
    stream.wait_for_revision(1, 1)


def test_an_event_is_shown_on_its_object_once(kube: Kube, replica: Replica) -> None:
    process = replica()
    sent = [messages.event("node-a", 1, sequence) for sequence in (1, 2, 3)]
    with ReportStream(process.address) as stream:
        report(stream)
        stream.send(messages.events(*sent))
        stream.wait_for_event(1, 3)
        gpu = kube.gpu_until(A0, lambda gpu: True, "the GPU is there")
        process.kill()
    found = kube.events("GpuLost")
    assert {each["note"] for each in found} == {f"event {sequence} of node-a" for sequence in (1, 2, 3)}
    assert {each["regarding"]["uid"] for each in found} == {gpu["metadata"]["uid"]}
    assert {(each["type"], each["action"]) for each in found} == {("Warning", "Observe")}
    process.start()
    wait_until(lambda: is_ready(process), "it leads again")
    with ReportStream(process.address) as stream:
        stream.send(messages.hello("node-a"))
        welcome = stream.wait_for("welcome").welcome
        assert (welcome.held_event_epoch, welcome.held_event_sequence) == (1, 3)
        stream.send(messages.events(*sent, messages.event("node-a", 1, 4)))
        stream.wait_for_event(1, 4)
    assert len(kube.events("GpuLost")) == 4
    with process.cluster() as stub:
        assert sorted(all_events(stub)) == [("uid-node-a", 1, sequence) for sequence in (1, 2, 3, 4)]


def test_repeats_are_a_series(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        report(stream)
        for sequence in range(1, 6):
            repeated = messages.event("node-a", 1, sequence)
            repeated.message = "the same again"
            stream.send(messages.events(repeated))
            stream.wait_for_event(1, sequence)
    found = kube.events("GpuLost")
    assert [each["series"]["count"] for each in found] == [5]


def test_an_event_about_what_is_no_object_is_shown_on_its_node(kube: Kube, replica: Replica) -> None:
    with ReportStream(replica().address) as stream:
        report(stream)
        made = messages.event("node-a", 1, 1, reason="LimitsChanged")
        made.regarding.kind, made.regarding.name = "Allocation", "training"
        stream.send(messages.events(made))
        stream.wait_for_event(1, 1)
    node = kube.node_until("node-a", lambda node: True, "the node is there")
    found = kube.events("LimitsChanged")[0]
    assert found["regarding"]["uid"] == node["metadata"]["uid"]
    assert found["note"] == "Allocation training: event 1 of node-a"


def test_a_burst_of_events_waits_and_holds_up_no_object(kube: Kube, replica: Replica) -> None:
    fake = kube.fake
    with ReportStream(replica().address) as stream:
        report(stream)
        made = [messages.event("node-a", 1, sequence) for sequence in range(1, 601)]
        stream.send(messages.events(*made))
        delta = node_pb2.NodeDelta(gpus=[messages.gpu("node-a", 0, peers=1, available_tflops=5.0)])
        stream.send(messages.delta(messages.revision(1, 1), messages.revision(1, 2), delta))
        kube.gpu_until(A0, lambda gpu: gpu["status"]["available"]["tflops"] == "5", "the object is written")
        assert fake.count("POST", "/events") < 600, "the burst is not over"
        stream.wait_for_event(1, 600)
    assert len(kube.events("GpuLost")) == 600


def crashing_pod(name: str, restarts: int) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"tensor-fusion.ai/component": "hypervisor"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "hypervisor", "image": "gpu-hypervisor"}]},
    }
    ended = {"exitCode": 139, "reason": "Error", "message": "starting\nNVML: version mismatch\n"}
    container = {
        "name": "hypervisor",
        "image": "gpu-hypervisor",
        "imageID": "i",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    return pod, {"phase": "Running", "containerStatuses": [container]}


def removed(kube: Kube, name: str) -> bool:
    found = kube.get(f"{PODS}/{name}")
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_hypervisor_in_a_crash_loop_is_made_anew_with_the_cause(kube: Kube, replica: Replica) -> None:
    for name, restarts in (("hypervisor-x", 6), ("hypervisor-y", 5)):
        pod, status = crashing_pod(name, restarts)
        kube.ask("POST", PODS, pod)
        kube.merge(f"{PODS}/{name}/status", {"status": status})
    replica()
    wait_until(lambda: removed(kube, "hypervisor-x"), "the Pod beyond the threshold is removed")
    wait_until(lambda: kube.events("HypervisorCrashLoopRecreate"), "the event is there")
    event = kube.events("HypervisorCrashLoopRecreate")[0]
    node = kube.get(f"{GROUP}/gpunodes/node-a")
    assert node is not None
    assert (event["regarding"]["kind"], event["regarding"]["uid"]) == ("GPUNode", node["metadata"]["uid"])
    assert "exit code 139, signal SIGSEGV, Error: NVML: version mismatch" in event["note"]
    assert "has restarted 6 times, more than 5" in event["note"]
    assert node["status"]["phase"] == "Pending"
    assert not removed(kube, "hypervisor-y")
    # The next one crashes as often: the back-off holds, also for the next leader.
    pod, status = crashing_pod("hypervisor-z", 9)
    kube.ask("POST", PODS, pod)
    kube.merge(f"{PODS}/hypervisor-z/status", {"status": status})
    assert node["metadata"]["annotations"]["tensor-fusion.ai/hypervisor-recreated"].startswith("1 ")
    assert not removed(kube, "hypervisor-z")


def test_a_crash_between_a_removal_and_its_event_loses_and_doubles_nothing(kube: Kube, replica: Replica) -> None:
    """As an aggregator leaves it that was killed: the note is there, the Pod is gone, and nobody was told."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for name in ("gone", "there"):
        made = kube.ask("POST", PODS, crashing_pod(f"hypervisor-{name}", 1)[0])
        told = Recreation(
            pod=f"hypervisor-{name}",
            uid=made["metadata"]["uid"],
            count=2,
            container="hypervisor",
            restarts=6,
            threshold=5,
            cause="exit code 1",
        )
        annotations = {"tensor-fusion.ai/hypervisor-recreated": f"2 {at}"}
        annotations["tensor-fusion.ai/hypervisor-recreation"] = told.text()
        body = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUNode"}
        kube.ask("POST", f"{GROUP}/gpunodes", {**body, "metadata": {"name": name, "annotations": annotations}})
    kube.ask("DELETE", f"{PODS}/hypervisor-gone", {"gracePeriodSeconds": 0})
    process = replica()
    for _ in range(2):
        wait_until(lambda: kube.events("HypervisorCrashLoopRecreate"), "the event is there")
        event = kube.events("HypervisorCrashLoopRecreate")[0]
        assert event["regarding"]["name"] == "gone"
        assert "time 2 in a row" in event["note"]
        process.kill()
        process.start()
        wait_until(lambda: is_ready(process), "it leads again")
        with ReportStream(process.address) as stream:
            report(stream)
            stream.send(messages.events(messages.event("node-a", 1, 1)))
            stream.wait_for_event(1, 1)
    assert len(kube.events("HypervisorCrashLoopRecreate")) == 1


def test_a_driver_probe_that_failed_is_told_once(kube: Kube, replica: Replica) -> None:
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    labels = {"tensor-fusion.ai/component": "driver-probe"}
    container = {"name": "probe", "image": "gpu-hypervisor"}
    template = {"spec": {"nodeName": "node-a", "restartPolicy": "Never", "containers": [container]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "driver-probe-node-a", "namespace": NAMESPACE, "labels": labels},
        "spec": {"backoffLimit": 3, "template": template},
    }
    made = kube.ask("POST", jobs, job)
    process = replica()
    times = {"lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = {"status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the limit", **times}
    conditions = [{"type": "FailureTarget", **told}, {"type": "Failed", **told}]
    status = {"startTime": "2026-01-01T00:00:00Z", "failed": 4, "conditions": conditions}
    kube.merge(f"{jobs}/driver-probe-node-a/status", {"status": status})
    wait_until(lambda: kube.events("DriverProbeFailed"), "the event is there")
    event = kube.events("DriverProbeFailed")[0]
    assert (event["regarding"]["kind"], event["regarding"]["uid"]) == ("Job", made["metadata"]["uid"])
    assert event["note"].startswith("the driver probe of node node-a has failed 4 times")
    process.kill()
    process.start()
    wait_until(lambda: is_ready(process), "it leads again")
    with ReportStream(process.address) as stream:
        report(stream)
        stream.send(messages.events(messages.event("node-a", 1, 1)))
        stream.wait_for_event(1, 1)
    assert len(kube.events("DriverProbeFailed")) == 1


def test_a_probe_that_has_told_itself_is_not_told_again(kube: Kube, replica: Replica) -> None:
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    container = {"name": "probe", "image": "gpu-hypervisor"}
    made = {}
    for name in ("driver-probe-told", "driver-probe-silent"):
        labels = {"tensor-fusion.ai/component": "driver-probe"}
        template = {"spec": {"nodeName": "node-a", "restartPolicy": "Never", "containers": [container]}}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}}
        made[name] = kube.ask("POST", jobs, {**body, "spec": {"backoffLimit": 0, "template": template}})
    about = {"apiVersion": "batch/v1", "kind": "Job", "namespace": NAMESPACE, "name": "driver-probe-told"}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "driver-probe-told.1", "namespace": NAMESPACE},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "tests/gate",
        "reportingInstance": "i",
        "action": "Probe",
        "reason": "DriverProbeFailed",
        "type": "Warning",
        "regarding": {**about, "uid": made["driver-probe-told"]["metadata"]["uid"]},
        "note": "the driver is missing",
    }
    kube.ask("POST", f"{EVENTS}/namespaces/{NAMESPACE}/events", event)
    times = {"lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = {"status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer than it may", **times}
    conditions = [{"type": "FailureTarget", **told}, {"type": "Failed", **told}]
    for name in made:
        status = {"startTime": "2026-01-01T00:00:00Z", "failed": 1, "conditions": conditions}
        kube.merge(f"{jobs}/{name}/status", {"status": status})
    replica()
    wait_until(lambda: len(kube.events("DriverProbeFailed")) == 2, "the silent one is told of")
    found = {each["regarding"]["name"]: each["note"] for each in kube.events("DriverProbeFailed")}
    assert found["driver-probe-told"] == "the driver is missing"
    assert "Job was active longer than it may" in found["driver-probe-silent"]
