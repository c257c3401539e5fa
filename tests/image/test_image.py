"""The image: its instructions run, and its programs work in what comes out."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import wait_until
from tests.image import context, dockerfile, roots
from tests.image.buildah import Buildah
from tests.image.container import Container

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
    assert all(image.labels[f"org.opencontainers.image.{name}"] for name in ("title", "description", "licenses"))
    own = run(image, "version", user="0:0")
    assert (own.returncode, own.stdout) == (0, done.stdout)


def test_no_compiler_and_no_simulated_driver_are_in_it(image: dockerfile.Stage) -> None:
    tools = re.compile(r"(.*-)?(gcc|cc|g\+\+|c\+\+|clang|cpp|ld|as|make|pip3?)(-[\d.]+)?")
    assert not [path for path in image.root.glob("usr/**/bin/*") if tools.fullmatch(path.name)]
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


@pytest.mark.parametrize(
    ("words", "user"),
    [
        pytest.param((), None, id="its own command"),
        pytest.param(("run",), "0:0", id="node"),
        pytest.param(("aggregator", "--store", "/var/lib/hypervisor/aggregator.db"), None, id="aggregator"),
    ],
)
def test_node_and_aggregator_run_and_the_health_check_knows(
    image: dockerfile.Stage, words: tuple[str, ...], user: str | None
) -> None:
    container = Container(image, *words, user=user)
    try:
        wait_until(container.healthy, "a healthy container", 60)
        if "aggregator" in words:
            asked = container.run(*image.entrypoint, "get", "gpus", "--server", "unix:/run/hypervisor/aggregator.sock")
            assert "no node has reported yet" in asked.stderr
        else:
            asked = container.run(*image.entrypoint, "get", "nodes", "-o", "name")
            assert asked.stdout.strip()
        assert asked.returncode == 0
    finally:
        status = container.close()
    assert status == 0


def test_the_health_check_fails_where_nothing_serves(image: dockerfile.Stage) -> None:
    container = Container(dataclasses.replace(image, entrypoint=("/usr/bin/sleep",)), "60")
    try:
        assert not container.healthy()
    finally:
        container.close(seconds=0)


def test_each_instruction_was_run_as_it_is_written(stages: list[dockerfile.Stage]) -> None:
    written = DOCKERFILE.read_text()
    told = [f"{word} {rest}" for stage in stages for word, rest in stage.history]
    # Word by word, so that no way of splitting the file is taken twice.
    words = re.sub(r"(?m)^#.*$", "", written.partition("\nFROM ")[2].replace("\\\n", " ")).split()
    assert " ".join(told).split() == ["FROM", *words]


def test_an_independent_builder_makes_the_same_image(image: dockerfile.Stage, tmp_path: Path) -> None:
    builder = Buildah(tmp_path)
    digest = builder.base(roots.base("minimal"))
    with builder.build(digest, REVISION="abc") as built:
        config = built.config
        assert config["User"] == image.user
        assert config["Entrypoint"] == list(image.entrypoint)
        assert config["Cmd"] == list(image.command)
        assert config["Healthcheck"]["Test"] == ["CMD", *image.healthcheck]
        assert set(config["ExposedPorts"]) == {f"{port}/tcp" for port in image.ports}
        assert image.labels.items() <= config["Labels"].items()
        environment = dict(line.split("=", 1) for line in config["Env"])
        assert image.environment.items() <= environment.items()
        files = _owned_files(image.root)
        assert len(files) > 1000
        assert _owned_files(built.root) == files


def _owned_files(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, user and group of all that is not the base's own and does not come by running."""
    places = ("usr/lib/gpu-hypervisor", "usr/bin/hypervisor", "usr/share/doc/gpu-hypervisor")
    paths = [path for place in places for path in (root / place, *(root / place).rglob("*"))]
    return {str(path.relative_to(root)): _ownership(path) for path in paths if "__pycache__" not in path.parts}


def _ownership(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_mode, status.st_uid, status.st_gid


def test_the_build_sees_what_is_in_the_repository_and_no_product_of_a_build() -> None:
    seen = set(context.files(roots.SOURCE))
    listed = subprocess.run(
        ["git", "-C", str(roots.SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    assert seen <= set(listed)
    assert {
        "pyproject.toml",
        "constraints.txt",
        "packaging/install-tree",
        "limiter/include/hypervisor_limits.h",
    } <= seen
    assert not any(name.startswith(("tests/", "docs/", ".git/")) for name in seen)


@pytest.mark.parametrize(
    ("rule", "out", "left_in"),
    [
        ("build", ["build", "build/x"], ["tests/build", "builder", "a/build/x"]),
        ("**/*.so", ["a.so", "x/y/a.so"], ["a.so.1", "so"]),
        (".*", [".git/config", ".venv"], ["a/.hidden", "a.b"]),
        ("a/*_pb2*.py*", ["a/x_pb2.py", "a/x_pb2_grpc.pyi"], ["a/b/x_pb2.py", "a/x.py"]),
        ("/a/b/", ["a/b", "a/b/c"], ["b", "x/a/b"]),
        ("?.[ch]", ["a.c", "b.h"], ["ab.c", "a.o"]),
    ],
)
def test_rules_of_what_a_build_does_not_see(rule: str, out: list[str], left_in: list[str]) -> None:
    assert [name for name in [*out, *left_in] if context.ignored(name, [rule])] == out
    assert not any(context.ignored(name, [rule, f"!{name}"]) for name in out)


def test_without_a_digest_there_is_no_build() -> None:
    text = DOCKERFILE.read_text()
    froms = [rest for word, rest in dockerfile.instructions(text) if word == "FROM"]
    assert froms
    assert all("@${BASE_DIGEST}" in rest for rest in froms)
    assert ("ARG", "BASE_DIGEST") in dockerfile.instructions(text)
