"""What an Xid means for the card that reports it: NVIDIA's catalogue as a table, and the site's own table over it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

from hypervisor.config import SettingsError

MOST_XID = 1000
_KEYS = frozenset({"version", "unlisted", "classes", "meanings"})


class PolicyError(SettingsError):
    """The site's policy can't be used; the text names the file and what is wrong with it."""


class XidClass(Enum):
    """How an Xid is treated; the words are those of xids.toml, which explains them."""

    IGNORE = "ignore"
    APPLICATION = "application"
    LINK = "link"
    DEGRADED = "degraded"
    RESET = "reset"
    REBOOT = "reboot"
    HARDWARE = "hardware"
    REEVALUATE = "reevaluate"


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """The table in force."""

    classes: Mapping[int, XidClass]
    meanings: Mapping[int, str]
    unlisted: XidClass

    def class_of(self, number: int) -> XidClass:
        """The class of an Xid."""
        return self.classes.get(number, self.unlisted)

    def meaning(self, number: int) -> str:
        """The Xid in words for people: "Xid 79 (GPU has fallen off the bus)"."""
        told = self.meanings.get(number)
        return f"Xid {number} ({told})" if told else f"Xid {number}"


def tells_fatal(text: str) -> bool:
    """Whether the log calls an error of a link fatal: "Fatal", and not "Non-fatal"."""
    lowered = text.lower().replace("-", "").replace("non fatal", "nonfatal")
    return "fatal" in lowered.replace("nonfatal", "")


def load(site: Path | None = None) -> XidPolicy:
    """The built-in policy, with the numbers that the site's file treats otherwise. Raises PolicyError."""
    built_in = _parse(resources.files(__package__).joinpath("xids.toml").read_text(encoding="utf-8"), "xids.toml")
    if site is None:
        return built_in
    try:
        text = site.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"can't read the Xid policy {site}: {error}") from error
    own = _parse(text, str(site), unlisted=built_in.unlisted)
    return XidPolicy({**built_in.classes, **own.classes}, {**built_in.meanings, **own.meanings}, own.unlisted)


def _parse(text: str, name: str, *, unlisted: XidClass = XidClass.DEGRADED) -> XidPolicy:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the Xid policy {name} is not TOML: {error}") from error
    strange = sorted(set(table) - _KEYS)
    if strange:
        raise PolicyError(f"the Xid policy {name} has an unknown key '{strange[0]}'; known are {_listed(_KEYS)}")
    if table.get("version") != 1:
        raise PolicyError(f"the Xid policy {name} must say version = 1")
    classes: dict[int, XidClass] = {}
    for word, numbers in _table(table, "classes", name).items():
        kind = _class(word, f"the Xid policy {name}")
        if not isinstance(numbers, list):
            raise PolicyError(f"the Xid policy {name}: '{word}' must be a list of numbers")
        for number in numbers:
            if _number(number, name) in classes:
                raise PolicyError(f"the Xid policy {name} names Xid {number} twice")
            classes[number] = kind
    meanings = {}
    for key, meaning in _table(table, "meanings", name).items():
        if not key.isascii() or not key.isdigit() or len(key) > len(str(MOST_XID)) or not isinstance(meaning, str):
            raise PolicyError(f'the Xid policy {name}: a meaning is NUMBER = "text", not {key[:40]} = {meaning!r}')
        meanings[int(key)] = meaning
    if "unlisted" in table:
        unlisted = _class(table["unlisted"], f"the Xid policy {name}: unlisted")
    return XidPolicy(classes, meanings, unlisted)


def _table(table: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise PolicyError(f"the Xid policy {name}: '{key}' must be a table")
    return found


def _class(word: object, where: str) -> XidClass:
    try:
        return XidClass(word)
    except ValueError:
        raise PolicyError(
            f"{where} has no class {word!r}; known are {_listed(each.value for each in XidClass)}"
        ) from None


def _number(number: object, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MOST_XID:
        raise PolicyError(f"the Xid policy {name}: {number!r} is no number of an Xid, from 1 to {MOST_XID}")
    return number


def _listed(words: Any) -> str:
    return ", ".join(sorted(words))
