"""What leaves the machine in a bundle: text without secrets, and without addresses of private networks. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from hypervisor.doctor.kubernetes import DIRECTORY

REMOVED = "<removed>"
_ADDRESS = "<address>"
# Variables whose values the checks read, or that say nothing of anybody; of all others only the name is kept.
_KNOWN_VARIABLES = re.compile(
    r"(NVIDIA|CUDA|TF|POD|LD|SIM|PYTORCH_CUDA)_[A-Z0-9_]*$|CONTAINER_NAME$|HYPERVISOR_(NODE_NAME|LOG_LEVEL)$"
)
# Earlier versions of an object, and what only Secrets, ConfigMaps and webhooks have.
_DROPPED = frozenset(
    {"managedFields", "kubectl.kubernetes.io/last-applied-configuration", "data", "stringData", "caBundle"}
)
_WORDS = "password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth"
# Bounded, so that a long line of words and dots takes no square of its length.
_SENSITIVE = rf"[\w.-]{{0,40}}(?:{_WORDS})[\w.-]{{0,40}}"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {REMOVED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REMOVED),
    (re.compile(r"\b(?:hf|ghp|gho|ghs|glpat|sk|pk|npm|pypi|xox[abps])[-_][\w-]{16,}"), REMOVED),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), rf"\1{REMOVED}@"),
    (re.compile(rf"(?i)(--{_SENSITIVE})([= \0])[^\s\0]+"), rf"\1\2{REMOVED}"),
    (
        re.compile(r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})\b"),
        _ADDRESS,
    ),
)
# A name and its value in TOML, YAML, JSON or a log. What is quoted stays quoted, so that the file can still be read.
_ASSIGNED = re.compile(
    rf"(?i)\b(?P<name>{_SENSITIVE})(?P<sign>[\"']?[ \t]*[:=][ \t]*)"
    r"(?:(?P<quote>[\"'])(?:(?!(?P=quote)).)*(?P=quote)|[^\s\"',;\0]+)"
)
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
    """Any text, without what looks like a secret or a private address."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    quote = match["quote"] or ""
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
    return f"{name}={redact_text(value)}" if _KNOWN_VARIABLES.match(name) else f"{name}={REMOVED}"


def _objects(text: str) -> str:
    try:
        return json.dumps(_object(json.loads(text)))
    except ValueError:
        return redact_text(text)


def _object(value: Any) -> Any:
    """Without values of variables, data of Secrets, and what kubectl keeps of earlier versions."""
    if isinstance(value, dict):
        if {"name", "value"} <= value.keys() and not _KNOWN_VARIABLES.match(str(value["name"])):
            value = {**value, "value": REMOVED}
        return {key: _object(inner) for key, inner in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [_object(inner) for inner in value]
    return redact_text(value) if isinstance(value, str) else value
