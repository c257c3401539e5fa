"""Pods from their creation to enforced limits, on the real daemon."""

from __future__ import annotations

import json

from tests.kube_fakes.node import KubeNode, host_path, pod, run_container
from tests.simulated_load import LOAD

GIB = 2**30


def test_three_replicas_without_scheduler_and_webhook_are_limited(node: KubeNode) -> None:
    replicas = [pod(f"app-{number}", compute_percent_limit="30", vram_limit="2Gi") for number in range(3)]
    running = [node.run(each) for each in replicas]
    for document, given in running:
        uid = document["metadata"]["uid"]
        allocation = node.wait_allocation(uid)
        assert allocation["spec"]["owner"]["pod"]["name"] == document["metadata"]["name"]
        assert str(host_path(given, "/run/tensor-fusion/shm/shm").parent) == allocation["directory"]
        link = node.daemon.base_directory / "default" / document["metadata"]["name"]
        assert str(link.resolve()) == allocation["directory"]
        group = document["metadata"]["name"]
        done = run_container(given, [str(LOAD), "--idle", "--grow=134217728", "--seconds=0"], group)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert told[0]["total_bytes"] == 2 * GIB
        assert next(line for line in told if "refused" in line)["refused"] is True
        node.wait_event(uid, "GPUDeviceAllocated")
