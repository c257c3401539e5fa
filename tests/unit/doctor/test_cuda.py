"""Driver against CUDA: the article's 4.3, by NVIDIA's table of minimum drivers; and images as files."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from hypervisor.doctor.checks.cuda_version import judge
from hypervisor.doctor.cuda import CudaRequirement, needed_driver, unmet, version
from hypervisor.doctor.image import ImageError, environment_of
from hypervisor.model import Verdict

CONFIG = {"config": {"Env": ["PATH=/bin", "CUDA_VERSION=12.1.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.1"]}}


@pytest.mark.parametrize(
    ("driver", "cuda", "verdict"),
    [
        # The article has 535.54.03 (CUDA 12.2) fail with an image of 12.1: a newer driver runs an older CUDA.
        ("535.54.03", "12.1", Verdict.PASS),
        ("535.54.03", "12.2", Verdict.PASS),
        ("535.54.03", "12.4", Verdict.WARN),
        ("535.54.03", "13.0", Verdict.FAIL),
        ("470.57.02", "12.1", Verdict.FAIL),
        ("470.57.02", "11.8", Verdict.WARN),
        ("470.57.02", "11.4", Verdict.PASS),
        ("440.33.01", "10.2", Verdict.PASS),
        ("418.39", "10.2", Verdict.FAIL),
        ("580.65.06", "13.0", Verdict.PASS),
        ("580.65.06", "19.7", Verdict.SKIP),  # not in the table: nothing can be said
    ],
)
def test_minimum_drivers(driver: str, cuda: str, verdict: Verdict) -> None:
    assert judge(CudaRequirement("image", cuda), driver=driver, cuda="").verdict is verdict


# The table of NVIDIA's CUDA release notes (those of 13.2), Linux x86-64, the first release of each version; 13.2 by the
# name of its installer.
RELEASE_NOTES = """
10.0 410.48
10.1 418.39
10.2 440.33
11.0 450.36.06
11.1 455.23
11.2 460.27.03
11.3 465.19.01
11.4 470.42.01
11.5 495.29.05
11.6 510.39.01
11.7 515.43.04
11.8 520.61.05
12.0 525.60.13
12.1 530.30.02
12.2 535.54.03
12.3 545.23.06
12.4 550.54.14
12.5 555.42.02
12.6 560.28.03
12.8 570.26
12.9 575.51.03
13.0 580.65.06
13.1 590.44.01
13.2 595.45.04
"""


@pytest.mark.parametrize(("cuda", "driver"), [line.split() for line in RELEASE_NOTES.split("\n") if line])
def test_the_driver_that_came_with_each_cuda(cuda: str, driver: str) -> None:
    told = needed_driver(cuda)
    assert told is not None
    assert told[1] == version(driver)
    assert told[0] <= told[1]
    assert judge(CudaRequirement("image", cuda), driver=driver, cuda="").verdict is Verdict.PASS


def test_forward_compatibility_libraries_make_up_for_an_old_driver() -> None:
    requirement = CudaRequirement("image", "12.4", compatibility_libraries=True)
    assert judge(requirement, driver="470.57.02", cuda="11.4").verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("constraint", "missing"),
    [
        ("cuda>=12.2", ""),
        ("cuda>=12.4", "cuda>=12.4 with cuda 12.2"),
        ("cuda>=12.4 brand=tesla,driver>=535,driver<536", ""),
        ("cuda>=12.4 brand=tesla,driver>=470,driver<471", "cuda>=12.4 with cuda 12.2"),
        ("driver>535", ""),
        ("cuda=12.2", ""),
        ("cuda<12", "cuda<12 with cuda 12.2"),
        ("", ""),
    ],
)
def test_constraints_of_images(constraint: str, missing: str) -> None:
    assert unmet(constraint, driver="535.54.03", cuda="12.2") == missing


def test_an_image_may_turn_its_constraint_off() -> None:
    variables = {"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": "true", "CUDA_VERSION": "12.1.0"}
    found = CudaRequirement.from_environment(variables, origin="x")
    assert found == CudaRequirement("x", "12.1")


def _blob(value: object) -> tuple[str, bytes]:
    import hashlib

    data = json.dumps(value).encode()
    return f"sha256:{hashlib.sha256(data).hexdigest()}", data


def _layout() -> dict[str, bytes]:
    """An OCI layout with an index of two platforms, as buildx writes it."""
    config, config_data = _blob(CONFIG)
    manifest, manifest_data = _blob({"config": {"digest": config}, "layers": []})
    other, other_data = _blob({"config": {"digest": "sha256:00"}, "layers": []})
    index, index_data = _blob(
        {
            "manifests": [
                {"digest": other, "platform": {"os": "linux", "architecture": "arm64"}},
                {"digest": manifest, "platform": {"os": "linux", "architecture": "amd64"}},
            ]
        }
    )
    files = {"index.json": json.dumps({"manifests": [{"digest": index}]}).encode()}
    for digest, data in ((config, config_data), (manifest, manifest_data), (other, other_data), (index, index_data)):
        files[f"blobs/{digest.replace(':', '/')}"] = data
    return files


def _archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_environment_of_images(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    for name, data in _layout().items():
        (layout / name).parent.mkdir(parents=True, exist_ok=True)
        (layout / name).write_bytes(data)
    saved = {"manifest.json": json.dumps([{"Config": "c.json"}]).encode(), "c.json": json.dumps(CONFIG).encode()}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (
        layout,
        _archive(tmp_path / "oci.tar", _layout()),
        _archive(tmp_path / "saved.tar", saved),
        tmp_path / "config.json",
    ):
        assert environment_of(path)["CUDA_VERSION"] == "12.1.1", path


@pytest.mark.parametrize("text", ["", "[]", "{", '{"config": 7}'])
def test_what_is_no_image_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(ImageError, match="is no image"):
        environment_of(path)


def test_a_layout_of_somebody_else_keeps_nobody_waiting(tmp_path: Path) -> None:
    endless = {"manifests": [{"digest": "sha256:a"}]}
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "blobs" / "sha256" / "a").write_text(json.dumps(endless))
    (tmp_path / "index.json").write_text(json.dumps(endless))
    with pytest.raises(ImageError):
        environment_of(tmp_path)
    for name in ("index.json", "blobs/sha256/a"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(ImageError, match="no file"):
            environment_of(tmp_path)
