"""Volumes and their files, simulators, events and leaks: columns and JSON documents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import to_builtins

from l2rtui.domain.quantity import format_bytes, rfc3339
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, TableColumn, View, app_only, both

if TYPE_CHECKING:
    from l2rtui.domain.receipt import Leak
    from l2rtui.domain.simulator import Simulator
    from l2rtui.domain.status import KubeEvent
    from l2rtui.domain.volume import FileEntry, Volume


# --- volumes ---------------------------------------------------------------------------------------------------
def volume_document(volume: Volume) -> dict[str, Any]:
    """Return the JSON form of a volume."""
    document: dict[str, Any] = to_builtins(volume)
    return document


def is_bound(volume: Volume) -> bool:
    """Return True if pods can mount the volume."""
    return volume.phase == "Bound"


def _use(volume: Volume) -> str:
    return ", ".join(volume.mounted_by) or volume.reason


VOLUMES: Final[View[Volume]] = View(
    lambda volume: volume.name,
    (
        both("volume", lambda volume: volume.name, 40, header="NAME", key="name", style="strong"),
        both("size", lambda volume: volume.size_bytes, 8, is_number=True, text=format_bytes, cli_text=format_bytes),
        both("phase", lambda volume: volume.phase, 12, level=lambda row: Level.OK if is_bound(row) else Level.WARN),
        both("access", lambda volume: ",".join(volume.modes), 12),
        both("class", lambda volume: volume.storage_class, 16, 2, style="dim"),
        Column("MOUNTED BY", lambda volume: ",".join(volume.mounted_by)),
        Column("REASON", lambda volume: volume.reason),
        Column(
            "",
            _use,
            level=lambda volume: None if is_bound(volume) else Level.WARN,
            app=TableColumn("mounted", "mounted by", 200, style="dim"),
            is_app_only=True,
        ),
    ),
    document=volume_document,
)


def is_folder(entry: FileEntry) -> bool:
    """Return True if the entry is a folder."""
    return entry.kind == "folder"


def _changed(entry: FileEntry) -> str:
    return datetime.fromtimestamp(entry.changed, UTC).isoformat(timespec="seconds")


def file_document(entry: FileEntry) -> dict[str, Any]:
    """Return the JSON form of a file of a volume."""
    return {"path": entry.path, "kind": entry.kind, "size_bytes": entry.size, "changed": _changed(entry)}


FILES: Final[View[FileEntry]] = View(
    lambda entry: entry.path,
    (
        Column(
            "PATH",
            lambda entry: f"{entry.path}/" if is_folder(entry) else entry.path,
            app=TableColumn("name", "name", 72),
        ),
        Column(
            "SIZE",
            lambda entry: entry.size,
            False,
            True,
            text=format_bytes,
            app=TableColumn("size", "size", 10, True),
        ),
        Column("CHANGED", _changed, app=TableColumn("changed", "changed", 8, True)),
        Column("KIND", lambda entry: entry.kind, is_wide=True),
    ),
    document=file_document,
)


# --- simulators ------------------------------------------------------------------------------------------------
class SimulatorRow(NamedTuple):
    """A simulator and the name of its pod."""

    pod: str
    simulator: Simulator


_STATES: Final = {
    "ready": Level.OK,
    "starting": Level.WAIT,
    "stopped": Level.DONE,
    "lost": Level.WARN,
    "given up": Level.BAD,
}


def simulator_level(state: str) -> Level:
    """Return the level of a simulator's state; WARN for an unknown state."""
    return _STATES.get(state, Level.WARN)


def simulator_document(row: SimulatorRow) -> dict[str, Any]:
    """Return the JSON form of a simulator."""
    return {"pod": row.pod, **to_builtins(row.simulator)}


SIMULATORS: Final[View[SimulatorRow]] = View(
    lambda row: f"{row.pod}/{row.simulator.index}",
    (
        Column("POD", lambda row: row.pod),
        both(
            "no.", lambda row: row.simulator.index, 4, header="INDEX", key="index", is_number=True, style="strong"
        ),
        both("state", lambda row: row.simulator.state, 14, level=lambda row: simulator_level(row.simulator.state)),
        both(
            "restarts",
            lambda row: row.simulator.restarts,
            8,
            is_count=True,
            level=lambda row: Level.WARN if row.simulator.restarts else None,
            text=lambda number: str(number or ""),
        ),
        both("fps", lambda row: row.simulator.fps, 6, is_number=True, text=lambda fps: f"{round(fps):,}"),
        app_only(TableColumn("uptime", "up", 6, right=True)),
        both("kind", lambda row: row.simulator.kind, 12, 2, style="dim"),
        both(
            "last error",
            lambda row: row.simulator.error,
            400,
            header="ERROR",
            key="error",
            style="dim",
            level=lambda row: Level.WARN if row.simulator.error else None,
        ),
    ),
    document=simulator_document,
)


# --- events and leaks ------------------------------------------------------------------------------------------
def event_document(event: KubeEvent) -> dict[str, Any]:
    """Return the JSON form of an event."""
    return {
        "time": rfc3339(event.time),
        "level": event.level,
        "reason": event.reason,
        "object": event.object,
        "namespace": event.namespace,
        "message": event.message,
        "count": event.count,
    }


def is_warning(event: KubeEvent) -> bool:
    """Return True if the event reports a problem."""
    return event.level == "Warning"


EVENTS: Final[View[KubeEvent]] = View(
    lambda event: event.object,
    (
        Column("TIME", lambda event: rfc3339(event.time)),
        app_only(TableColumn("age", "age", 6, right=True, is_age=True)),
        # In a narrow table the level is dropped first: a reason without its object is useless.
        both(
            "level",
            lambda event: event.level,
            10,
            1,
            level=lambda row: Level.WARN if is_warning(row) else None,
            style="dim",
        ),
        both("reason", lambda event: event.reason, 26),
        both("object", lambda event: event.object, 48, style="strong"),
        Column("NAMESPACE", lambda event: event.namespace, is_wide=True),
        both("count", lambda event: event.count, 5, 2, is_number=True, style="dim"),
        both("message", lambda event: event.message, 400),
    ),
    document=event_document,
)


def leak_document(leak: Leak) -> dict[str, Any]:
    """Return the JSON form of an object that a deleted run has left behind."""
    return {"run": leak.run, "kind": leak.kind, "name": leak.name, "reason": leak.reason}


LEAKS: Final[View[Leak]] = View(
    lambda leak: leak.name,
    (
        both("run", lambda leak: leak.run, 40, style="strong"),
        both("kind", lambda leak: leak.kind, 24),
        both("name", lambda leak: leak.name, 60),
        both("reason", lambda leak: leak.reason, 400, style="warn"),
    ),
    document=leak_document,
)
