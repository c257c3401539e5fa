"""Kubelet's checkpoint: files that real kubelets have written, and damaged ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from hypervisor.config import Settings
from hypervisor.kube.checkpoint import Assignment, CheckpointError, checksum, read_checkpoint
from hypervisor.node.kubernetes_host import Host

# As published by people who asked for help: three kubelets, with and without Pods, with and without NUMA nodes.
NO_PODS = (
    '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":'
    '["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}'
)
ONE_POD = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",'
    '"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    '"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},'
    '"Checksum":3660592824}'
)
TWO_GPUS = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"9a15d2b5-c152-46b9-96e0-d57032629e1f","ContainerName":"app",'
    '"ResourceName":"nvidia.com/gpu","DeviceIDs":{"1":["GPU-9b341c59-f96b-ba85-c137-78c3652fea65",'
    '"GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"]},"AllocResp":"CmsKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSUUdQVS1jMWU5ZjI0'
    "OS1iMzdiLTgxYzItYThkOS1iYTVjYTAyOTQ4NDEsR1BVLTliMzQxYzU5LWY5NmItYmE4NS1jMTM3LTc4YzM2NTJmZWE2NRokCg4vZGV2L252a"
    "WRpYWN0bBIOL2Rldi9udmlkaWFjdGwaAnJ3GiYKDy9kZXYvbnZpZGlhLXV2bRIPL2Rldi9udmlkaWEtdXZtGgJydxoyChUvZGV2L252aWRpYS"
    "11dm0tdG9vbHMSFS9kZXYvbnZpZGlhLXV2bS10b29scxoCcncaLgoTL2Rldi9udmlkaWEtbW9kZXNldBITL2Rldi9udmlkaWEtbW9kZXNldBo"
    'CcncaIAoML2Rldi9udmlkaWExEgwvZGV2L252aWRpYTEaAnJ3GiAKDC9kZXYvbnZpZGlhMhIML2Rldi9udmlkaWEyGgJydw=="}],'
    '"RegisteredDevices":{"nvidia.com/gpu":["GPU-77a702db-e37f-3a74-d46d-c5713f66058c",'
    '"GPU-9b341c59-f96b-ba85-c137-78c3652fea65","GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"]}},"Checksum":2530956716}'
)


def test_checkpoints_of_real_kubelets_are_believed() -> None:
    assert read_checkpoint(NO_PODS.encode()) == ()
    assert read_checkpoint(ONE_POD.encode()) == (
        Assignment(
            resource="nvidia.com/gpu",
            device_ids=("tegra",),
            container="check",
            pod_uid="bf52b2cd-b611-4e79-86b1-280b283185c3",
        ),
    )
    (found,) = read_checkpoint(TWO_GPUS.encode())
    assert found.device_ids == ("GPU-9b341c59-f96b-ba85-c137-78c3652fea65", "GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841")


def test_the_checksum_that_a_real_kubelet_wrote_is_the_one_we_compute() -> None:
    for text in (NO_PODS, ONE_POD, TWO_GPUS):
        document = json.loads(text)
        assert checksum(document["Data"]) == document["Checksum"]


@pytest.mark.parametrize(
    "content",
    [
        ONE_POD.replace("3660592824", "3660592825"),
        ONE_POD.replace('"tegra"]}', '"tegrb"]}', 1),
        ONE_POD.replace("bf52b2cd", "bf52b2ce"),
    ],
)
def test_a_wrong_checksum_is_refused_with_both_figures(content: str) -> None:
    with pytest.raises(CheckpointError, match=r"its checksum is \d+, and its content has \d+"):
        read_checkpoint(content.encode())


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"null", ONE_POD.encode()[:200], b"\xff\xfe", b'{"Data":3,"Checksum":1}']
)
def test_what_is_no_checkpoint_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="it is no checkpoint"):
        read_checkpoint(content)


def test_the_form_before_1_20_is_read() -> None:
    data = {
        "PodDeviceEntries": [
            {"PodUID": "u", "ContainerName": "c", "ResourceName": "r/x", "DeviceIDs": ["b", "a"], "AllocResp": ""}
        ],
        "RegisteredDevices": {},
    }
    content = json.dumps({"Data": data, "Checksum": checksum(data)}).encode()
    assert read_checkpoint(content) == (Assignment(resource="r/x", device_ids=("a", "b"), container="c", pod_uid="u"),)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_a_reason_and_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    plugins = tmp_path / "device-plugins"
    plugins.mkdir()
    make(plugins / "kubelet_internal_checkpoint")
    host = Host(Settings(kubelet_dir=str(tmp_path)))

    async def look() -> object:
        with trio.fail_after(10):
            return await host.checkpoint()

    assert trio.run(look) is None
    assert "no regular file" in host.checkpoint_failing
