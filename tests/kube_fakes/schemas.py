"""Structural schemas, as an API server has them: unknown fields are pruned, defaults filled in, the rest is checked."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
    "number": (int, float),
}


class Invalid(Exception):
    """Why an object is refused."""


def shaped(body: Any, schema: dict[str, Any], path: str = "") -> Any:
    """The value without unknown fields and with defaults. Raises Invalid."""
    if schema.get("x-kubernetes-int-or-string"):
        _check(isinstance(body, int | str) and not isinstance(body, bool), path, "must be an integer or a string")
        _check(re.search(schema.get("pattern", ""), str(body)) is not None, path, f"does not match: {body!r}")
        return body
    kind = schema["type"]
    right = isinstance(body, _TYPES[kind]) and not (kind in ("integer", "number") and isinstance(body, bool))
    _check(right, path, f"must be of type {kind}")
    if kind == "object":
        return _object(body, schema, path)
    if kind == "array":
        keys = schema.get("x-kubernetes-list-map-keys")
        made = [shaped(each, schema["items"], f"{path}[{index}]") for index, each in enumerate(body)]
        if keys:
            names = [tuple(each.get(key) for key in keys) for each in made]
            _check(len(set(names)) == len(names), path, "duplicate entries")
        return made
    _check("enum" not in schema or body in schema["enum"], path, f"unsupported value: {body!r}")
    if kind == "integer":
        bound = 2**31 if schema.get("format") == "int32" else 2**63
        _check(-bound <= body < bound, path, "does not fit")
        _check(schema.get("minimum", body) <= body <= schema.get("maximum", body), path, "out of range")
    if kind == "string":
        _check(schema.get("minLength", 0) <= len(body) <= schema.get("maxLength", len(body)), path, "length")
        if schema.get("format") == "date-time":
            try:
                datetime.fromisoformat(body)
            except ValueError:
                raise Invalid(f"{path}: must be a date-time: {body!r}") from None
    return body


def _object(body: dict[str, Any], schema: dict[str, Any], path: str) -> dict[str, Any]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return body
    for name in schema.get("required", ()):
        _check(name in body, f"{path}.{name}", "required value")
    if "additionalProperties" in schema:
        return {key: shaped(each, schema["additionalProperties"], f"{path}.{key}") for key, each in body.items()}
    made = {}
    for name, part in schema.get("properties", {}).items():
        if name in body:
            made[name] = shaped(body[name], part, f"{path}.{name}")
        elif "default" in part:
            made[name] = part["default"]
    return made


def _check(right: bool, path: str, why: str) -> None:
    if not right:
        raise Invalid(f"{path.lstrip('.') or 'object'}: {why}")
