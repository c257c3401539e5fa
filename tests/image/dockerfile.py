"""Runs the instructions of our Dockerfile in root directories, as a builder would: the same result, the first layers
kept."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.image import context, roots


@dataclass(slots=True)
class Stage:
    """One stage: its root directory, what its image would say of itself, and the instructions that made it."""

    root: Path
    name: str = ""
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
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            name = rest.split()[2] if " AS " in rest else ""
            stages.append(Stage(roots.copied(base, _made(work / f"stage{len(stages)}")), name=name))
        elif not stages:
            assert word == "ARG", f"{word} before FROM"
            continue
        else:
            _run(stages, word, rest, dockerfile.parent, arguments)
        stages[-1].history.append((word, rest))
    return stages


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _run(stages: list[Stage], word: str, rest: str, folder: Path, given: Mapping[str, str]) -> None:
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
            _layer(stage, rest)
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


def _layer(stage: Stage, script: str) -> None:
    """Run a script. What comes before the first COPY depends on nothing but the instructions, and is kept."""
    depends = not any(word == "COPY" for word, _ in stage.history)
    words = [*stage.history, ("RUN", script), (stage.user, ""), *sorted(stage.arguments.items())]
    kept = roots.CACHE / "layers" / hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    if depends and kept.exists():
        shutil.rmtree(stage.root)
        roots.copied(kept, _made(stage.root))
        return
    done = roots.inside(
        stage.root, ["sh", "-ec", script], environment={**stage.environment, **stage.arguments}, user=stage.user
    )
    assert done.returncode == 0, f"RUN {script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if depends:
        unfinished = kept.with_name(f"{kept.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        roots.copied(stage.root, _made(unfinished)).rename(kept)


def _pairs(text: str, stage: Stage) -> dict[str, str]:
    known = {**stage.arguments, **stage.environment}
    found = dict(part.split("=", 1) for part in shlex.split(text))
    return {name: re.sub(r"\$\{(\w+)\}", lambda each: known[each.group(1)], value) for name, value in found.items()}


def _copy(stages: list[Stage], words: Sequence[str], folder: Path) -> None:
    root = stages[-1].root
    if words[0].startswith("--from="):
        (source,) = (each.root for each in stages if each.name == words[0].removeprefix("--from="))
        _packed(source / words[1].lstrip("/"), root / words[2].lstrip("/"), ["."])
    else:
        assert words[0] == ".", "only the whole context is copied"
        _packed(folder, root / words[1].lstrip("/"), list(context.files(folder)))


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
