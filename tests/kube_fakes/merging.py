"""Server-side apply and merge patches, as an API server does them: each field has its managers."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]
Path = tuple[str, ...]
# Written by the server, or naming the object: owned by nobody.
_NOBODYS = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")}


class ApplyConflict(Exception):
    """Another manager has one of the fields."""


def leaves(body: Any, path: Path = ()) -> dict[Path, Any]:
    """Fields with their values; a list is one field, as a list of the type atomic is."""
    if isinstance(body, dict) and body:
        found: dict[Path, Any] = {}
        for key, value in body.items():
            found |= leaves(value, (*path, key))
        return found
    return {} if path in _NOBODYS else {path: body}


def apply(live: Object, body: Object, managers: dict[Path, set[str]], *, manager: str, force: bool) -> Object:
    """The object afterwards; managers is changed. Raises ApplyConflict that names field and manager."""
    wanted = leaves(body)
    present = leaves(live)
    for path, value in wanted.items():
        others = managers.get(path, set()) - {manager}
        if others and present.get(path) != value:
            if not force:
                raise ApplyConflict(f'conflict with "{sorted(others)[0]}": .{".".join(path)}')
            managers[path] = set()
    made = copy.deepcopy(live)
    for path, value in wanted.items():
        put(made, path, value)
        managers.setdefault(path, set()).add(manager)
    for path in [path for path, owners in managers.items() if manager in owners and path not in wanted]:
        managers[path].discard(manager)
        if not managers[path]:
            del managers[path]
            drop(made, path)
    return made


def take(managers: dict[Path, set[str]], before: Object, after: Object, *, manager: str) -> None:
    """What an update has changed is its manager's alone."""
    old, new = leaves(before), leaves(after)
    for path in old.keys() - new.keys():
        managers.pop(path, None)
    for path, value in new.items():
        if old.get(path) != value or path not in old:
            managers[path] = {manager}


def merge(live: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    made = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


def put(body: Object, path: Path, value: Any) -> None:
    for key in path[:-1]:
        child = body.setdefault(key, {})
        if not isinstance(child, dict):
            child = body[key] = {}
        body = child
    body[path[-1]] = copy.deepcopy(value)


def drop(body: Object, path: Path) -> None:
    parents = [body]
    for key in path[:-1]:
        child = parents[-1].get(key)
        if not isinstance(child, dict):
            return
        parents.append(child)
    parents[-1].pop(path[-1], None)
    for key, parent, child in zip(reversed(path[:-1]), reversed(parents[:-1]), reversed(parents[1:]), strict=True):
        if not child:
            parent.pop(key, None)
