"""The ConfigMap that represents a run: read by name, decoded to a spec, and used as owner of all other objects."""

from __future__ import annotations

from typing import Any

from l2rtui.backends.common import stored_spec
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
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
