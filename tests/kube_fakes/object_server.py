"""Objects of an API server: the kinds of deploy/crds with their schemas, and the built-in ones that are used here.

Lists in pages, watches with bookmarks, server-side apply with managers, status apart, UIDs, preconditions; 409, 410,
422, 429 with Retry-After, outages. It knows what it is asked here and refuses the rest; that a real one does the same
is shown by running the same tests on it.
"""

from __future__ import annotations

import copy
import functools
import json
import queue
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import yaml

from tests.kube_fakes import merging, schemas
from tests.kube_fakes.answer import Answer
from tests.kube_fakes.answering import END, AnsweringHandler
from tests.kube_fakes.events import check_event
from tests.real_kube.cluster import Refused

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
Object = dict[str, Any]
_BUILT_IN = {
    ("", "nodes"): "Node",
    ("", "pods"): "Pod",
    ("batch", "jobs"): "Job",
    ("coordination.k8s.io", "leases"): "Lease",
    ("events.k8s.io", "events"): "Event",
}
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>status|log))?"
)


@dataclass
class Stored:
    body: Object
    managers: dict[merging.Path, set[str]] = field(default_factory=dict)


class ObjectServer:
    """One cluster over plain HTTP on loopback."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str, str], Stored] = {}
        self.requests: list[tuple[str, str]] = []
        self.refuse: list[tuple[int, str]] = []  # (status, Retry-After) of the next requests
        self.down = False
        self.expire_next_continue = False
        # (method, part of the target, status): after the next such request, the one after it is refused.
        self.fail_after: tuple[str, str, int] | None = None
        self.page = 0
        self.logs: dict[str, str] = {}
        self.lock = threading.RLock()
        self.version = 1000
        self.oldest = 0
        self.history: list[tuple[int, str, str, Object]] = []
        self.watchers: list[tuple[str, queue.Queue[Object]]] = []
        self.schemas = _declared()
        fake = self

        class Handler(_Handler):
            api = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.server = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.cut_watches()
        self._server.shutdown()
        self._server.server_close()

    # --- as tests/real_kube/cluster.py has it

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, kind: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.server + path, method=method, data=data, headers={"Content-Type": kind, "X-Test": "1"})
        try:
            with urlopen(request, timeout=30) as answer:
                found: Object = json.loads(answer.read())
                return found
        except HTTPError as error:
            with error:
                raise Refused(error.code, json.loads(error.read() or b"{}").get("message", "")) from None

    def kubeconfig(self, path: Path) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # --- what tests do

    def cut_watches(self) -> None:
        with self.lock:
            for _, watcher in self.watchers:
                watcher.put(END)

    def compact(self) -> None:
        """Versions up to now can't be watched from any more, and open watches end with 410."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            for _, watcher in self.watchers:
                watcher.put({"type": "ERROR", "object": gone})

    def count(self, method: str, text: str) -> int:
        """Requests of the program under test."""
        return sum(method == each and text in target for each, target in list(self.requests))

    # --- the objects

    def create(self, where: tuple[str, str, str], body: Object, *, manager: str) -> Object:
        _, plural, namespace = where
        name = body.get("metadata", {}).get("name", "")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name):
            raise Answer(422, f'metadata.name: Invalid value: "{name}"')
        if (*where, name) in self.objects:
            raise Answer(409, f'{plural} "{name}" already exists')
        body = self._shape(where, body)
        if self._has_status(where):
            body.pop("status", None)
        if plural == "events":
            check_event(body, namespace)
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
        if namespace:
            made["metadata"]["namespace"] = namespace
        stored = Stored(made)
        merging.take(stored.managers, {}, made, manager=manager)
        self.objects[*where, name] = stored
        self._changed("ADDED", where, made)
        return made

    def change(self, where: tuple[str, str, str], name: str, body: Object, *, part: str) -> Object:
        """Put this in the place of what is there; nothing happens when it is the same."""
        stored = self.objects[*where, name]
        body = self._shape(where, body)
        if self._has_status(where):
            if part == "status":
                body = {**copy.deepcopy(stored.body), "status": body.get("status", {})}
            elif "status" in stored.body:
                body["status"] = stored.body["status"]
            else:
                body.pop("status", None)
        kept = {
            key: stored.body["metadata"].get(key) for key in ("uid", "generation", "creationTimestamp", "namespace")
        }
        body["metadata"] |= {key: value for key, value in kept.items() if value is not None}
        body["metadata"]["resourceVersion"] = stored.body["metadata"]["resourceVersion"]
        if body == stored.body:
            return stored.body
        if body.get("spec") != stored.body.get("spec"):
            body["metadata"]["generation"] += 1
        stored.body = body
        self._changed("MODIFIED", where, body)
        return body

    def remove(self, where: tuple[str, str, str], name: str, *, uid: str) -> None:
        stored = self.objects[*where, name]
        if uid and uid != stored.body["metadata"]["uid"]:
            raise Answer(409, "the UID in the precondition does not match")
        del self.objects[*where, name]
        self._changed("DELETED", where, stored.body)

    def selected(self, group: str, plural: str, namespace: str, query: Mapping[str, str]) -> list[Object]:
        return [
            stored.body
            for (its_group, its_plural, its_namespace, _), stored in self.objects.items()
            if (its_group, its_plural) == (group, plural)
            and namespace in ("", its_namespace)
            and _matches(stored.body, query)
        ]

    def known(self, group: str, plural: str) -> bool:
        return (group, plural) in _BUILT_IN or (group, plural) in self.schemas

    def _has_status(self, where: tuple[str, str, str]) -> bool:
        return where[:2] in self.schemas or where[1] in ("pods", "jobs")

    def _shape(self, where: tuple[str, str, str], body: Object) -> Object:
        spec = self.schemas.get(where[:2])
        if spec is None:
            return copy.deepcopy(body)
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
        try:
            made = schemas.shaped({key: value for key, value in body.items() if key != "metadata"}, schema)
        except schemas.Invalid as error:
            raise Answer(422, f"is invalid: {error}") from None
        return {**made, "metadata": copy.deepcopy(body.get("metadata", {}))}

    def _changed(self, kind: str, where: tuple[str, str, str], body: Object) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        change = {"type": kind, "object": copy.deepcopy(body)}
        collection = f"{where[0]}/{where[1]}"
        self.history.append((self.version, collection, kind, change["object"]))
        for followed, watcher in self.watchers:
            if followed == collection:
                watcher.put(change)


class _Handler(AnsweringHandler):
    api: ObjectServer

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        ours = self.headers.get("X-Test") != "1"
        try:
            if ours:
                self._admit()
            found = _PATH.fullmatch(url.path)
            if found is None or not self.api.known(found["group"] or "", found["plural"]):
                raise Answer(404, "the server could not find the requested resource")
            where = (found["group"] or "", found["plural"], found["namespace"] or "")
            if query.get("watch") == "true":
                self._watch(where, query)
                return
            if found["part"] == "log":
                self._reply_text(self.api.logs.get(found["name"], ""))
                return
            body = json.loads(raw) if raw else {}
            manager = query.get("fieldManager") or (self.headers.get("User-Agent") or "unknown").split("/")[0]
            with self.api.lock:
                answer = self._do(where, found["name"] or "", found["part"] or "", body, query, manager)
                content = json.dumps(answer).encode()
            self.reply(201 if self.command == "POST" else 200, content)
        except Answer as answer:
            reason = {409: "Conflict", 410: "Expired", 404: "NotFound", 422: "Invalid"}.get(answer.code, "")
            status = {"kind": "Status", "code": answer.code, "reason": reason, "message": str(answer)}
            self.reply(answer.code, json.dumps(status).encode(), answer.headers)

    def _admit(self) -> None:
        self.api.requests.append((self.command, self.path))
        if self.api.down:
            raise Answer(503, "the server is currently unable to handle the request")
        after = self.api.fail_after
        if after is not None and self.command == after[0] and after[1] in self.path:
            self.api.fail_after = None
            self.api.refuse.append((after[2], ""))
            return
        if self.api.refuse:
            status, wait = self.api.refuse.pop(0)
            raise Answer(status, "refused by the test", **({"Retry-After": wait} if wait else {}))

    def _do(
        self, where: tuple[str, str, str], name: str, part: str, body: Object, query: Mapping[str, str], manager: str
    ) -> Object:
        api = self.api
        key = (*where, name)
        if self.command == "GET" and not name:
            return self._list(where, query)
        if self.command == "POST":
            return api.create(where, body, manager=manager)
        applied = self.headers["Content-Type"] == "application/apply-patch+yaml"
        if self.command == "PATCH" and applied and key not in api.objects and not part:
            if body.get("metadata", {}).get("name") != name or "kind" not in body:
                raise Answer(400, "the name of the object does not match the path")
            return api.create(where, body, manager=manager)
        if key not in api.objects:
            raise Answer(404, f'{where[1]} "{name}" not found')
        stored = api.objects[key]
        if self.command == "DELETE":
            api.remove(where, name, uid=body.get("preconditions", {}).get("uid", ""))
            return {"kind": "Status", "status": "Success"}
        if self.command == "PUT":
            if body["metadata"].get("resourceVersion") != stored.body["metadata"]["resourceVersion"]:
                raise Answer(409, "the object has been modified; please apply your changes to the latest version")
            before = copy.deepcopy(stored.body)
            made = api.change(where, name, body, part=part)
            merging.take(stored.managers, before, made, manager=manager)
            return made
        if self.command == "PATCH":
            return self._patch(where, name, part, body, query, manager)
        return stored.body

    def _patch(
        self, where: tuple[str, str, str], name: str, part: str, body: Object, query: Mapping[str, str], manager: str
    ) -> Object:
        api, stored = self.api, self.api.objects[*where, name]
        managers = copy.deepcopy(stored.managers)
        kind = self.headers["Content-Type"]
        if kind == "application/apply-patch+yaml":
            force = query.get("force") == "true"
            try:
                merged = merging.apply(stored.body, body, managers, manager=manager, force=force)
            except merging.ApplyConflict as error:
                raise Answer(409, f"Apply failed with 1 conflict: {error}") from None
            made = api.change(where, name, merged, part=part)
        elif kind == "application/merge-patch+json":
            before = copy.deepcopy(stored.body)
            merged = merging.merge(stored.body, body)
            if where[1] == "events":
                check_event(merged, where[2], before=before)
            made = api.change(where, name, merged, part=part)
            merging.take(managers, before, made, manager=manager)
        else:
            raise Answer(415, "the body of the request was in an unknown format")
        stored.managers = managers
        return made

    def _list(self, where: tuple[str, str, str], query: Mapping[str, str]) -> Object:
        group, plural, namespace = where
        start, version = 0, self.api.version
        if query.get("continue"):
            start, version = (int(part) for part in query["continue"].split("."))
            if self.api.expire_next_continue:
                self.api.expire_next_continue = False
                raise Answer(410, "the provided continue parameter is too old")
            if version < self.api.oldest:
                raise Answer(410, "the provided continue parameter is too old")
        items = self.api.selected(group, plural, namespace, query)
        limit = int(query.get("limit") or len(items) or 1)
        limit = min(limit, self.api.page) if self.api.page else limit
        metadata = {"resourceVersion": str(version)}
        if start + limit < len(items):
            metadata["continue"] = f"{start + limit}.{version}"
        return {"kind": "List", "metadata": metadata, "items": items[start : start + limit]}

    def _watch(self, where: tuple[str, str, str], query: Mapping[str, str]) -> None:
        api, collection = self.api, f"{where[0]}/{where[1]}"
        changes: queue.Queue[Object] = queue.Queue()
        with api.lock:
            since = int(query["resourceVersion"])
            if since < api.oldest:
                raise Answer(410, "too old resource version")
            for version, its, kind, body in api.history:
                if version > since and its == collection:
                    changes.put({"type": kind, "object": body})
            entry = (collection, changes)
            api.watchers.append(entry)

        def wanted(change: Object) -> bool:
            seen = change["object"]
            in_namespace = where[2] in ("", seen.get("metadata", {}).get("namespace", ""))
            return change["type"] == "ERROR" or (in_namespace and _matches(seen, query))

        try:
            self.stream(changes, float(query["timeoutSeconds"]), wanted)
        finally:
            with api.lock:
                api.watchers.remove(entry)

    def _reply_text(self, text: str) -> None:
        self.reply(200, text.encode())


def _matches(body: Object, query: Mapping[str, str]) -> bool:
    labels = body["metadata"].get("labels") or {}
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    return all(labels.get(key) == value for key, _, value in wanted)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@functools.cache
def _declared() -> dict[tuple[str, str], Object]:
    """The kinds of deploy/crds, by group and plural."""
    found = {}
    for file in CRDS.glob("*.yaml"):
        spec = yaml.safe_load(file.read_text())["spec"]
        found[spec["group"], spec["names"]["plural"]] = spec
    return found
