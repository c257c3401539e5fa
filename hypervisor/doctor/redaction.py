"""What leaves the machine in a bundle: text without secrets, and without addresses of private networks. Pure."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from hypervisor.doctor import secret_forms
from hypervisor.doctor.kubernetes import DIRECTORY
from hypervisor.doctor.secret_forms import REMOVED

# Variables whose values the checks read, or that say nothing of anybody; of all others only the name is kept.
_KNOWN_VARIABLES = re.compile(
    r"(NVIDIA|CUDA|TF|POD|LD|SIM|PYTORCH_CUDA)_[A-Z0-9_]*$|CONTAINER_NAME$|HYPERVISOR_(NODE_NAME|LOG_LEVEL)$"
)
# Earlier versions of an object, and what only Secrets, ConfigMaps and webhooks have.
_DROPPED = frozenset(
    {"managedFields", "kubectl.kubernetes.io/last-applied-configuration", "data", "stringData", "caBundle"}
)
# Names that say where a secret lies, which is none.
_REFERENCES = frozenset({"secretName", "tokenPath", "secretRef", "secretKeyRef"})
_TABLE_ADDRESS = re.compile(r"\b[0-9A-F]{8}(?:[0-9A-F]{24})?(?=:[0-9A-F]{4}\b)")


def redact(name: str, text: str) -> str:
    """The text of a file as it may leave the machine."""
    if re.fullmatch(r"/proc/\d+/environ", name):
        return "\0".join(_variable(entry) for entry in text.split("\0"))
    if re.fullmatch(r"/proc/\d+/cmdline", name):
        return _command(text)
    if re.fullmatch(r"/proc/net/tcp6?", name):
        return _TABLE_ADDRESS.sub(lambda match: "0" * len(match.group()), text)
    if re.fullmatch(r"/proc/\d+/(stat|maps|limits|cgroup|wchan)", name) or name.startswith(("/sys/", "/proc/driver/")):
        return text  # the kernel's own words, and nothing of anybody's
    if name.startswith(DIRECTORY) and name.endswith(".json"):
        return _objects(text)
    return redact_text(text)


def redact_text(text: str) -> str:
    """Any text, without what looks like a secret or a private address. Takes time by its length only."""
    text = secret_forms.LETTER_BY_NUMBER.sub(lambda match: chr(int(match[1], 16)), text)
    text = _without_keys(text)
    for pattern in secret_forms.NAMED:
        text = pattern.sub(_without_named, text)
    for pattern in secret_forms.VARIABLES:
        text = pattern.sub(_without_variable, text)
    for pattern, replacement in secret_forms.FORMS:
        text = pattern.sub(replacement, text)
    text = secret_forms.BASE64.sub(_without_base64, text)
    return _without_rests(secret_forms.ASSIGNED.sub(_without_value, text))


def _without_keys(text: str) -> str:
    """Without what stands between the head and the foot of a key; without a foot, to the end of the text."""
    parts, at = [], 0
    while (begin := secret_forms.KEY_BEGINS.search(text, at)) is not None:
        parts += [text[at : begin.start()], REMOVED]
        end = secret_forms.KEY_ENDS.search(text, begin.end())
        if end is None:
            return "".join(parts)
        at = end.end()
    return "".join([*parts, text[at:]])


def _without_named(match: re.Match[str]) -> str:
    if not secret_forms.WORD.search(match["name"]):
        return match.group()
    blank = "" if match["head"][-1] in "= \0>" else " "
    return f"{match['head']}{blank}{REMOVED}"


def _without_variable(match: re.Match[str]) -> str:
    return match.group() if _is_known(match["name"]) else f"{match['head']}{REMOVED}"


def _without_base64(match: re.Match[str]) -> str:
    """Keys are long and have letters of all kinds, unlike digests; a short one may hold a name and a password."""
    text = match.group()
    kinds = (str.isupper, str.islower, str.isdigit)
    if len(text) >= secret_forms.LONG_BASE64 and all(any(kind(letter) for letter in text) for kind in kinds):
        return REMOVED
    try:
        inside = base64.b64decode(text[:512] + "=" * (-len(text[:512]) % 4)).decode("ascii")
    except ValueError:
        return text
    return REMOVED if inside.isprintable() and (":" in inside or secret_forms.WORD.search(inside)) else text


def _without_rests(text: str) -> str:
    """Where a line of a container's log was cut within a secret, its rest stands in the next line."""
    if " P " not in text:
        return text
    lines, cut = text.split("\n"), False
    for at, line in enumerate(lines):
        head = secret_forms.CUT_LINE.match(line)
        if head is not None and cut:
            lines[at] = head.group() + REMOVED
        cut = head is not None and head["tag"] == "P" and lines[at].endswith(REMOVED)
    return "\n".join(lines)


def _without_value(match: re.Match[str]) -> str:
    quote = match["long"] or match["quote"] or ""
    return f"{match['name']}{match['sign']}{quote}{REMOVED}{quote}"


def _command(text: str) -> str:
    """The program; its arguments too where they are settings of the kubelet or of the daemon."""
    words = text.split("\0")
    if {word.rpartition("/")[2] for word in words[:4]} & {"kubelet", "hypervisor"}:
        return redact_text(text)
    return words[0] + "\0"


def _variable(entry: str) -> str:
    name, equals, value = entry.partition("=")
    if not equals:
        return ""
    return f"{name}={redact_text(value)}" if _is_known(name) else f"{name}={REMOVED}"


def _is_known(variable: str) -> bool:
    return bool(_KNOWN_VARIABLES.match(variable)) and not secret_forms.WORD.search(variable)


def _objects(text: str) -> str:
    try:
        return json.dumps(_object(json.loads(text)))
    except ValueError:
        return redact_text(text)


def _object(value: Any) -> Any:
    """Without values of variables, data of Secrets, and what kubectl keeps of earlier versions."""
    if isinstance(value, dict):
        if {"name", "value"} <= value.keys() and not _is_known(str(value["name"])):
            value = {**value, "value": REMOVED}
        return {
            key: REMOVED if _is_plain(inner) and _is_secret(key) else _object(inner)
            for key, inner in value.items()
            if key not in _DROPPED
        }
    if isinstance(value, list):
        before = ["", *value]
        return [
            REMOVED if isinstance(last, str) and isinstance(inner, str) and _is_flag(last) else _object(inner)
            for last, inner in zip(before, value, strict=False)
        ]
    return redact_text(value) if isinstance(value, str) else value


def _is_plain(value: Any) -> bool:
    """Whether it is no object, which may say where a secret lies, but text, a number or a list of these."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str | int | float) for each in value)
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_flag(argument: str) -> bool:
    """Whether the next argument is the secret that this one names."""
    return argument.startswith("-") and "=" not in argument and bool(secret_forms.WORD.search(argument))


def _is_secret(key: str) -> bool:
    """Whether a field or an annotation of this name holds a secret."""
    name = key.rpartition("/")[2]
    return name not in _REFERENCES and bool(secret_forms.WORD.search(name))
