"""Objects for an API server from records, and rows back from objects."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.aggregator import reports, rows
from hypervisor.aggregator.kubernetes import objects, pool_objects, restoring
from hypervisor.aggregator.kubernetes.crash_loops import Recreated, crash_loop, recreated
from hypervisor.aggregator.kubernetes.event_objects import event_body, event_name, regarding_of, series_key, stored_row
from hypervisor.aggregator.kubernetes.leader import Seen, Step, decide
from hypervisor.aggregator.pools import PoolSums, pool_sums, sum_pools
from hypervisor.aggregator.records import GpuObject, NodeRecord, gpu_object
from hypervisor.aggregator.reports import MAX_RATIO, MAX_VRAM_BYTES
from hypervisor.aggregator.store import EventRow
from hypervisor.aggregator.summaries import running_apps, shares
from hypervisor.v1 import cluster_pb2, types_pb2
from tests.fleet import messages
from tests.kube_fakes import schemas
from tests.kube_fakes.object_server import CRDS


def schema(plural: str) -> dict[str, Any]:
    found = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(found, dict)
    return found


STATUS = {
    plural: schema(plural)["properties"]["status"]
    for plural in ("gpus", "gpunodes", "gpupools", "tensorfusionclusters")
}


def node_record(name: str = "n", **changes: Any) -> NodeRecord:
    node = NodeRecord(f"uid-{name}", name)
    message = messages.node(name)
    node.latest = message.SerializeToString()
    for key, value in changes.items():
        setattr(node, key, value)
    return node


def gpu_record(node: NodeRecord, message: types_pb2.Gpu, *, apps: bytes = b"") -> GpuObject:
    made = gpu_object(message, node, latest=message.SerializeToString(), digest=0, received_at=0.0, intern=sys.intern)
    made.apps = apps
    node.gpus[made.name] = made
    return made


def check(status: Mapping[str, Any], plural: str) -> None:
    """It is what the schema has, whole: nothing is pruned, filled in or refused."""
    assert schemas.shaped(dict(status), STATUS[plural]) == status


FIGURES = st.one_of(st.none(), st.floats(0, 1e6))
TEXTS = st.text(max_size=30)


@settings(max_examples=25, deadline=None)
@given(
    tflops=FIGURES,
    vram=st.one_of(st.none(), st.integers(0, 1 << 50)),
    health=st.sampled_from(types_pb2.HealthState.values()),
    mode=st.sampled_from(types_pb2.IsolationMode.values()),
    model=TEXTS,
    condition=TEXTS,
    numa=st.one_of(st.none(), st.integers(0, 7)),
    amount=st.sampled_from(["10", "0.5", "", "a lot", "-1", "500m"]),
)
def test_every_gpu_is_as_its_schema_has_it_and_can_be_read_back(
    tflops: float | None,
    vram: int | None,
    health: Any,
    mode: Any,
    model: str,
    condition: str,
    numa: int | None,
    amount: str,
) -> None:
    message = messages.gpu("n", 0, health=health, model=model)
    message.active_isolation = mode
    for figure in (message.capacity.tflops, message.capacity.available_tflops):
        figure.ClearField("value")
        if tflops is not None:
            figure.value = tflops
    message.capacity.vram.ClearField("bytes")
    if vram is not None:
        message.capacity.vram.bytes = vram
    if numa is not None:
        message.topology.numa_node = numa
    message.conditions.add(type=condition, status=condition, reason=condition, message=condition)
    message.conditions.add(type=condition, status="True")
    allocation = messages.allocation("a", [message.uuid])
    allocation.devices[0].requests.compute.percent = amount
    node = node_record()
    gpu = gpu_record(node, message, apps=running_apps(shares(allocation)))
    status = objects.gpu_status(gpu)
    check(status, "gpus")
    live = {"metadata": {"name": gpu.name, "labels": {}}, "status": status}
    row = restoring.gpu_row(live, node_uid=node.uid)
    again = rows.gpu_record(row, node, now=0.0)
    assert objects.gpu_status(again) == status
    assert restoring.node_name(live) == "n"


@pytest.mark.parametrize("liveness", [cluster_pb2.LIVENESS_FRESH, cluster_pb2.LIVENESS_LATE, cluster_pb2.LIVENESS_LOST])
def test_every_node_is_as_its_schema_has_it_and_can_be_read_back(liveness: Any) -> None:
    node = node_record(liveness=liveness, boot_id="b", simulated=True)
    message = messages.gpu("n", 0)
    gpu_record(node, message, apps=running_apps(shares(messages.allocation("a", [message.uuid]))))
    status = objects.node_status(node)
    check(status, "gpunodes")
    live = {**objects.node_metadata(node, position=(3, 7)), "status": status}
    row = restoring.node_row(live)
    assert row is not None
    assert (row.uid, row.name, row.boot_id, row.simulated, row.liveness) == ("uid-n", "n", "b", True, liveness)
    assert restoring.event_position(live) == (3, 7)
    assert restoring.is_ours(live)
    assert status["phase"] == ("Unknown" if liveness == cluster_pb2.LIVENESS_LOST else "Running")


def test_a_lost_node_offers_nothing_and_keeps_its_capacity() -> None:
    node = node_record(liveness=cluster_pb2.LIVENESS_LOST)
    gpu_record(node, messages.gpu("n", 0)).liveness = cluster_pb2.LIVENESS_LOST
    status = objects.node_status(node)
    assert (status["totalTFlops"], status["availableTFlops"]) == ("989", "0")
    gpu = objects.gpu_status(next(iter(node.gpus.values())))
    assert (gpu["phase"], gpu["nodeLiveness"], gpu["allocatable"]) == ("Running", "Lost", False)


def test_a_node_that_can_not_serve_has_failed_and_one_that_never_reported_is_pending() -> None:
    message = messages.node("n")
    message.conditions.add(type="Ready", status="False", reason="NvmlFailed", message="no driver")
    assert objects.node_status(node_record(latest=message.SerializeToString()))["phase"] == "Failed"
    assert objects.node_status(node_record(latest=b""))["phase"] == "Pending"


def test_oversubscription_is_told_as_the_nodes_grant_it() -> None:
    node = node_record()
    message = messages.gpu("n", 0)
    message.capacity.tflops_ratio = 2.0
    gpu_record(node, message)
    status = objects.node_status(node)
    assert (status["totalTFlops"], status["virtualTFlops"]) == ("989", "1978")


def test_a_pool_is_counted_as_its_owner_wants_it() -> None:
    node = node_record(pools=("p",))
    node.host_memory_bytes = 512 << 30
    gpu_record(node, messages.gpu("n", 0))
    said = {"tflopsOversellRatio": 300, "vramExpandToHostMem": 50, "vramExpandToHostDisk": 70}
    pool: dict[str, Any] = {"metadata": {"name": "p", "generation": 1}}
    plain = pool_sums([node], {"p": pool_objects.oversubscription_of(pool)})["p"].sums
    assert (plain.virtual_tflops, plain.virtual_vram_bytes) == (plain.tflops, plain.vram_bytes)
    pool["spec"] = {"capacityConfig": {"oversubscription": said}}
    wanted = {"p": pool_objects.oversubscription_of(pool)}
    status = pool_objects.pool_status(pool, pool_sums([node], wanted)["p"], bad_selector="", clusters={})
    check(status, "gpupools")
    assert (status["totalTFlops"], status["virtualTFlops"]) == ("989", "2967")
    assert status["virtualVRAM"] == f"{(plain.vram_bytes + (256 << 30)) >> 20}Mi"
    # What is available is what the nodes grant.
    assert status["availableTFlops"] == objects.decimal(plain.available_tflops)
    assert sum_pools([node], wanted)[0].virtual_tflops == 2967.0


def test_the_most_that_nodes_may_say_breaks_no_sum() -> None:
    node = node_record(pools=("p",))
    message = messages.gpu("n", 0)
    message.capacity.vram.bytes, message.capacity.vram_ratio = MAX_VRAM_BYTES, MAX_RATIO
    reports.check_gpu(message, "gpu")
    for index in range(20):
        copy = messages.gpu("n", index)
        copy.capacity.CopyFrom(message.capacity)
        gpu_record(node, copy)
    assert sum_pools([node])[0].virtual_vram_bytes == (1 << 64) - 1


def test_pools_and_clusters_are_as_their_schemas_have_them() -> None:
    node = node_record(pools=("c-p",))
    gpu_record(node, messages.gpu("n", 0))
    sums = pool_sums([node])
    pool = {"metadata": {"name": "c-p", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    cluster = {"metadata": {"name": "c", "generation": 1}, "spec": {"gpuPools": [{"name": "p"}, {"name": "q"}]}}
    status = pool_objects.pool_status(pool, sums["c-p"], bad_selector="", clusters={"c": cluster})
    check(status, "gpupools")
    assert (status["phase"], status["cluster"], status["readyNodes"]) == ("Running", "c", 1)
    bad = pool_objects.pool_status(pool, PoolSums(), bad_selector="operator 'Like' is none", clusters={})
    check(bad, "gpupools")
    assert (bad["phase"], bad["conditions"][0]["status"]) == ("Unknown", "False")
    whole = pool_objects.cluster_status(cluster, sums, {"c-p": pool})
    check(whole, "tensorfusionclusters")
    assert (whole["phase"], whole["readyPools"], whole["notReadyPools"]) == ("Pending", ["c-p"], ["c-q"])
    cluster["spec"] = {"gpuPools": [{"name": "p"}]}
    assert pool_objects.cluster_status(cluster, sums, {"c-p": pool})["phase"] == "Running"


# --- events


def event(**changes: Any) -> EventRow:
    row = rows.event_row(messages.event("n", 1, 2), node_uid="uid-n", received_at=5.0)
    assert row is not None
    return row._replace(**changes)


def test_an_event_can_be_read_back() -> None:
    row = event()
    regarding = regarding_of(row, {("GPU", "gpu-n-0"): "u"})
    assert regarding == ("GPU", "", "gpu-n-0", "u")
    body = event_body(row, regarding, instance="i")
    again = stored_row(body)
    assert again is not None
    assert again._replace(received_at=5.0) == row
    assert event_name(row, regarding) == event_name(row, regarding)
    assert event_name(row, regarding) != event_name(row._replace(sequence=3), regarding)


def test_a_series_is_of_one_object_reason_and_message() -> None:
    row = event()
    key = series_key(row, regarding_of(row, {}))
    assert key == series_key(row._replace(sequence=9, epoch=4), regarding_of(row, {}))
    for changed in ({"message": "other"}, {"reason": "Other"}, {"name": "GPU-n-1"}):
        other = row._replace(**changed)
        assert key != series_key(other, regarding_of(other, {}))


@settings(max_examples=25, deadline=None)
@given(name=st.text(min_size=1, max_size=253))
def test_every_event_has_a_name_that_an_api_server_takes(name: str) -> None:
    row = event(name=name)
    made = event_name(row, regarding_of(row, {}))
    assert len(made) <= 253
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert made[0] not in "-."


# --- who leads


@pytest.mark.parametrize(
    ("seen", "now", "step"),
    [
        (None, 0.0, Step.CREATE),
        (Seen("me", "1", 15.0, 0.0), 100.0, Step.RENEW),
        (Seen("", "1", 15.0, 0.0), 0.0, Step.TAKE),
        (Seen("other", "1", 15.0, 0.0), 15.0, Step.WAIT),
        (Seen("other", "1", 15.0, 0.0), 15.1, Step.TAKE),
    ],
)
def test_a_lease_is_taken_when_it_is_free_or_has_run_out(seen: Seen | None, now: float, step: Step) -> None:
    assert decide(seen, "me", now) is step


# --- crash loops


def pod(restarts: int, **state: Any) -> dict[str, Any]:
    container = {"name": "hypervisor", "restartCount": restarts, **state}
    return {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"nodeName": "n"},
        "status": {"containerStatuses": [container], "initContainerStatuses": [{"name": "init", "restartCount": 0}]},
    }


def test_a_pod_is_in_a_crash_loop_beyond_the_threshold_only() -> None:
    assert crash_loop(pod(5), 5) is None
    found = crash_loop(pod(6), 5)
    assert found is not None
    assert (found.container, found.restarts, found.cause) == ("hypervisor", 6, "it is not said how it ended")
    assert crash_loop(pod(100), 0) is None
    leaving = pod(6)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert crash_loop(leaving, 5) is None


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        ({"exitCode": 1, "reason": "Error", "message": "a\nlast words\n\n"}, "exit code 1, Error: last words"),
        ({"exitCode": 137, "reason": "OOMKilled"}, "exit code 137, signal SIGKILL, OOMKilled"),
        ({"exitCode": 0, "signal": 11}, "exit code 0, signal SIGSEGV"),
    ],
)
def test_the_cause_is_quoted(ended: dict[str, Any], cause: str) -> None:
    found = crash_loop(pod(6, lastState={"terminated": ended}), 5)
    assert found is not None
    assert found.cause == cause


def test_the_pause_doubles_and_is_forgiven_after_long() -> None:
    state, now = Recreated(), 1_000_000.0
    assert state.allows(now)
    pauses = []
    for _ in range(8):
        state = state.next(now)
        pauses.append(state.pause)
        assert not state.allows(now + state.pause - 1)
        assert state.allows(now + state.pause)
        now += state.pause
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert recreated(state.text()) == Recreated(8, int(state.at))
    assert state.next(now + 7_200).count == 1
    assert recreated("rubbish") == Recreated()
