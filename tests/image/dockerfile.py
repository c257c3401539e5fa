"""Runs the instructions of our Dockerfile in root directories, as a builder would; the same result, but no layers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.image import roots


@dataclass(slots=True)
class Stage:
    """One stage: its root directory, and what its image would say of itself."""

    root: Path
    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()


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


def build(dockerfile: Path, base: Path, work: Path, *, arguments: dict[str, str]) -> Stage:
    """The last stage. base stands for the image that every FROM names. Raises AssertionError with what a step said."""
    stages: list[Stage] = []
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            name = rest.split()[2] if " AS " in rest else ""
            root = work / f"stage{len(stages)}"
            root.mkdir(parents=True)
            stages.append(Stage(roots.copied(base, root), name=name))
        elif not stages:
            assert word == "ARG", f"{word} before FROM"
        else:
            _run(stages, word, rest, dockerfile.parent, arguments)
    return stages[-1]


def _run(stages: list[Stage], word: str, rest: str, context: Path, given: dict[str, str]) -> None:
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
            done = roots.inside(
                stage.root, ["sh", "-ec", rest], environment={**stage.environment, **stage.arguments}, user=stage.user
            )
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        case "COPY":
            _copy(stages, shlex.split(rest), context)
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = tuple(json.loads(rest))
        case "CMD":
            stage.command = tuple(json.loads(rest))
        case "HEALTHCHECK":
            stage.healthcheck = tuple(json.loads(rest[rest.index("CMD") + 3 :]))
        case "EXPOSE":
            assert all(part.isdecimal() for part in rest.split())
        case _:
            raise AssertionError(f"this builder does not know {word}")


def _pairs(text: str, stage: Stage) -> dict[str, str]:
    known = {**stage.arguments, **stage.environment}
    found = dict(part.split("=", 1) for part in shlex.split(text))
    return {name: re.sub(r"\$\{(\w+)\}", lambda each: known[each.group(1)], value) for name, value in found.items()}


def _copy(stages: list[Stage], words: list[str], context: Path) -> None:
    stage = stages[-1]
    if words[0].startswith("--from="):
        source_stage = next(each for each in stages if each.name == words[0].removeprefix("--from="))
        source, target = source_stage.root / words[1].lstrip("/"), words[2]
        excluded: list[str] = []
    else:
        source, target = context / words[0], words[1]
        excluded = [line for line in (context / ".dockerignore").read_text().split() if line]
    place = stage.root / target.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    flags = [f"--exclude={pattern.removeprefix('**/')}" for pattern in excluded]
    with subprocess.Popen(["tar", "-C", str(source), "-c", *flags, "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", str(place)], stdin=packed.stdout, check=True)
    assert packed.returncode == 0


def remove(root: Path) -> None:
    """Take a root directory away."""
    shutil.rmtree(root, ignore_errors=True)
