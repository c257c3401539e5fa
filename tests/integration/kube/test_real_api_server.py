"""What only a real API server can say no to: watches, permissions, policies, manifests."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
import trio
import yaml

from hypervisor.kube.annotations import SYSTEM_KEYS
from hypervisor.kube.pod import read_pod
from hypervisor.model import EventType
from hypervisor.node import kubernetes_pods
from hypervisor.node.kubernetes_api import ApiFailure, open_api
from hypervisor.node.kubernetes_events import PodEvents
from hypervisor.node.kubernetes_pods import PodWatch
from tests.daemon_process import wait_until
from tests.kube_fakes.node import pod
from tests.real_kube.api_server import ACCOUNT, NAMESPACE, RealApiServer
from tests.real_kube.cluster import APPLY, DEPLOY, MERGE, Cluster, Refused, path_of

pytestmark = pytest.mark.real_kube
PODS = "/api/v1/namespaces/default/pods"
_NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
_KNOWN = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "DaemonSet",
    "Deployment",
    "Service",
    "ConfigMap",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


@pytest.fixture
def api(cluster: Cluster):
    server = RealApiServer(cluster)
    yield server
    for uid in server.pods:
        server.delete(uid)


def follow(kubeconfig: Path, node: str, check) -> None:
    """Run a watch as the daemon does, and an async check(watch, client, until) beside it."""

    async def until(condition) -> None:
        while not condition():  # noqa: ASYNC110 - of another process's making
            await trio.sleep(0.02)

    async def main() -> None:
        async with open_api(str(kubeconfig)) as client:
            watch = PodWatch(client, node, lambda: None)
            with trio.fail_after(90):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch.run)
                    await check(watch, client, until)
                    nursery.cancel_scope.cancel()

    trio.run(main)


def test_pods_are_followed_over_watches_that_the_server_ends(
    api: RealApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that the server ends is resumed from the bookmark that it sends before, without another list."""
    monkeypatch.setattr(kubernetes_pods, "WATCH_SECONDS", (4.0, 4.0))
    node = f"n-{uuid.uuid4().hex[:8]}"
    first = api.create(pod("first", node=node, **GOOD))["metadata"]["uid"]
    elsewhere = api.create(pod("elsewhere", node="another-node", **GOOD))["metadata"]["uid"]

    async def check(watch, client, until) -> None:
        await until(lambda: first in watch.pods and watch.complete)
        version = watch._version
        await trio.to_thread.run_sync(lambda: api.annotate(elsewhere, vram_limit="2Gi"))
        # Nothing of this node changes, and the version moves on all the same: by bookmarks.
        await until(lambda: watch.statistics().watches_total >= 3 and watch._version != version)
        await trio.to_thread.run_sync(lambda: api.annotate(first, vram_limit="2Gi"))
        await until(lambda: dict(watch.pods[first].annotations)["tensor-fusion.ai/vram-limit"] == "2Gi")
        await trio.to_thread.run_sync(lambda: api.set_phase(first, "Failed"))
        await until(lambda: watch.pods[first].ended)
        await trio.to_thread.run_sync(lambda: api.delete(first))
        await until(lambda: not watch.pods)
        assert watch.statistics().lists_total == 1
        assert watch.statistics().failures_total == 0

    follow(api.kubeconfig(tmp_path / "kubeconfig"), node, check)


@pytest.mark.slow
def test_the_server_restarts_and_a_version_that_is_too_old_is_listed_anew(api: RealApiServer, tmp_path: Path) -> None:
    """A server that has restarted knows of no change before: a watch from long ago is answered by 410."""
    node = f"n-{uuid.uuid4().hex[:8]}"
    created = api.create(pod("one", node=node, **GOOD))["metadata"]["uid"]

    async def check(watch, client, until) -> None:
        await until(lambda: created in watch.pods)
        await trio.to_thread.run_sync(api.cluster.stop)
        await until(lambda: watch.failing)
        assert created in watch.pods, "what is known stays"
        await trio.to_thread.run_sync(api.cluster.start)
        await until(lambda: not watch.failing)
        failures = watch.statistics().failures_total
        old = PodWatch(client, node, lambda: None)
        old._version = "1"
        with pytest.raises(ApiFailure) as gone:
            await old._watch()
        assert gone.value.code == 410
        async with trio.open_nursery() as nursery:
            nursery.start_soon(old.run)
            await until(lambda: created in old.pods and old.complete)
            nursery.cancel_scope.cancel()
        assert old.statistics().lists_total == 1
        assert watch.statistics().failures_total == failures

    follow(api.kubeconfig(tmp_path / "kubeconfig"), node, check)


def test_lists_come_in_pages(api: RealApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypervisor.node.kubernetes_api.PAGE", 2)
    node = f"n-{uuid.uuid4().hex[:8]}"
    wanted = {api.create(pod(f"p{number}", node=node, **GOOD))["metadata"]["uid"] for number in range(5)}

    async def check(watch, client, until) -> None:
        await until(lambda: set(watch.pods) == wanted)
        assert client.requests >= 3

    follow(api.kubeconfig(tmp_path / "kubeconfig"), node, check)


def test_the_daemons_account_may_do_what_it_does_and_no_more(api: RealApiServer) -> None:
    def allowed(verb: str, resource: str, namespace: str = "default", group: str = "") -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
                "resourceAttributes": {"verb": verb, "resource": resource, "namespace": namespace, "group": group},
            },
        }
        place = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(api.cluster.ask("POST", place, review)["status"]["allowed"])

    assert all(allowed(verb, "pods", namespace) for verb in ("list", "watch") for namespace in ("default", ""))
    assert all(allowed(verb, "events") for verb in ("create", "patch"))
    beyond = [("delete", "pods"), ("patch", "pods"), ("get", "secrets"), ("list", "secrets"), ("delete", "events")]
    assert not any(allowed(verb, resource) for verb, resource in beyond)
    assert not allowed("update", "nodes", "")


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.glob("*.yaml")))
def test_manifests_hold_no_field_that_the_server_does_not_know(cluster: Cluster, name: str) -> None:
    for document in yaml.safe_load_all((DEPLOY / name).read_text()):
        # A patch for another manifest has no kind.
        if document is None or document.get("kind") not in {"Namespace"} | _KNOWN:
            continue
        cluster.ask("PATCH", f"/api/v1/namespaces/{NAMESPACE}?fieldManager=tests&force=true", _NAMESPACE, kind=APPLY)
        found = cluster.ask(
            "PATCH",
            f"{path_of(document)}?fieldManager=tests&force=true&dryRun=All&fieldValidation=Strict",
            document,
            kind=APPLY,
        )
        assert found["kind"] == document["kind"]


@pytest.fixture
def policy(cluster: Cluster):
    """The policy in force: it takes the server a moment."""
    cluster.apply(DEPLOY / "annotations-policy.yaml")

    def in_force() -> bool:
        probe = pod("probe", node="nowhere", gpu_ids="x")
        probe["metadata"].pop("uid")
        try:
            cluster.ask("POST", f"{PODS}?dryRun=All", probe, user=PERSON)
        except Refused:
            return True
        return False

    wait_until(in_force, "the policy to be in force", 60)
    yield
    cluster.delete(DEPLOY / "annotations-policy.yaml")


PERSON = {"Impersonate-User": "somebody", "Impersonate-Group": "system:masters"}
OTHERS = [
    {"Impersonate-User": "system:kube-scheduler", "Impersonate-Group": "system:masters"},
    {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:scheduler", "Impersonate-Group": "system:masters"},
]


def test_the_policy_keeps_system_annotations_to_those_who_write_them(api: RealApiServer, policy) -> None:
    def patch(annotations: dict[str, str | None], user: dict[str, str]) -> dict:
        return api.cluster.ask(
            "PATCH", f"{PODS}/guarded", {"metadata": {"annotations": annotations}}, kind=MERGE, user=user
        )

    api.create(pod("guarded", node="nowhere", **GOOD))
    for key in SYSTEM_KEYS:
        with pytest.raises(Refused, match="written by the scheduler only") as refused:
            patch({key: "x"}, PERSON)
        assert refused.value.code == 403
        for other in OTHERS:
            assert patch({key: "x"}, other)["metadata"]["annotations"][key] == "x"
        for change in (None, "y"):
            with pytest.raises(Refused, match="written by the scheduler only"):
                patch({key: change}, PERSON)
    assert patch({"tensor-fusion.ai/vram-limit": "3Gi"}, PERSON)["metadata"]["annotations"][SYSTEM_KEYS[0]] == "x"
    forged = pod("forged", node="nowhere", index="7", **GOOD)
    forged["metadata"].pop("uid")
    with pytest.raises(Refused, match="written by the scheduler only"):
        api.cluster.ask("POST", PODS, forged, user=PERSON)


def test_events_are_written_once_and_counted(api: RealApiServer, tmp_path: Path) -> None:
    created = api.create(pod("told", node="nowhere", **GOOD))
    told = read_pod(json.dumps(created).encode())

    async def check(watch, client, until) -> None:
        events = PodEvents(client, lambda *_, **__: None, "nowhere")
        for _ in range(3):
            events.tell(told, EventType.WARNING, "AnnotationInvalid", "x" * 2000)
        assert await events.step() == 0.0
        (told_again,) = events._told.values()
        told_again.due = True
        assert await events.step() == 0.0
        # After a restart the same is told under the same name, and is there.
        second = PodEvents(client, lambda *_, **__: None, "nowhere")
        second.tell(told, EventType.WARNING, "AnnotationInvalid", "x" * 2000)
        assert await second.step() == 0.0
        assert (events.statistics().dropped_total, second.statistics().dropped_total) == (0, 0)

    follow(api.kubeconfig(tmp_path / "kubeconfig"), "nowhere", check)
    (event,) = api.events_of(created["metadata"]["uid"])
    assert (event["reason"], event["type"], event["count"]) == ("AnnotationInvalid", "Warning", 3)
    assert event["source"]["component"] == "gpu-hypervisor"
