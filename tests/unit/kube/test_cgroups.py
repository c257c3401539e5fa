"""Which Pod and container a process is of, from the text of /proc/PID/cgroup."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.kube.cgroups import Residence, residence

UID = "6f0c2a2e-1b1f-4d6c-9a55-3d1d6a3a2f10"
SYSTEMD_UID = UID.replace("-", "_")
ID = "3f0e" * 16
OTHER = "ab12" * 16
STATIC = "5e0c8c0f0c6f4c3d9d1f6f5e4a3b2c1d"


@pytest.mark.parametrize(
    ("path", "pod", "container"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/{ID}", UID, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_UID}.slice/crio-{ID}.scope",
            UID,
            ID,
        ),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{ID}.scope/container", UID, ID),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-conmon-{ID}.scope", UID, ID),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/docker-{ID}.scope", UID, ID),
        (
            f"/system.slice/containerd.service/kubepods-besteffort-pod{SYSTEMD_UID}.slice:cri-containerd:{ID}",
            UID,
            ID,
        ),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (f"/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC, ID),
        (f"/kubepods/burstable/pod{UID}", UID, ""),
        (f"/docker/{ID}", "", ID),
        (f"/system.slice/docker-{ID}.scope", "", ID),
        (f"/machine.slice/libpod-{ID}.scope", "", ID),
        ("/user.slice/user-1000.slice/session-1.scope", "", ""),
        (f"/kubepods/podium-{UID}/x", "", ""),
        (f"/kubepods/pod{UID}0/{ID}", "", ID),
    ],
)
def test_paths_of_runtimes(path: str, pod: str, container: str) -> None:
    assert residence(f"0::{path}\n") == Residence(pod_uid=pod, container_id=container)


def test_v1_takes_the_line_that_tells_and_hybrid_the_one_that_is_not_cut_off() -> None:
    v1 = f"12:freezer:/\n4:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/system.slice\n"
    assert residence(v1).pod_uid == UID
    assert residence(f"0::/\n3:devices:/kubepods/pod{UID}/{ID}\n").container_id == ID


def test_a_private_namespace_is_hidden_and_not_nobodys() -> None:
    assert residence("0::/\n").hidden
    assert residence("0::/../../kubelet\n").hidden
    assert not residence("0::/user.slice\n").hidden


@pytest.mark.parametrize("text", ["", "\n", "garbage", "0:", "x::/kubepods", "0::relative", ":::"])
def test_a_line_that_matches_nothing_says_nothing(text: str) -> None:
    assert residence(text) == Residence()


@given(st.text(max_size=400))
def test_any_text_has_an_answer(text: str) -> None:
    found = residence(text)
    assert found.pod_uid == found.pod_uid.lower()


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_cgroup_that_is_named_by_an_end_of_a_line_tells_no_other_pod(end: str) -> None:
    own, other = "0f0f0f0f-0000-4000-8000-000000000001", "0f0f0f0f-0000-4000-8000-000000000002"
    text = f"5:pids:/kubepods/pod{own}/x{end}4:memory:\n6:cpu:/kubepods/pod{own}\n9:memory:/kubepods/pod{own}\n"
    assert residence(text.replace("4:memory:\n", f"4:memory:/kubepods/pod{other}\n")).pod_uid == own
