"""The Kubernetes store on the fake API server, in this process: what it asks, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypervisor.aggregator import rows
from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.applying import Applier
from hypervisor.aggregator.kubernetes.client import ApiError, KubernetesClient, open_client
from hypervisor.aggregator.kubernetes.store import KubernetesStore
from hypervisor.aggregator.records import NodeRecord
from hypervisor.aggregator.settings import StoreLimits
from hypervisor.aggregator.store import Batch, EventQuery, StoreError
from tests.fleet import messages
from tests.kube_fakes.object_server import ObjectServer
from tests.unit.aggregator.test_kubernetes_objects import gpu_record, node_record

GPU = f"{names.GPUS}/gpu-n-0"


@pytest.fixture
def fake() -> Iterator[ObjectServer]:
    made = ObjectServer()
    yield made
    made.close()


def run(fake: ObjectServer, tmp_path: Path, body: Callable[[KubernetesClient], Awaitable[None]]) -> None:
    async def with_client() -> None:
        client = open_client(str(fake.kubeconfig(tmp_path / "kubeconfig")), namespace="default")
        try:
            await body(client)
        finally:
            await client.close()

    asyncio.run(with_client())


def applier(client: KubernetesClient) -> Applier:
    return Applier(client, writes_per_second=1_000.0, monotonic=time.monotonic)


def gpu_body(**status: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    labels = {names.MANAGED_BY: names.AGGREGATOR}
    metadata = {"apiVersion": names.API_VERSION, "kind": "GPU", "metadata": {"name": "gpu-n-0", "labels": labels}}
    return metadata, {"phase": "Running", "vendor": "NVIDIA", "isolationMode": "soft", **status}


def test_what_is_as_it_shall_be_is_not_written(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        writes = applier(client)
        metadata, status = gpu_body()
        assert await writes.put(names.GPUS, metadata, status)
        assert not await writes.put(names.GPUS, metadata, status)
        # Another life, which has learned it from a list.
        again = applier(client)
        live, _ = await client.list_all(names.GPUS)
        assert not again.learn(names.GPUS, live[0])
        assert not await again.put(names.GPUS, metadata, status)

    run(fake, tmp_path, body)
    assert fake.count("PATCH", GPU) == 2


def test_a_field_that_another_took_is_taken_back(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        writes = applier(client)
        metadata, status = gpu_body()
        await writes.put(names.GPUS, metadata, status)
        theirs = {**metadata, "status": {"phase": "Unknown"}}
        await client.apply(f"{GPU}/status", theirs, manager="someone", force=True)
        assert writes.learn(names.GPUS, await client.get(GPU))
        await writes.put(names.GPUS, metadata, status)
        assert (await client.get(GPU))["status"]["phase"] == "Running"
        assert writes.statistics().conflicts_total == 1

    run(fake, tmp_path, body)


def test_what_is_refused_is_tried_again_when_it_changes_only(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        writes = applier(client)
        metadata, status = gpu_body(phase="Broken")
        for _ in range(3):
            assert not await writes.put(names.GPUS, metadata, status)
        assert writes.statistics().refused == 1
        assert await writes.put(names.GPUS, metadata, gpu_body()[1])
        assert writes.statistics().refused == 0

    run(fake, tmp_path, body)
    assert fake.count("PATCH", f"{GPU}/status") == 2


def test_a_pause_that_the_server_asks_for_holds_for_all(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        fake.refuse = [(429, "1")]
        with pytest.raises(ApiError, match="429"):
            await client.list_all(names.GPUS)
        begun = time.monotonic()
        await client.list_all(names.GPUS)
        assert time.monotonic() - begun > 0.9

    run(fake, tmp_path, body)


def test_a_list_whose_pages_have_expired_begins_anew(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        for index in range(3):
            metadata, _ = gpu_body()
            metadata["metadata"]["name"] = f"gpu-{index}"
            await client.apply(f"{names.GPUS}/gpu-{index}", metadata, manager="m", force=False)
        fake.page = 2
        fake.expire_next_continue = True
        found, _ = await client.list_all(names.GPUS)
        assert [each["metadata"]["name"] for each in found] == ["gpu-0", "gpu-1", "gpu-2"]

    run(fake, tmp_path, body)
    assert fake.count("GET", "/gpus?") == 4


class Stores:
    """A store as the writer has it: its calls come from another thread."""

    def __init__(self, client: KubernetesClient) -> None:
        self.store = KubernetesStore(
            client,
            instance="i",
            limits=StoreLimits(),
            loop=asyncio.get_running_loop(),
            monotonic=time.monotonic,
            wall=time.time,
        )

    async def commit(self, node: NodeRecord, *events: int) -> list[int]:
        made = [rows.event_row(messages.event("n", 1, each), node_uid=node.uid, received_at=0.0) for each in events]
        batch = Batch(
            version=1,
            node_records=[node],
            gpu_objects=list(node.gpus.values()),
            events=[row for row in made if row is not None],
        )
        stored = await asyncio.to_thread(self.store.commit, batch)
        return [each.row.sequence for each in stored]


def test_events_are_told_once_whatever_fails(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        node = node_record()
        gpu_record(node, messages.gpu("n", 0))
        first = Stores(client)
        assert await first.commit(node, 1, 2) == [1, 2]
        # The third event is written, and what comes after it fails.
        fake.fail_after = ("POST", "/events", 503)
        with pytest.raises(StoreError, match="503"):
            await first.commit(node, 3)
        assert await first.commit(node, 3) == [3]
        second = Stores(client)
        stored = await asyncio.to_thread(second.store.load)
        assert stored.event_positions == {"uid-n": (1, 3)}
        assert [row.name for row in stored.nodes] == ["n"]
        assert await second.commit(node, 2, 3, 4) == [4]
        kept = second.store.read_events(EventQuery(name="gpu-n-0"))
        assert [each.row.sequence for each in kept] == [1, 2, 3, 4]

    run(fake, tmp_path, body)
    assert len(fake.ask("GET", "/apis/events.k8s.io/v1/events")["items"]) == 4


def test_missing_rights_and_kinds_are_told_with_the_remedy(fake: ObjectServer, tmp_path: Path) -> None:
    async def body(client: KubernetesClient) -> None:
        stores, node = Stores(client), node_record()
        for code, remedy in ((403, "deploy/aggregator.yaml"), (404, "deploy/crds"), (401, "token")):
            fake.refuse = [(code, "")] * 20
            with pytest.raises(StoreError, match=remedy):
                await stores.commit(node)
            fake.refuse = []

    run(fake, tmp_path, body)
