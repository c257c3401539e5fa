"""Brings objects to the API server by server-side apply: only what differs from what is there, never too fast.

What is there is known from a list at the start, from the answers to our own writes, and from a watch; a digest of it is
kept. An object that the API server refuses as invalid is set aside until it changes, so that it holds up no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from hypervisor.aggregator import derive
from hypervisor.aggregator.kubernetes import names
from hypervisor.aggregator.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubernetesClient, Object
from hypervisor.aggregator.pace import Pace

log = structlog.get_logger("kubernetes")

_OUR_KEYS = frozenset(
    {
        names.MANAGED_BY,
        names.POOL_LABEL,
        names.MISSING_SINCE,
        names.NODE_UID,
        names.BOOT_ID,
        names.EVENT_POSITION,
    }
)
Key = tuple[str, str]  # collection, name


@dataclass(slots=True)
class Known:
    """An object as it is on the API server: digests of what of it is ours. refused: of what it did not take."""

    uid: str = ""
    metadata: str = ""
    status: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierStatistics:
    """conflicts: fields of ours that another had taken; refused: objects that are set aside now."""

    writes_total: int
    unchanged_total: int
    conflicts_total: int
    refused: int
    known: int


class Applier:
    """Only the loop's tasks call it."""

    def __init__(self, client: KubernetesClient, *, writes_per_second: float, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._pace = Pace(per_second=writes_per_second, at_once=writes_per_second, monotonic=monotonic)
        self._known: dict[Key, Known] = {}
        self._writes = self._unchanged = self._conflicts = 0

    def uid(self, collection: str, name: str) -> str:
        """The UID of an object, "" when it is not known to be there."""
        known = self._known.get((collection, name))
        return known.uid if known is not None else ""

    def learn(self, collection: str, live: Object) -> bool:
        """What a list or a watch has shown; True when it is not as we left it."""
        key = (collection, live["metadata"]["name"])
        found = (live["metadata"]["uid"], digest(owned_metadata(live)), digest(owned_status(live)))
        known = self._known.get(key)
        if known is None:
            self._known[key] = Known(*found)
            return False
        # In place: a write of it may be under way.
        differs = (known.uid, known.metadata, known.status) != found
        known.uid, known.metadata, known.status = found
        return differs

    def forget(self, collection: str, name: str, uid: str = "") -> bool:
        """An object is gone; False when it was not known, or is another one by now."""
        known = self._known.get((collection, name))
        if known is None or (uid and known.uid != uid):
            return False
        del self._known[(collection, name)]
        return True

    def known(self, collection: str) -> list[str]:
        """Names of all objects of a collection that are there."""
        return [name for where, name in self._known if where == collection]

    async def put(
        self, collection: str, metadata: Object, status: Object | None, *, volatile: Object | None = None
    ) -> bool:
        """Make an object have this metadata, and this status where one is given; True when something was written.

        volatile: what is added to the status when it is written, and is no reason to write it. Raises ApiError when
        the API server can't be asked or refuses all; an object that it refuses for its content is set aside.
        """
        name = metadata["metadata"]["name"]
        key = (collection, name)
        known = self._known.setdefault(key, Known())
        wanted, wanted_status = digest(owned_metadata(metadata)), digest(status)
        if known.refused == wanted + wanted_status:
            return False
        if known.uid and known.metadata == wanted and (status is None or known.status == wanted_status):
            self._unchanged += 1
            return False
        try:
            if not known.uid or known.metadata != wanted:
                live = await self._apply(f"{collection}/{name}", metadata, names.METADATA_MANAGER)
                known.uid, known.metadata = live["metadata"]["uid"], digest(owned_metadata(live))
            if status is not None and known.status != wanted_status:
                await self._put_status(collection, metadata, {**status, **(volatile or {})})
                known.status = wanted_status
        except ApiError as error:
            if error.code == NOT_FOUND:
                # Removed by somebody between our two writes, or unnoticed before, and made anew with the next try; or
                # the API server doesn't know the kind at all.
                self._known.pop(key, None)
                raise
            if not error.of_object:
                raise
            known.refused = wanted + wanted_status
            log.warning("the API server does not take an object; it is tried again when it changes", error=str(error))
            return False
        known.refused = ""
        return True

    async def put_status(self, collection: str, live: Object, status: Object) -> bool:
        """Make the status of an object of somebody else be this; True when it was written. Raises ApiError."""
        name = live["metadata"]["name"]
        known = self._known.setdefault((collection, name), Known(live["metadata"]["uid"]))
        wanted = digest(status)
        if wanted in (known.status, known.refused):
            self._unchanged += 1
            return False
        try:
            await self._put_status(collection, live, status)
        except ApiError as error:
            if error.code == NOT_FOUND:
                self._known.pop((collection, name), None)
                return False
            if not error.of_object:
                raise
            known.refused = wanted
            log.warning("the API server does not take a status; it is tried again when it changes", error=str(error))
            return False
        known.status, known.refused = wanted, ""
        return True

    async def remove(self, collection: str, name: str) -> None:
        """Remove an object that we made; another of its name stays. Raises ApiError."""
        known = self._known.pop((collection, name), None)
        if known is None or not known.uid:
            return
        await self._paced()
        try:
            await self._client.delete(f"{collection}/{name}", uid=known.uid)
        except ApiError as error:
            if error.code != CONFLICT:
                self._known[(collection, name)] = known
                raise

    def statistics(self) -> ApplierStatistics:
        """Counters since the start."""
        return ApplierStatistics(
            writes_total=self._writes,
            unchanged_total=self._unchanged,
            conflicts_total=self._conflicts,
            refused=sum(bool(known.refused) for known in self._known.values()),
            known=len(self._known),
        )

    # --- inside

    async def _put_status(self, collection: str, metadata: Object, status: Object) -> None:
        body = {
            "apiVersion": metadata["apiVersion"],
            "kind": metadata["kind"],
            "metadata": {"name": metadata["metadata"]["name"]},
            "status": status,
        }
        await self._apply(f"{collection}/{metadata['metadata']['name']}/status", body, names.STATUS_MANAGER)

    async def _apply(self, path: str, body: Object, manager: str) -> Object:
        """Fields of ours that another has taken are told and taken back: each has one owner."""
        await self._paced()
        try:
            return await self._client.apply(path, body, manager=manager, force=False)
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            self._conflicts += 1
            log.warning("fields of the aggregator were changed by another and are taken back", error=str(error))
        await self._paced()
        return await self._client.apply(path, body, manager=manager, force=True)

    async def _paced(self) -> None:
        self._writes += 1
        if (pause := self._pace.take()) > 0:
            await asyncio.sleep(pause)


def owned_metadata(object_: Object) -> Object:
    """Of an object's metadata what is the aggregator's: some labels and annotations, and owners."""
    metadata = object_["metadata"]
    found: Object = {}
    for part in ("labels", "annotations"):
        ours = {
            key: value
            for key, value in (metadata.get(part) or {}).items()
            if key in _OUR_KEYS or key.startswith(derive.POOL_LABEL)
        }
        if ours:
            found[part] = ours
    if metadata.get("ownerReferences"):
        found["ownerReferences"] = metadata["ownerReferences"]
    return found


def owned_status(object_: Object) -> Object:
    """A status without when the node was last heard of."""
    status = dict(object_.get("status") or {})
    hypervisor = status.get("hypervisorStatus")
    if hypervisor:
        status["hypervisorStatus"] = {key: value for key, value in hypervisor.items() if key != "lastHeartbeatTime"}
    return status


def digest(content: Object | None) -> str:
    """Equal for equal content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
