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
_WORDS = (
    r"password|passwd|passphrase|passcode|pwd|[_-]pass(?![a-z])|secret|token|credential|cookie|authorization"
    r"|(?<![a-z])auth(?![a-z])|basic[_-]?auth|(?<![a-z])psk(?![a-z])|key[_-]?data|session[_-]?id"
    r"|(?:api|access|account|shared|private|secret|encryption|signing|licen[cs]e|client|master|ssh)[_-]?(?:access[_-]?)?key"
    r"|connection[_-]?string|registration[_-]?code"
)
_WORD = re.compile(rf"(?i){_WORDS}")
# Nothing here goes back over what it has matched, so that a long line of words and dots takes no square of its length.
_TAIL = r"[\w.-]{0,80}+"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # Lines of nothing but base64: keys whose head or foot was cut off.
    (re.compile(r"(?m)^[ \t]*[A-Za-z0-9+/]{40,}={0,2}[ \t]*$"), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {REMOVED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REMOVED),
    (re.compile(r"\b(?:hf|gh[oprsu]|github_pat|glpat|sk|pk|rk|npm|pypi|dop_v1|xox[abeps])[-_][\w-]{16,}"), REMOVED),
    (
        re.compile(r"\b(?:AIza[\w-]{20,}|ya29\.[\w-]{16,}|SG\.[\w-]{8,}\.[\w-]{8,}|[a-z0-9]{6}\.[a-z0-9]{16}\b)"),
        REMOVED,
    ),
    (re.compile(r"\$(?:apr1|1|2[aby]|5|6|7|y|argon2[a-z]*)\$[^\s:\"']+"), REMOVED),
    (re.compile(r"(://)[^/\s@]{1,256}@"), rf"\1{REMOVED}@"),
    (re.compile(r"([?&][\w.%-]{1,60}=)[^\s&#\"'\0]+"), rf"\1{REMOVED}"),
    (re.compile(r"((?<=\s)(?:-u|--user)[ =\0])[^\s:\0]*:[^\s\0]+"), rf"\1{REMOVED}"),
    (re.compile(r"(\bmysql\w*\b[^\n]{0,200}?\s-p)\S+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(password|passwd|passphrase)([ \t]+)[^\s:=]\S*"), rf"\1\2{REMOVED}"),
    (
        re.compile(r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})\b"),
        _ADDRESS,
    ),
    (re.compile(r"(?i)(?<![\w:])f[cd][0-9a-f]{2}:[0-9a-f:]{2,}"), _ADDRESS),
)
# With a name in them that has to be looked at: text of several lines and lists in YAML, flags, elements of XML.
_NAMED: tuple[re.Pattern[str], ...] = (
    re.compile(
        r"(?m)^(?P<head>(?P<indent>[ \t]*+)(?:- )?[\"']?(?P<name>[\w.-]{1,80}+)[\"']?[ \t]*:)"
        r"(?:[ \t]*[|>][-+0-9]*[ \t]*(?:\n(?:(?P=indent)[ \t]+[^\n]*|[ \t]*(?=\n)))+"
        r"|[ \t]*(?:\n(?P=indent)[ \t]*- [^\n]*)+)"
    ),
    re.compile(r"(?P<head>--(?P<name>[\w.-]{1,80}+)[= \0])[^\s\0]+"),
    re.compile(r"(?P<head><(?P<name>[\w.:-]{1,80}+)>)[^<]*"),
)
# A name and its value in TOML, YAML, JSON, also JSON within JSON, or a log. What is quoted stays quoted, so that the
# file can still be read. What is not quoted goes to the end of its line after a colon, where it may have blanks.
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>(?:{_WORDS}){_TAIL})(?P<sign>(?P<closing>\\*[\"'])?[ \t]*(?:=>|:=|=|:)[ \t]*)"
    r"(?:(?P<quote>\\*[\"'])(?:(?!(?P=quote))(?:\\.|[^\\])){0,512}(?P=quote)"
    r"|(?(closing)[^\s,}}\]\0]+|(?:(?:(?<==)|(?<==[ \t]))[^\s\"',;&\0]+|[^\n\0]+)))"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{1,40}-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{1,40}-----")
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
    text = _without_keys(text)
    for pattern in _NAMED:
        text = pattern.sub(_without_named, text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(_without_value, text)


def _without_keys(text: str) -> str:
    """Without what stands between the head and the foot of a key; without a foot, to the end of the text."""
    parts, at = [], 0
    while (begin := _KEY_BEGINS.search(text, at)) is not None:
        parts += [text[at : begin.start()], REMOVED]
        end = _KEY_ENDS.search(text, begin.end())
        if end is None:
            return "".join(parts)
        at = end.end()
    return "".join([*parts, text[at:]])


def _without_named(match: re.Match[str]) -> str:
    if not _WORD.search(match["name"]):
        return match.group()
    blank = "" if match["head"][-1] in "= \0>" else " "
    return f"{match['head']}{blank}{REMOVED}"


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
    return f"{name}={redact_text(value)}" if _is_known(name) else f"{name}={REMOVED}"


def _is_known(variable: str) -> bool:
    return bool(_KNOWN_VARIABLES.match(variable)) and not _WORD.search(variable)


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
            key: REMOVED if isinstance(inner, str) and _is_secret(key) else _object(inner)
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


def _is_flag(argument: str) -> bool:
    """Whether the next argument is the secret that this one names."""
    return argument.startswith("-") and "=" not in argument and bool(_WORD.search(argument))


def _is_secret(key: str) -> bool:
    """Whether a field or an annotation of this name holds a secret."""
    name = key.rpartition("/")[2]
    return name not in _REFERENCES and bool(_WORD.search(name))
