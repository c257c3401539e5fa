"""Runs the instructions of our Dockerfile in root directories, as a builder does, and as it does keeps what a RUN has
made for as long as nothing changes that it depends on."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.image import context, roots


@dataclass(slots=True)
class Stage:
    """One stage: its root directory, what its image would say of itself, and the instructions that made it."""

    root: Path
    place: Path  # where the root directory is of the stage's own, and may be changed
    depends: str  # a digest of all that the root directory depends on
    name: str = ""
    copies: list[Callable[[], None]] = field(default_factory=list)  # made when something needs them
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    ports: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()
    history: list[tuple[str, str]] = field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, continued lines joined."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(kept))
    return [
        (word.upper(), rest.strip())
        for line in joined.splitlines()
        if line.strip()
        for word, _, rest in [line.strip().partition(" ")]
    ]


def build(dockerfile: Path, base: Path, work: Path, *, arguments: Mapping[str, str]) -> list[Stage]:
    """All stages, the image's last. base stands for the image that every FROM names. Raises AssertionError with what a
    step said."""
    stages: list[Stage] = []
    layers = Layers(roots.CACHE / "layers")
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            name = rest.split()[2] if " AS " in rest else ""
            stages.append(Stage(base, work / f"stage{len(stages)}", str(base.stat().st_mtime_ns), name=name))
        elif not stages:
            assert word == "ARG", f"{word} before FROM"
            continue
        else:
            _run(stages, layers, word, rest, dockerfile.parent, arguments)
        stages[-1].history.append((word, rest))
    _make_copies(stages[-1])
    layers.forget_others()
    return stages


class Layers:
    """What each RUN has made, by a digest of what it depends on."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._used: set[str] = set()

    def find(self, stage: Stage) -> Path:
        """Where the layer lies or is to lie."""
        self._used.add(stage.depends)
        return self._place / stage.depends

    def forget_others(self) -> None:
        """Take away what no instruction of this build has made."""
        for path in self._place.iterdir():
            if path.name not in self._used:
                shutil.rmtree(path)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _own(stage: Stage) -> None:
    """Let the stage have a root directory that it may change."""
    if stage.root != stage.place:
        stage.place.mkdir(parents=True)
        stage.root = roots.copied(stage.root, stage.place)


def _make_copies(stage: Stage) -> None:
    if stage.copies:
        _own(stage)
    while stage.copies:
        stage.copies.pop(0)()


def _run(stages: list[Stage], layers: Layers, word: str, rest: str, folder: Path, given: Mapping[str, str]) -> None:
    stage = stages[-1]
    match word:
        case "ARG":
            name, _, default = rest.partition("=")
            stage.arguments[name] = given.get(name, default)
        case "ENV":
            stage.environment.update(_pairs(rest, stage))
        case "LABEL":
            stage.labels.update(_pairs(rest, stage))
        case "RUN":
            _run_script(stage, layers, rest)
        case "COPY":
            _copy(stages, shlex.split(rest), folder)
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = tuple(json.loads(rest))
        case "CMD":
            stage.command = tuple(json.loads(rest))
        case "HEALTHCHECK":
            stage.healthcheck = tuple(json.loads(rest[rest.index("CMD") + 3 :]))
        case "EXPOSE":
            stage.ports = tuple(rest.split())
        case _:
            raise AssertionError(f"this builder does not know {word}")


def _run_script(stage: Stage, layers: Layers, script: str) -> None:
    environment = {**stage.environment, **stage.arguments}
    stage.depends = _digest(stage.depends, script, sorted(environment.items()), stage.user)
    kept = layers.find(stage)
    if kept.exists():
        if stage.root == stage.place:
            shutil.rmtree(stage.place)
        stage.root = kept
        stage.copies.clear()
        return
    _make_copies(stage)
    _own(stage)
    done = roots.inside(stage.root, ["sh", "-ec", script], environment=environment, user=stage.user)
    assert done.returncode == 0, f"RUN {script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    unfinished = kept.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.move(stage.root, unfinished)
    unfinished.rename(kept)
    stage.root = kept


def _pairs(text: str, stage: Stage) -> dict[str, str]:
    known = {**stage.arguments, **stage.environment}
    found = dict(part.split("=", 1) for part in shlex.split(text))
    return {name: re.sub(r"\$\{(\w+)\}", lambda each: known[each.group(1)], value) for name, value in found.items()}


def _copy(stages: list[Stage], words: Sequence[str], folder: Path) -> None:
    stage = stages[-1]
    if words[0].startswith("--from="):
        (other,) = (each for each in stages if each.name == words[0].removeprefix("--from="))
        _make_copies(other)
        source, names, content = other.root / words[1].lstrip("/"), ["."], other.depends
    else:
        assert words[0] == ".", "only the whole context is copied"
        source, names = folder, sorted(context.files(folder))
        content = _digest([(name, _content(folder / name)) for name in names])
    stage.depends = _digest(stage.depends, "COPY", words, content)
    stage.copies.append(lambda: _packed(source, stage.root / words[-1].lstrip("/"), names))


def _content(path: Path) -> str:
    """A digest of a file with its mode, or where a link points to."""
    if path.is_symlink():
        return str(path.readlink())
    return f"{path.stat().st_mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _packed(source: Path, target: Path, names: Sequence[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    listed = "\0".join(names).encode()
    # As a builder does it: root owns what is copied, and what is there is written through.
    pack = ["tar", "-C", str(source), "--null", "--owner=0", "--group=0", "-T", "-", "-c"]
    with subprocess.Popen(pack, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as packed:
        assert packed.stdin is not None
        with subprocess.Popen(["tar", "-x", "-C", str(target)], stdin=packed.stdout) as unpacked:
            packed.stdin.write(listed)
            packed.stdin.close()
    assert (packed.returncode, unpacked.returncode) == (0, 0)


def remove(root: Path) -> None:
    """Take a root directory away."""
    shutil.rmtree(root, ignore_errors=True)
