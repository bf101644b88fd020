"""The ConfigMap that represents a run: decoded to a spec, owner of all other objects, store of history records.

Records are under ``binaryData``. Watches of runs decode only ``data``, so records cost them no memory.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from l2rtui.backends.base import RunPlace
from l2rtui.backends.common import stored_spec
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import parse_pins
from l2rtui.domain.plan import NO_PLACES, PlannedPlaces
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError
from runtime.base import bounded_json

Manifest = dict[str, Any]


async def read_run(api: Api, namespace: str, run: str) -> Manifest:
    """Return the ConfigMap of a run; NotFoundError if it does not exist."""
    if (config_map := await api.find("ConfigMap", namespace, labels.run_object(run))) is None:
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
    return config_map


def decode_spec(config_map: Manifest) -> RunSpec:
    """Decode the spec in a run's ConfigMap.

    Raises:
        BackendError: It has no spec, or a spec of another version of l2rtui.
    """
    try:
        return stored_spec.decode((config_map.get("data") or {})[labels.SPEC_KEY])
    except (KeyError, ValueError, TypeError) as error:
        name = (config_map.get("metadata") or {}).get("name", "")
        raise BackendError(f"ConfigMap {name} holds no spec that this version reads: {error}.") from error


def spec_text(config_map: Manifest) -> str:
    """Return the spec in a run's ConfigMap as text; empty without one."""
    # Not decoded: a destroy must also work for a run whose spec this version cannot read.
    data = config_map.get("data")
    text = data.get(labels.SPEC_KEY, "") if isinstance(data, dict) else ""
    return text if isinstance(text, str) else ""


def planned_places(config_map: Manifest) -> PlannedPlaces:
    """Return the places of a run's pods from its ConfigMap; empty if they cannot be read."""
    text = (config_map.get("data") or {}).get(labels.PLAN_KEY, "")
    pins = ((config_map.get("metadata") or {}).get("annotations") or {}).get(labels.PINS, "")
    try:
        rows = bounded_json.loads(text) if text else []
        slots = {str(row["pod"]): tuple(map(SlotId.parse, row["slots"])) for row in rows}
        return PlannedPlaces(slots, parse_pins(pins) if pins else ())
    except (ValueError, TypeError, KeyError):  # edited by hand, or written by a later version
        return NO_PLACES


def is_being_destroyed(meta: Manifest) -> bool:
    """Return whether the ConfigMap with this metadata is being deleted, or a destroy of its run has begun."""
    return bool(meta.get("deletionTimestamp")) or labels.TERMINATING in (meta.get("annotations") or {})


def owner_reference(config_map: Manifest) -> Manifest:
    """Return the owner reference by which the garbage collector removes an object with its run."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": config_map["metadata"]["name"],
        "uid": config_map["metadata"]["uid"],
        # A foreground deletion of the ConfigMap waits for the object, so the run stays visible until all is gone.
        "blockOwnerDeletion": True,
    }


class KubernetesRecords:
    """Records of all visible runs.

    Args:
        api: Returns the open connection.
    """

    def __init__(self, api: Callable[[], Awaitable[Api]]) -> None:
        self._api = api

    async def list(self) -> Mapping[RunPlace, bytes]:
        """Return the records of all visible runs that have one; invalid records are left out."""
        api = await self._api()
        namespaces = await api.visible_namespaces("ConfigMap")
        items = [item for name in namespaces for item in await api.list("ConfigMap", name, labels=labels.MANAGED)]
        return {place: record for item in items if (record := _record(item)) for place in [_place(item)]}

    async def put(self, place: RunPlace, record: bytes) -> bool:
        """Attach a record to its run, replacing an earlier one.

        Returns:
            False if the run is gone or being destroyed, or if another launch has its name.

        Raises:
            ApiError: The server refuses, or does not respond.
        """
        api = await self._api()
        name, namespace = labels.run_object(place.run), place.namespace or api.namespace
        config_map = await api.find("ConfigMap", namespace, name)
        if config_map is None or _place(config_map).run_id != place.run_id:
            return False
        meta = config_map["metadata"]
        if is_being_destroyed(meta):
            return False
        text = base64.b64encode(record).decode()
        # With the uid: between the two requests another launch may have taken the name.
        body = {"metadata": {"uid": meta["uid"]}, "binaryData": {labels.RECORD_KEY: text}}
        try:
            await api.patch("ConfigMap", namespace, name, body)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                return False
            raise
        return True

    async def is_gone(self, place: RunPlace) -> bool:
        """Return True if the server says that a run's ConfigMap is not there, or that of another launch is."""
        api = await self._api()
        namespace = place.namespace or api.namespace
        try:
            config_map = await api.read("ConfigMap", namespace, labels.run_object(place.run))
        except ApiError as error:
            return error.is_not_found
        return _place(config_map).run_id != place.run_id


def _place(config_map: Mapping[str, Any]) -> RunPlace:
    meta = config_map.get("metadata") or {}
    own = meta.get("labels") or {}
    return RunPlace(own.get(labels.RUN, ""), own.get(labels.RUN_ID, ""), meta.get("namespace", ""))


def _record(config_map: Mapping[str, Any]) -> bytes:
    text = (config_map.get("binaryData") or {}).get(labels.RECORD_KEY)
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error:  # not written by this program
        return b""
