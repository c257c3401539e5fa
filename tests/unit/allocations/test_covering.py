"""An image's own /etc/ld.so.preload below ours: found in the layers of the container's root."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hypervisor.allocations.covering import covered_preload, tell_covered
from tests.unit.allocations.builders import named, pod

PID = 42
OVERLAY = "10 1 0:5 / / rw - overlay overlay rw,lowerdir=/l/a:/l/b,upperdir=/l/upper,workdir=/l/work"
OURS = "20 10 8:1 /lib/ld.so.preload /etc/ld.so.preload ro - ext4 /dev/sda1 ro"


def container(proc: Path, *mounts: str, **files: str | None) -> Path:
    """A host with one container; files: the content of the file by layer, None for a layer without it."""
    (proc / str(PID)).mkdir(parents=True)
    (proc / str(PID) / "mountinfo").write_text("\n".join(mounts) + "\n")
    for layer in ("upper", "a", "b"):
        (proc / "1/root/l" / layer / "etc").mkdir(parents=True)
        content = files.get(layer)
        if content is not None:
            (proc / "1/root/l" / layer / "etc/ld.so.preload").write_text(content)
    return proc


def test_what_an_image_preloads_is_found_below_the_mount(tmp_path: Path) -> None:
    proc = container(tmp_path, OVERLAY, OURS, b="/lib/jemalloc.so:/lib/other.so # for speed\n\n/lib/third.so\n")
    assert covered_preload(PID, proc) == ("/lib/jemalloc.so", "/lib/other.so", "/lib/third.so")


def test_the_uppermost_layer_counts(tmp_path: Path) -> None:
    proc = container(tmp_path, OVERLAY, OURS, a="/lib/new.so\n", b="/lib/old.so\n")
    assert covered_preload(PID, proc) == ("/lib/new.so",)


@pytest.mark.parametrize(
    ("mounts", "files"),
    [
        ((OVERLAY,), {"b": "/lib/own.so\n"}),  # a hook has merged it: nothing is mounted over it
        ((OVERLAY, OURS), {}),
        ((OVERLAY, OURS), {"upper": ""}),  # what a runtime makes to mount over
        ((OVERLAY, OURS), {"a": "# nothing\n", "b": "/lib/old.so\n"}),
    ],
    ids=["not mounted", "none", "empty", "comment"],
)
def test_nothing_is_covered(tmp_path: Path, mounts: tuple[str, ...], files: dict[str, str]) -> None:
    assert covered_preload(PID, container(tmp_path, *mounts, **files)) == ()


@pytest.mark.parametrize(
    "root",
    [
        "10 1 8:1 / / rw - ext4 /dev/sda1 rw",
        OVERLAY.replace("/l/a:/l/b", "l/A:l/B"),
        OVERLAY.replace("/l/b", "/elsewhere"),
        "nonsense",
    ],
    ids=["no layers", "relative", "out of reach", "nonsense"],
)
def test_what_can_not_be_looked_at_is_unknown(tmp_path: Path, root: str) -> None:
    assert covered_preload(PID, container(tmp_path, root, OURS)) is None
    assert covered_preload(PID + 1, tmp_path) is None


def test_no_link_leads_out_of_a_layer(tmp_path: Path) -> None:
    """The uppermost layer is the tenant's to write."""
    proc = container(tmp_path, OVERLAY, OURS, b="/lib/below.so\n")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "ld.so.preload").write_text("of-the-host")
    (proc / "1/root/l/upper/etc/ld.so.preload").symlink_to(secret / "ld.so.preload")
    assert covered_preload(PID, proc) == ()
    (proc / "1/root/l/upper/etc/ld.so.preload").unlink()
    (proc / "1/root/l/upper/etc").rmdir()
    (proc / "1/root/l/upper/etc").symlink_to(secret)
    assert covered_preload(PID, proc) == ("/lib/below.so",)


def test_each_container_is_told_of_once(tmp_path: Path) -> None:
    proc = container(tmp_path, OVERLAY, OURS, b=" ".join(f"/lib/{number}.so" for number in range(7)))
    process = SimpleNamespace(host_pid=PID, pid_namespace=7)
    events: list[tuple[object, ...]] = []
    tell = SimpleNamespace(event=lambda *arguments, **_: events.append(arguments))

    def held(spec: object) -> SimpleNamespace:
        allocation = SimpleNamespace(spec=spec)
        return SimpleNamespace(processes=(process,), reported=set(), reference="here", allocation=allocation)

    all_held = [held(pod()), held(named())]
    for _ in range(3):
        tell_covered(all_held, SimpleNamespace(proc=proc), tell)  # type: ignore[arg-type]
    (event,) = events
    assert event[0] == "here"
    assert event[2] == "PreloadCovered"
    assert "/lib/0.so, /lib/1.so, /lib/2.so, /lib/3.so, /lib/4.so and 2 more" in str(event[3])


def test_layers_are_found_where_the_first_process_may_not_be_looked_at(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/ld.so.preload").write_text("/lib/own.so\n")
    overlay = f"10 1 0:5 / / rw - overlay overlay rw,lowerdir={layer},upperdir={layer},workdir=/l/work"
    assert covered_preload(PID, container(tmp_path / "proc", overlay, OURS)) == ("/lib/own.so",)
