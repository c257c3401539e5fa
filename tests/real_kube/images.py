"""Images for a real container runtime, made from programs of this machine: nothing is fetched and nothing committed."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDERS = ("/etc", "/tmp", "/run", "/proc", "/sys", "/dev")
PAUSE = "localhost/pause:1"
_PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


def write_pause_image(directory: Path) -> Path:
    """An archive of the image that holds a Pod's namespaces, named PAUSE."""
    source, program = directory / "pause.c", directory / "pause"
    source.write_text(_PAUSE)
    subprocess.run(["gcc", "-O2", "-static", "-o", program, source], check=True, capture_output=True)
    return write_image(directory / "pause.tar", PAUSE, {"/pause": program}, command=["/pause"])


def write_image(path: Path, name: str, files: Mapping[str, Path], *, command: Iterable[str] = ()) -> Path:
    """An archive of one image whose only layer has these files; the path. Folders that mounts want are there."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        folders = set(FOLDERS)
        for each in files:
            folders |= {str(parent) for parent in Path(each).parents if str(parent) != "/"}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for inside, outside in sorted(files.items()):
            entry = tarfile.TarInfo(inside.lstrip("/"))
            content = outside.read_bytes()
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    blob = layer.getvalue()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(blob).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for member, content in (("config.json", config), ("layer.tar", blob), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def with_libraries(*programs: Path) -> dict[str, Path]:
    """What a root directory needs in order to run these programs, by path in it: programs in /bin, and the shared
    libraries that they name."""
    found = {f"/bin/{each.name}": each for each in programs}
    for each in programs:
        listed = subprocess.run(["ldd", each], capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"(/\S+) \(0x", listed):
            found[path] = Path(path).resolve()
    return found


def lay_out(root: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """The same as a directory, for a runtime without images."""
    for folder in FOLDERS:
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for inside, outside in files.items():
        place = root / inside.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(outside, place)
        place.chmod(0o755)
    for inside, text in texts.items():
        (root / inside.lstrip("/")).write_text(text)
