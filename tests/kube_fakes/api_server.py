"""Pods and events of an API server: lists in pages, watches from a version with bookmarks, 410 for versions that were
compacted, 409, 429 with Retry-After, tokens that expire, watches that are cut off or say nothing."""

from __future__ import annotations

import json
import queue
import re
import socket
import threading
import uuid
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.kube_fakes.answering import END, AnsweringHandler, as_go


class FakeApiServer:
    """One cluster's Pods and events, over plain HTTP on loopback."""

    def __init__(self, port: int = 0) -> None:
        self.pods: dict[str, dict] = {}
        self.events: dict[tuple[str, str], dict] = {}
        self.requests: list[tuple[str, str]] = []
        self.token = "first"
        self.refuse: list[tuple[int, str]] = []  # (status, Retry-After) of the next requests
        self.cut_next_watches = 0
        self.page = 0  # at most so many items a page, whatever the client asks for
        self._history: list[tuple[int, str, dict]] = []
        self._oldest = 0
        self._version = 1000
        self._lock = threading.RLock()
        self._watchers: list[queue.Queue] = []
        self._server: ThreadingHTTPServer | None = None
        self._port = port

    # --- life

    def start(self) -> FakeApiServer:
        fake = self

        class Handler(_Handler):
            api = fake

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """The server is gone; what it holds stays for the next start()."""
        self.end_watches()
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()

    def kubeconfig(self, path: Path, *, token_file: Path | None = None) -> Path:
        user = {"tokenFile": str(token_file)} if token_file is not None else {"token": self.token}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
                    "users": [{"name": "node", "user": user}],
                    "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "node"}}],
                    "current-context": "fake",
                }
            )
        )
        return path

    # --- what tests do

    def create(self, pod: dict) -> dict:
        with self._lock:
            pod = json.loads(json.dumps(pod))
            pod.setdefault("status", {"phase": "Pending"})
            pod["metadata"].setdefault("uid", str(uuid.uuid4()))
            pod["metadata"].setdefault("namespace", "default")
            pod["metadata"].setdefault("creationTimestamp", "2030-01-01T00:00:00Z")
            self.pods[pod["metadata"]["uid"]] = pod
            self._changed("ADDED", pod)
            return pod

    def annotate(self, uid: str, **annotations: str) -> None:
        with self._lock:
            found = self.pods[uid]["metadata"].setdefault("annotations", {})
            found.update({f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in annotations.items()})
            self._changed("MODIFIED", self.pods[uid])

    def set_phase(self, uid: str, phase: str) -> None:
        with self._lock:
            self.pods[uid]["status"]["phase"] = phase
            self._changed("MODIFIED", self.pods[uid])

    def delete(self, uid: str) -> None:
        with self._lock:
            self._changed("DELETED", self.pods.pop(uid))

    def bookmark(self) -> None:
        with self._lock:
            self._version += 1
            note = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(self._version)}}
            for watcher in self._watchers:
                watcher.put({"type": "BOOKMARK", "object": note})

    def compact(self) -> None:
        """Versions up to now can't be watched from any more."""
        with self._lock:
            self._version += 1
            self._oldest = self._version
            self._history.clear()

    def expire_watches(self) -> None:
        """Each watch ends with 410."""
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        with self._lock:
            for watcher in self._watchers:
                watcher.put({"type": "ERROR", "object": status})

    def end_watches(self) -> None:
        with self._lock:
            for watcher in self._watchers:
                watcher.put(END)

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def count(self, what: str) -> int:
        """Requests whose method and target contain the text."""
        return sum(what in f"{method} {target}" for method, target in self.requests)

    def events_of(self, uid: str) -> list[dict]:
        with self._lock:
            return [event for event in self.events.values() if event["involvedObject"]["uid"] == uid]

    def _changed(self, kind: str, pod: dict) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        copy = json.loads(json.dumps(pod))
        self._history.append((self._version, kind, copy))
        for watcher in self._watchers:
            watcher.put({"type": kind, "object": copy})


class _Handler(AnsweringHandler):
    api: FakeApiServer

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        if not self._accepted():
            return
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path != "/api/v1/pods":
            self._status(404, "not found")
            return
        node = re.fullmatch(r"spec\.nodeName=(.+)", query.get("fieldSelector", ""))
        if node is None:
            self._status(400, "a node lists its own Pods only")
            return
        if query.get("watch") == "true":
            self._watch(node[1], query)
            return
        self._list(node[1], query)

    def do_POST(self) -> None:
        if not self._accepted():
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match = re.fullmatch(r"/api/v1/namespaces/([^/?]+)/events(?:\?.*)?", self.path)
        if match is None or body["metadata"]["namespace"] != match[1]:
            self._status(400, "no such collection")
            return
        if body["involvedObject"]["namespace"] != match[1] or len(body["message"]) > 1024:
            self._status(422, "invalid event")
            return
        key = (match[1], body["metadata"]["name"])
        with self.api._lock:
            if key in self.api.events:
                self._status(409, "already exists")
                return
            self.api.events[key] = body
        self._reply(201, body)

    def do_PATCH(self) -> None:
        if not self._accepted():
            return
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Content-Type"] != "application/merge-patch+json":
            self._status(415, "the body of the request was in an unknown format")
            return
        match = re.fullmatch(r"/api/v1/namespaces/([^/?]+)/events/([^/?]+)(?:\?.*)?", self.path)
        with self.api._lock:
            event = self.api.events.get((match[1], match[2])) if match else None
            if event is None:
                self._status(404, "not found")
                return
            event.update(change)
        self._reply(200, event)

    def _accepted(self) -> bool:
        if self.api._server is not self.server:
            self.close_connection = True  # a connection that was kept is of a server that is gone
            self.connection.shutdown(socket.SHUT_RDWR)
            return False
        self.api.requests.append((self.command, self.path))
        if self.headers.get("Authorization") != f"Bearer {self.api.token}":
            self._drain()
            self._status(401, "Unauthorized")
            return False
        if self.api.refuse:
            status, wait = self.api.refuse.pop(0)
            self._drain()
            self._status(status, "too many requests", {"Retry-After": wait} if wait else {})
            return False
        return True

    def _drain(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _list(self, node: str, query: dict[str, str]) -> None:
        with self.api._lock:
            found = [pod for pod in self.api.pods.values() if pod["spec"].get("nodeName") == node]
            version = str(self.api._version)
            items = json.loads(json.dumps(found))
        limit = int(query.get("limit", "500"))
        limit = min(limit, self.api.page) if self.api.page else limit
        start = int(query.get("continue", "0"))
        metadata = {"resourceVersion": version}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        self._reply(
            200, {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items[start : start + limit]}
        )

    def _watch(self, node: str, query: dict[str, str]) -> None:
        version, changes = int(query["resourceVersion"]), queue.Queue()
        with self.api._lock:
            if version < self.api._oldest:
                self._status(410, "too old resource version")
                return
            for at, kind, pod in self.api._history:
                if at > version:
                    changes.put({"type": kind, "object": pod})
            if self.api.cut_next_watches:
                self.api.cut_next_watches -= 1
                changes.put(END)
            self.api._watchers.append(changes)

        def wanted(change: dict) -> bool:
            of_node = change["object"].get("spec", {}).get("nodeName") in (None, node)
            return of_node and (change["type"] != "BOOKMARK" or query.get("allowWatchBookmarks") == "true")

        try:
            self.stream(changes, float(query["timeoutSeconds"]), wanted)
        finally:
            with self.api._lock:
                self.api._watchers.remove(changes)

    def _status(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._reply(code, {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}, headers)

    def _reply(self, code: int, body: dict, headers: dict[str, str] | None = None) -> None:
        self.reply(code, as_go(body), headers)
