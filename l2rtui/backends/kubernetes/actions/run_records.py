"""History records in the ConfigMaps of their runs, under ``binaryData``: created, read and removed with them.

Watches of runs decode only ``data``, so records cost them no memory.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from l2rtui.backends.base import RunPlace
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.run_object import is_being_destroyed
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError


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
            return error.reason == "NotFound"  # a proxy's own 404 has no reason of Kubernetes
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
