"""What parts of Kubernetes objects are, by their names; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Parts of objects by what they are. An API server gives nothing else; files may hold anything.
_MAPPINGS = frozenset(
    [
        "metadata",
        "labels",
        "annotations",
        "spec",
        "capacity",
        "allocatable",
        "state",
        "lastState",
        "running",
        "waiting",
        "terminated",
        "resources",
        "limits",
        "requests",
        "template",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelector",
        "nodeManagerConfig",
        "involvedObject",
        "regarding",
        "series",
    ]
)
_LISTS = frozenset(
    [
        "containers",
        "initContainers",
        "containerStatuses",
        "initContainerStatuses",
        "conditions",
        "taints",
        "tolerations",
        "env",
        "ownerReferences",
        "nodeSelectorTerms",
        "matchExpressions",
    ]
)
_FLAT = frozenset(["labels", "annotations", "capacity", "allocatable", "limits", "requests", "nodeSelector"])
_TEXTS = frozenset(
    [
        "name",
        "namespace",
        "nodeName",
        "schedulerName",
        "phase",
        "reason",
        "type",
        "key",
        "operator",
        "effect",
        "message",
        "note",
    ]
)


def shaped_list(items: object) -> list[Mapping[str, Any]]:
    """What of a list are objects."""
    return [_shaped(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _shaped(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object without parts that can't be what their name says, so that one of many takes no check down."""
    kept: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            if key in _FLAT:
                kept[key] = {name: each for name, each in value.items() if not isinstance(each, dict | list)}
            elif key not in _LISTS and key not in _TEXTS:
                kept[key] = _shaped(value)
        elif key in _LISTS:
            kept[key] = shaped_list(value)
        elif (isinstance(value, list) and key in _TEXTS) or (key == "status" and "type" not in found):
            continue  # of a condition, status is a word
        elif key not in _MAPPINGS or value is None:
            kept[key] = value
    return kept
