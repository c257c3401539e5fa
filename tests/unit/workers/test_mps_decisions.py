"""Percentages, cuts and which cards can be cut; what a container of a hard Pod is given."""

from __future__ import annotations

import pytest

from hypervisor.kube.answers import HostFiles, MpsShare, answer
from hypervisor.model import IsolationMode
from hypervisor.workers.mps.shares import Cut, cut_of, effective_percent, effective_sms, is_cut, percent_of
from hypervisor.workers.mps.support import capability_of, most_clients
from tests import builders

GIB = 2**30


@pytest.mark.parametrize(
    ("percent", "sms", "effective"),
    [
        # Measured on cards; the sources stand beside SMS_APART.
        (25, 188, 46), (50, 188, 94), (75, 188, 140), (10, 40, 4),
        (25, 132, 32), (1, 132, 2), (100, 132, 132), (50, 108, 54), (10, 108, 10), (99, 132, 130), (1, 1, 1),
        (100, 7, 7),
    ],
)  # fmt: skip
def test_percentages_are_rounded_down_to_what_the_hardware_keeps_apart(percent: int, sms: int, effective: int) -> None:
    assert effective_sms(percent, sms) == effective
    assert effective_percent(percent, sms) == pytest.approx(effective * 100 / sms)


def test_rounding_never_gives_more_than_was_asked_for_but_the_smallest_group() -> None:
    for sms in (1, 2, 28, 56, 80, 108, 114, 132, 148, 188):
        for percent in range(1, 101):
            given = effective_sms(percent, sms)
            assert 0 < given <= max(sms * percent / 100, 2)
            assert sms * percent / 100 - given < 2
            assert effective_percent(percent, sms) == pytest.approx(given * 100 / sms)


def test_the_largest_share_is_the_cut_and_holds_for_its_equals() -> None:
    large = builders.make_grant(limit_share_ppm=250_000, limit_vram_bytes=4 * GIB)
    small = builders.make_grant(limit_share_ppm=100_001, limit_vram_bytes=2 * GIB)
    assert percent_of(small) == 11  # a part of a percent counts as a whole one
    cut = cut_of((small, large))
    assert cut == Cut(percent=25, memory_mebibytes=4096)
    assert cut_of(()) is None
    assert is_cut(large, cut)
    assert not is_cut(small, cut)
    whole = builders.make_grant(limit_share_ppm=250_000, limit_vram_bytes=None)
    assert cut_of((large, whole)) == Cut(
        percent=25, memory_mebibytes=None
    )  # one without a limit needs a server without


@pytest.mark.parametrize(
    ("capability", "cuda", "clients"),
    [
        ("6.1", "13.1", 16),
        ("7.0", "12.4", 48),
        ("7.5", "13.0", 48),
        ("9.0", "13.1", 60),
        ("9.0", "", 48),
        ("", "13.1", 16),
    ],
)
def test_clients_by_architecture(capability: str, cuda: str, clients: int) -> None:
    assert most_clients(capability, cuda) == clients


def test_what_is_no_version() -> None:
    assert capability_of("9.0") == (9, 0)
    assert capability_of("x") is None


def test_the_container_side_of_a_hard_pod() -> None:
    """Pipe directory at MPS's own default, shared memory, environment: a client that drops a variable gets no more."""
    share = MpsShare(
        environment=(
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
            ("CUDA_MPS_LOG_DIRECTORY", "/host/log"),
            ("CUDA_MPS_PIPE_DIRECTORY", "/host/pipe"),
            ("TF_CUDA_SM_PERCENT_LIMIT", "25"),
            ("TF_GPU_MEMORY_LIMIT", "4096"),
        ),
        pipe_directory="/host/pipe",
        shared_memory="/host/shm",
    )
    found = answer(
        "/base/uid",
        HostFiles(limiter="/lib.so", preload="/preload"),
        cards=[builders.make_identity()],
        isolation=IsolationMode.HARD,
        chosen=True,
        existing_nodes=(),
        mps=share,
    )
    variables = dict(found.environment)
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert variables["TF_CUDA_SM_PERCENT_LIMIT"] == "25"
    assert variables["TF_GPU_MEMORY_LIMIT"] == "4096"
    assert "CUDA_MPS_LOG_DIRECTORY" not in variables
    mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in found.mounts}
    assert mounts["/tmp/nvidia-mps"] == ("/host/pipe", False)
    assert mounts["/dev/shm"] == ("/host/shm", False)
