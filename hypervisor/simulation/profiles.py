"""Finding the description of a machine: one of the profiles that come with the product, or a file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hypervisor.simulation.description import parse_machine
from hypervisor.simulation.document import DocumentError
from hypervisor.simulation.spec import MachineSpec

_MOST_BYTES = 1 << 20


def profile_names() -> list[str]:
    """The names of the machine profiles that come with the product."""
    folder = resources.files("hypervisor.simulation") / "profiles"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name: str, *, seed: str | None = None) -> MachineSpec:
    """Read a profile by its name.

    Args:
        name: one of profile_names().
        seed: what UUIDs are made from; the name unless given.

    Raises:
        DocumentError: there is no such profile.
    """
    if name not in profile_names():
        raise DocumentError(
            name, None, "", f"is no profile; there are {', '.join(profile_names())}, or name a YAML file"
        )
    text = (resources.files("hypervisor.simulation") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_machine(text, f"profiles/{name}.yaml", profile=name, seed=seed)


def load_description(profile_or_file: str, *, seed: str | None = None) -> MachineSpec:
    """Read a profile by its name, or the YAML file of that path.

    Raises:
        DocumentError: there is neither, or the file is no description of a machine.
    """
    if profile_or_file in profile_names():
        return load_profile(profile_or_file, seed=seed)
    path = Path(profile_or_file)
    if path.suffix not in {".yaml", ".yml"} and not path.exists():
        return load_profile(profile_or_file)  # explains which there are
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DocumentError(str(path), None, "", f"has more than {_MOST_BYTES} bytes; that is no machine's YAML")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(str(path), None, "", f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DocumentError(str(path), None, "", "is not UTF-8 text; a machine is described in YAML") from None
    return parse_machine(text, str(path), profile=path.stem, seed=seed)
