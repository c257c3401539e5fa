"""What an API server asks of an event of events.k8s.io/v1."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from tests.kube_fakes.answer import Answer

_NEEDED = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")
_FIXED = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type", "regarding", "note")


def check_event(body: dict[str, Any], namespace: str, *, before: dict[str, Any] | None = None) -> None:
    """Raises Answer, 422, as a real one does."""

    def need(right: bool, why: str) -> None:
        if not right:
            raise Answer(422, f"Event is invalid: {why}")

    for name in _NEEDED:
        need(bool(body.get(name)), f"{name}: Required value")
    need(
        re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9._-]+", body["reportingController"]) is not None, "reportingController"
    )
    need(body["type"] in ("Normal", "Warning"), "type")
    need(len(body.get("note", "").encode()) <= 1024, "note: can have at most 1024 bytes")
    for name in ("reportingInstance", "action", "reason"):
        need(len(body[name]) <= 128, f"{name}: can have at most 128 characters")
    need(len(datetime.fromisoformat(body["eventTime"]).strftime("%f")) == 6, "eventTime")
    about = body["regarding"].get("namespace", "")
    need(about == namespace or (not about and namespace == "default"), "involvedObject.namespace: does not match")
    series = body.get("series")
    if series is not None:
        need(series["count"] >= 2 and bool(series["lastObservedTime"]), "series.count: should be at least 2")
    if before is not None:
        for name in _FIXED:
            need(body.get(name) == before.get(name), f"{name}: field is immutable")
