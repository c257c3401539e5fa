"""The image: its instructions run, and its programs work in what comes out."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image import dockerfile, roots

pytestmark = pytest.mark.image
DOCKERFILE = roots.SOURCE / "Dockerfile"
HOME = "usr/lib/gpu-hypervisor"


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dockerfile.Stage]]:
    roots.needs_root()
    work = tmp_path_factory.mktemp("image")
    yield dockerfile.build(DOCKERFILE, roots.base("minimal"), work, arguments={"REVISION": "abc"})
    dockerfile.remove(work)


@pytest.fixture(scope="module")
def image(stages: list[dockerfile.Stage]) -> dockerfile.Stage:
    return stages[-1]


def run(image: dockerfile.Stage, *words: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    return roots.inside(
        image.root,
        [*image.entrypoint, *words],
        environment=image.environment,
        user=image.user if user is None else user,
    )


def test_the_program_runs_as_an_ordinary_user(image: dockerfile.Stage) -> None:
    assert image.user.split(":")[0] not in ("", "0", "root")
    done = run(image, "version")
    assert done.returncode == 0, done.stderr
    assert image.labels["org.opencontainers.image.version"] in done.stdout
    assert image.labels["org.opencontainers.image.revision"] == "abc"


def test_no_compiler_and_no_simulated_driver_are_in_it(image: dockerfile.Stage) -> None:
    for program in ("gcc", "cc", "ld", "make"):
        assert not list(image.root.glob(f"usr/bin/{program}*")), program
    natives = {
        path.name
        for path in image.root.glob(f"{HOME}/lib/python3*/site-packages/hypervisor/native/**/*")
        if path.is_file()
    }
    assert "libcuda_limiter.so" in natives
    assert not {"libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.13"} & natives
    refused = run(image, "run", "--simulate", "h100-sxm-80gb", "--http-port", "0")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr


def test_the_limiter_loads_into_old_images(image: dockerfile.Stage) -> None:
    (library,) = image.root.glob(f"{HOME}/lib/python3*/site-packages/hypervisor/native/libcuda_limiter.so")
    symbols = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", symbols)}
    assert versions
    assert max(versions) <= (2, 17)


def test_init_copies_the_limiter_to_the_host(image: dockerfile.Stage) -> None:
    done = run(image, "preload", "install", "/run/tensor-fusion/lib")
    assert done.returncode == 0, done.stderr
    copied = image.root / "run/tensor-fusion/lib/libcuda_limiter.so"
    assert copied.stat().st_mode & 0o777 == 0o755
    refused = run(image, "preload", "install", "/proc/nowhere")
    assert refused.returncode == 1
    assert "can't put the limiter into /proc/nowhere" in refused.stderr


def test_every_part_of_it_is_in_the_bill_of_materials(image: dockerfile.Stage) -> None:
    bill = json.loads((image.root / "usr/share/doc/gpu-hypervisor/sbom.cdx.json").read_text())
    named = {component["name"].lower().replace("_", "-") for component in bill["components"]}
    installed = {
        path.name.partition("-")[0].lower().replace("_", "-")
        for path in image.root.glob(f"{HOME}/lib/python3*/site-packages/*.dist-info")
    }
    assert {"grpcio", "trio", "protobuf"} <= installed
    assert installed <= named | {"gpu-hypervisor"}


def test_the_health_check_passes_on_a_daemon_that_lives_and_fails_on_none(image: dockerfile.Stage) -> None:
    root = image.root
    failed = roots.inside(root, image.healthcheck, environment=image.environment, user=image.user)
    assert failed.returncode != 0
    daemon = subprocess.Popen(
        [
            "unshare",
            "--mount",
            "--fork",
            "--kill-child",
            "chroot",
            f"--userspec={image.user}",
            str(root),
            *image.entrypoint,
            *image.command,
        ],
        env={"PATH": "/usr/bin:/bin", **image.environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            done = roots.inside(root, image.healthcheck, environment=image.environment, user=image.user)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline, done.stderr
            assert daemon.poll() is None
    finally:
        daemon.terminate()
        daemon.wait(30)


def test_without_a_digest_there_is_no_build() -> None:
    text = (Path(roots.SOURCE) / "Dockerfile").read_text()
    froms = [rest for word, rest in dockerfile.instructions(text) if word == "FROM"]
    assert froms
    assert all("@${BASE_DIGEST}" in rest for rest in froms)
    assert ("ARG", "BASE_DIGEST") in dockerfile.instructions(text)
