"""Compiled C files, kept by what went into them, so that libraries and tests share what they have in common.

An object's name is the digest of the compiler, the flags, the source and every header that it could include. What
was not asked for in a while is removed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEADERS = ("*.h", "*.def", "*.csv", "*.inc")
KEPT_SECONDS = 14 * 24 * 3600


class CompileError(RuntimeError):
    """The compiler refused a source; the message is the compiler's own."""


def _digest_of_headers(folders: Iterable[Path]) -> bytes:
    digest = hashlib.sha256()
    for folder in dict.fromkeys(folders):
        for pattern in HEADERS:
            for header in sorted(folder.glob(pattern)):
                digest.update(str(header).encode() + b"\0" + header.read_bytes())
    return digest.digest()


def _compile(command: Sequence[str], source: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = Path(folder) / "object.o"
        done = subprocess.run(
            [*command, "-c", str(source), "-o", str(unfinished)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(done.stderr)
        unfinished.replace(target)


def objects(
    compiler: Sequence[str], flags: Sequence[str], include: Sequence[Path], sources: Sequence[Path], cache: Path
) -> list[Path]:
    """The object files of `sources`, compiled where the cache does not have them.

    Raises:
        CompileError: with what the compiler said.
    """
    cache.mkdir(parents=True, exist_ok=True)
    command = [*compiler, *flags, *(f"-I{folder}" for folder in include)]
    common = "\0".join(command).encode() + _digest_of_headers([*include, *(source.parent for source in sources)])
    wanted: list[Path] = []
    missing: list[tuple[Path, Path]] = []
    for source in sources:
        digest = hashlib.sha256(common + str(source).encode() + source.read_bytes()).hexdigest()[:40]
        target = cache / f"{source.stem}-{digest}.o"
        wanted.append(target)
        if target.exists():
            os.utime(target)
        else:
            missing.append((source, target))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for outcome in [pool.submit(_compile, command, source, target) for source, target in missing]:
            outcome.result()
    if missing:
        _remove_old(cache)
    return wanted


def _remove_old(cache: Path) -> None:
    oldest = time.time() - KEPT_SECONDS
    for path in cache.glob("*.o"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            continue  # another build removed it first
