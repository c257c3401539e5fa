"""The watch of Pods against an API server that is away, slow, or of another opinion."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hypervisor.node.kubernetes_api import open_api
from hypervisor.node.kubernetes_pods import PodWatch
from tests.daemon_process import wait_until
from tests.kube_fakes.api_server import FakeApiServer
from tests.kube_fakes.node import NODE, KubeNode, pod, settled

GOOD = {"compute_percent_limit": "5", "vram_limit": "1Gi"}


class Follower:
    """A PodWatch in a trio run of its own; conditions are waited for without a wall clock of the test's."""

    def __init__(self, api: FakeApiServer, directory: Path, **parts) -> None:
        self.api = api
        self.kubeconfig = api.kubeconfig(directory / "kubeconfig", **parts)
        self.watch: PodWatch | None = None

    def follow(self, check) -> None:
        """Run the watch and an async check(watch, until) beside it."""

        async def main() -> None:
            async with open_api(str(self.kubeconfig)) as api:
                self.watch = PodWatch(api, NODE, lambda: None)
                with trio.fail_after(30):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.watch.run)
                        await check(self.watch, until)
                        nursery.cancel_scope.cancel()

        async def until(condition) -> None:
            while not condition():  # noqa: ASYNC110 - of another thread's making
                await trio.sleep(0.01)

        trio.run(main)


@pytest.fixture
def api():
    server = FakeApiServer().start()
    yield server
    server.stop()


@pytest.fixture
def follower(api: FakeApiServer, tmp_path: Path) -> Follower:
    return Follower(api, tmp_path)


def test_pods_are_listed_in_pages_and_followed(api: FakeApiServer, follower: Follower) -> None:
    api.page = 2
    for number in range(5):
        api.create(pod(f"p{number}"))
    api.create(pod("elsewhere", node="node-2"))

    async def check(watch, until) -> None:
        await until(lambda: len(watch.pods) == 5 and watch.complete)
        assert api.count("GET /api/v1/pods?") == api.count("GET") >= 3
        created = api.create(pod("new"))
        await until(lambda: created["metadata"]["uid"] in watch.pods)
        api.set_phase(created["metadata"]["uid"], "Failed")
        await until(lambda: watch.pods[created["metadata"]["uid"]].ended)
        api.delete(created["metadata"]["uid"])
        await until(lambda: len(watch.pods) == 5)

    follower.follow(check)


def test_a_watch_is_resumed_where_it_ended_and_listed_anew_after_410(api: FakeApiServer, follower: Follower) -> None:
    async def check(watch, until) -> None:
        await until(lambda: api.watchers == 1)
        lists = api.count("limit=")
        first = api.create(pod("first"))
        await until(lambda: first["metadata"]["uid"] in watch.pods)
        api.end_watches()
        second = api.create(pod("second"))
        await until(lambda: second["metadata"]["uid"] in watch.pods)
        assert api.count("limit=") == lists, "resumed, not listed anew"
        # A bookmark carries it over a compaction.
        api.compact()
        api.bookmark()
        third = api.create(pod("third"))
        await until(lambda: third["metadata"]["uid"] in watch.pods)
        api.end_watches()
        fourth = api.create(pod("fourth"))
        await until(lambda: fourth["metadata"]["uid"] in watch.pods)
        assert api.count("limit=") == lists
        # Without one it is too old; what is known stays until the list is there.
        api.expire_watches()
        api.delete(first["metadata"]["uid"])
        await until(lambda: first["metadata"]["uid"] not in watch.pods)
        assert len(watch.pods) == 3
        assert api.count("limit=") == lists + 1

    follower.follow(check)


def test_refusals_and_cut_watches_are_answered_by_patience(api: FakeApiServer, follower: Follower) -> None:
    api.refuse = [(500, ""), (429, "1"), (503, "")]
    api.cut_next_watches = 3

    async def check(watch, until) -> None:
        await until(lambda: "429" in watch.failing)
        before = len(api.requests)
        began = trio.current_time()
        await until(lambda: len(api.requests) > before)
        assert trio.current_time() - began > 0.8, "Retry-After"
        await until(lambda: watch.complete and not watch.failing)
        created = api.create(pod("after"))
        await until(lambda: created["metadata"]["uid"] in watch.pods)
        assert len(api.requests) < 15

    follower.follow(check)


def test_a_rotated_token_is_read_again(api: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    follower = Follower(api, tmp_path, token_file=token)

    async def check(watch, until) -> None:
        await until(lambda: watch.complete)
        api.token = "second"
        token.write_text("second")
        api.end_watches()
        created = api.create(pod("after"))
        await until(lambda: created["metadata"]["uid"] in watch.pods)

    follower.follow(check)


def test_a_change_takes_less_than_a_millisecond_of_requests_and_none_is_made_while_nothing_changes(
    api: FakeApiServer, follower: Follower
) -> None:
    async def check(watch, until) -> None:
        await until(lambda: api.watchers == 1)
        before = len(api.requests)
        for number in range(200):
            api.create(pod(f"p{number}"))
        await until(lambda: len(watch.pods) == 200)
        assert len(api.requests) == before

    follower.follow(check)


@pytest.mark.slow
def test_an_outage_changes_nothing_for_pods_that_run(make_node) -> None:
    node: KubeNode = make_node().start()
    document, _ = node.run(pod("running", **GOOD))
    gone, _ = node.run(pod("gone", **GOOD))
    kept, ended = document["metadata"]["uid"], gone["metadata"]["uid"]
    before = node.wait_allocation(kept)
    node.wait_allocation(ended)
    (node.logs / f"default_running_{kept}").mkdir()
    node.api.stop()
    wait_until(lambda: "ApiServerUnreachable" in node.conditions(), "the condition")
    # The daemon restarts during the outage, and one Pod ends.
    node.daemon.kill()
    node.daemon.start().wait_ready()
    node.kubelet.forget(ended)
    wait_until(lambda: ended not in node.allocations(), "the end that kubelet's records tell")
    assert settled(node.wait_allocation(kept)) == settled(before)
    node.api.pods.pop(ended)
    node.api.start()
    wait_until(lambda: "ApiServerUnreachable" not in node.conditions(), "the API server again", 60)
    assert settled(node.wait_allocation(kept)) == settled(before)
