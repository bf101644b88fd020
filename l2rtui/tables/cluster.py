"""Nodes, slots, pods and runs: their columns in the CLI and in the app.

Rows of the app are made in ``ui.widgets``, from values instead of documents: a cluster has ten thousand pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.domain.quantity import age, format_bytes, format_cores
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.filter_language import GPU_COLUMNS, gpu_cells
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, Document, TableColumn, View, app_only

_SLOT_LEVELS = {
    "free": Level.OK,
    "unknown": Level.WARN,
    "off": Level.DONE,
    "failed": Level.BAD,
    "reserved": Level.WAIT,
}


def age_of(document: Document) -> str | None:
    """Return the age of an object; None if its time is unknown."""
    if document["created"] is None:
        return None
    return format_age(time.time() - datetime.fromisoformat(document["created"]).timestamp())


def format_age(seconds: float) -> str:
    """Write an age as the app does, but below a minute to the second."""
    return age(seconds, second_step=1)


def _state_of_node(document: Document) -> str:
    parts = ["Ready" if document["ready"] else "NotReady"]
    if not document["schedulable"]:
        parts.append("cordoned")
    if not document["use_known"]:
        parts.append("use unknown")
    return ",".join(parts)


def _level_of_node(document: Document) -> Level:
    return Level.OK if _state_of_node(document) == "Ready" else Level.WARN if document["ready"] else Level.BAD


def _used(document: Document) -> str:
    cores, used = format_cores(document["cpu_cores"]), document["cpu_used"]
    return cores if used is None else f"{used:.1f}/{cores}"


def _memory(document: Document) -> str:
    total, used = format_bytes(document["memory_bytes"]), document["memory_used_bytes"]
    return total if used is None else f"{format_bytes(used)}/{total}"


def _gpus(document: Document) -> str:
    devices = [gpu["device"] for gpu in document["gpus"]]
    return str(len(devices)) if devices != ["cpu"] else "cpu"


def _by_plugin(document: Document) -> str:
    """Free and total units offered by device plugins, ``gpu 7/8``; unhealthy units are named."""
    parts = []
    for item in document["resources"]:
        if item["capacity"]:
            name = item["resource"].removeprefix("nvidia.com/")
            ill = item["capacity"] - item["allocatable"]
            parts.append(f"{name} {item['free']}/{item['allocatable']}{f' ({ill} unhealthy)' if ill > 0 else ''}")
    return ", ".join(parts)


def _cpu_slots(document: Document) -> str:
    """Free and all CPU slots of a GPU node; empty if SLOTS and FREE already count CPU slots."""
    return f"{document['cpu_free']}/{document['cpu_slots']}" if _gpus(document) != "cpu" else ""


def _holders(document: Document) -> str:
    """Pod of a slot, and the number of further pods if it is over-committed."""
    first, *others = document["pods"] or [""]
    return f"{first} +{len(others)}" if others else first


def _of_each(
    devices: str, field: str, text: Callable[[Any], str], unknown: str | None = None
) -> Callable[[Document], str | None]:
    """Return the function that reads a value of each device: ``-`` for an unknown one, ``unknown`` if all are."""

    def read(document: Document) -> str | None:
        values = [device[field] for device in document.get(devices, ())]
        if all(value is None for value in values):
            return unknown
        return " ".join("-" if value is None else text(value) for value in values)

    return read


_gpu_use = _of_each("gpus", "use_percent", "{:.0f}".format, "")
_gpu_memory = _of_each("gpus", "memory_used_bytes", format_bytes, "")
_share_percent = _of_each("gpu_shares", "use_percent", "{:.0f}".format)
_share_memory = _of_each("gpu_shares", "memory_bytes", format_bytes)


def bytes_of(field: str) -> Callable[[Document], str | None]:
    """Return the function that reads a number of bytes of a document; None if unknown."""
    return lambda document: None if document[field] is None else format_bytes(document[field])


def percent_of(field: str) -> Callable[[Document], str | None]:
    """Return the function that reads a share of a document; None if unknown."""
    return lambda document: None if document[field] is None else f"{document[field]:.0f}"


def _models(document: Document) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in document["gpus"] if gpu["model"]))


def _gpu_facts(gpus: Iterable[Document]) -> Iterable[tuple[int, str, int]]:
    """Return free slots, model and memory of the GPUs of a node, without its CPU."""
    of_gpus = (gpu for gpu in gpus if gpu["device"] != "cpu")
    return ((gpu["free"], sanitize(gpu["model"] or ""), gpu["memory_bytes"] or 0) for gpu in of_gpus)


def _gpu_of_slot(document: Document) -> tuple[int, str, int]:
    return document["gpu_free"], sanitize(document["gpu_model"] or ""), document["gpu_memory_bytes"] or 0


def slots_text(document: Document) -> str:
    """Return the slots of a pod."""
    return " ".join(document["slots"])


def sets_text(document: Document) -> str:
    """Return the sets of a run with their ready replicas: ``w 3/4``."""
    return " ".join(f"{row['set']} {row['ready']}/{row['replicas']}" for row in document["sets"])


def _level(document: Document) -> Level:
    return Level(document["level"])


def _created_column(rank: int) -> Column[Document]:
    """Return the column of ages; its rank in a narrow table of the app differs."""
    app = TableColumn("age", "age", most=6, right=True, rank=rank, is_age=True)
    return Column("AGE", age_of, is_number=True, is_volatile=True, app=app)


NODES: Final[View[Document]] = View(
    "node",
    (
        Column("NODE", "node", app=TableColumn("node", "node", most=40)),
        Column("STATE", _state_of_node, level=_level_of_node, app=TableColumn("state", "state", most=14)),
        Column("GPUS", _gpus, is_number=True, app=TableColumn("gpus", "GPUs", most=5, right=True, rank=2)),
        Column("SLOTS", "slots", is_number=True, app=TableColumn("slots", "slots", most=7, right=True, rank=1)),
        Column("FREE", "free", is_number=True, app=TableColumn("free", "free", most=6, right=True)),
        app_only(TableColumn("busy", "busy", most=6, right=True, rank=3)),
        app_only(TableColumn("failing", "failing", most=7, right=True, rank=3)),
        app_only(TableColumn("unknown", "unknown", most=7, right=True, rank=6)),
        Column("BY PLUGIN", _by_plugin),
        Column("CPU", _used, is_number=True),
        Column("MEMORY", _memory, is_number=True),
        Column("CPU SLOTS", _cpu_slots, is_number=True),
        Column("PODS", "pods", is_number=True, app=TableColumn("pods", "pods", most=5, right=True, rank=2)),
        _created_column(3),
        # The app shows shares in percent, and totals in columns of their own.
        app_only(TableColumn("cpu", "cpu", most=5, right=True, rank=2)),
        app_only(TableColumn("mem", "mem", most=5, right=True, rank=2)),
        Column("GPU%", _gpu_use, is_wide=True, app=TableColumn("gpu%", "GPU %", most=5, right=True, rank=2)),
        Column(
            "GPU MEMORY",
            _gpu_memory,
            is_wide=True,
            app=TableColumn("gpu mem", "GPU mem", most=7, right=True, rank=4),
        ),
        app_only(TableColumn("cores", "cores", most=6, right=True, rank=5)),
        app_only(TableColumn("memory", "memory", most=8, right=True, rank=5)),
        Column("IP", "ip", is_wide=True),
        Column("MODEL", _models, is_wide=True, app=TableColumn("model", "model", most=28, rank=4)),
        app_only(TableColumn("taints", "taints", most=40, rank=7)),
        Column("MESSAGE", "message", is_wide=True, app=TableColumn("note", "note", most=60, rank=8)),
    ),
    GPU_COLUMNS,
    lambda document: gpu_cells(_gpu_facts(document["gpus"])),
)
SLOTS = View(
    "id",
    (
        Column("SLOT", "id"),
        Column("DEVICE", "device"),
        Column("STATE", "state", level=lambda document: _SLOT_LEVELS.get(document["state"])),
        Column("OWNER", "owner"),
        Column("RUN", "run"),
        Column("SET", "set"),
        Column("POD", _holders),
        Column("RESERVED", "reserved_by"),
        Column("UNTIL", "reserved_until", is_wide=True),
        Column("NOTE", "reserved_note", is_wide=True),
        Column("GPU%", percent_of("gpu_use_percent"), is_wide=True, is_number=True),
        Column("GPU MEMORY", bytes_of("gpu_memory_used_bytes"), is_wide=True, is_number=True),
    ),
    GPU_COLUMNS,
    lambda document: gpu_cells([_gpu_of_slot(document)] if document["kind"] == "gpu" else ()),
)
RESERVED = View(
    "id",
    (
        Column("SLOT", "id"),
        Column("STATE", "state", level=lambda document: _SLOT_LEVELS.get(document["state"])),
        Column("RESERVED", "reserved_by"),
        Column("UNTIL", "reserved_until"),
        Column("NOTE", "reserved_note"),
        Column("POD", _holders),
    ),
)


def _ready_containers(pod: Document) -> str:
    """Return the ready and total containers of a pod, ``1/2``, as in kubectl."""
    return f"{pod.get('containers_ready', int(pod['ready']))}/{pod.get('containers', 1)}"


def _ready_replicas(run: Document) -> str:
    """Return the replicas that are ready or have succeeded, and those that the spec wants, ``3/4``."""
    replicas = sum(part["replicas"] for part in run["sets"])
    return f"{run['ready'] + run['finished']}/{max(replicas, run['ready'] + run['finished'])}"


_NAMESPACE: Final = Column("NAMESPACE", "namespace", is_wide=True)


def with_namespaces(view: View, documents: Sequence[Document]) -> View:
    """Return the view with its column of namespaces second in every width if the documents differ in it."""
    if _NAMESPACE not in view.columns or len({document["namespace"] for document in documents}) < 2:
        return view
    first, *others = (column for column in view.columns if column is not _NAMESPACE)
    return replace(view, columns=(first, replace(_NAMESPACE, is_wide=False), *others))


PODS: Final[View[Document]] = View(
    "pod",
    (
        Column("POD", "pod", app=TableColumn("pod", "pod", most=40)),
        app_only(TableColumn("status", "status", most=22)),
        app_only(TableColumn("mismatch", "mismatch", most=60, rank=1)),
        app_only(TableColumn("set", "set", most=14, rank=6)),
        app_only(TableColumn("role", "role", most=9, rank=4)),
        _NAMESPACE,
        # A slot is ambiguous without its node; most pod names contain the role.
        Column("NODE", "node", app=TableColumn("node", "node", most=20, rank=1)),
        Column("SLOTS", slots_text, is_wide=True, app=TableColumn("slot", "slot", most=12, rank=1)),
        Column("OWNER", "owner"),
        Column("RUN", "run"),
        Column("ROLE", "role"),
        Column("STATUS", "status", level=_level),
        Column("READY", _ready_containers, is_number=True),
        Column(
            "RESTARTS",
            "restarts",
            is_number=True,
            app=TableColumn("restarts", "restarts", most=8, right=True, rank=3),
        ),
        app_only(TableColumn("exit", "exit", most=5, right=True, rank=5)),
        _created_column(2),
        # A pod's rate comes from its own record: the rates of the workers add up to roughly the learner's.
        app_only(TableColumn("rate", "steps/s", most=10, right=True, rank=2)),
        app_only(TableColumn("sim", "simulator", most=18, rank=3)),
        app_only(TableColumn("fps", "fps", most=6, right=True, rank=5)),
        app_only(TableColumn("rank", "rank", most=9, right=True, rank=2)),
        app_only(TableColumn("round", "round", most=6, right=True, rank=3)),
        app_only(TableColumn("step", "step", most=14, rank=3)),
        app_only(TableColumn("gpu_busy", "GPU %", most=8, right=True, rank=5)),
        app_only(TableColumn("gpu_memory", "GPU mem", most=11, right=True, rank=6)),
        app_only(TableColumn("run", "run", most=24, rank=7)),
        app_only(TableColumn("owner", "owner", most=12, rank=8)),
        app_only(TableColumn("seed", "seed", most=6, right=True, rank=9)),
        Column("IP", "ip", is_wide=True),
        Column(
            "PID", "pid", is_wide=True, is_number=True, app=TableColumn("pid", "pid", most=8, right=True, rank=10)
        ),
        Column("GPU%", _share_percent, is_wide=True, is_number=True),
        Column("GPU MEMORY", _share_memory, is_wide=True, is_number=True),
        Column("WHAT", "sentence", is_wide=True),
        Column("MISMATCH", lambda document: "; ".join(document["mismatches"]), is_wide=True),
    ),
)
POD_COLUMN_FIELDS: Final = {
    "mismatch": "mismatch",
    "rate": "rate",
    "sim": "sim",
    "fps": "sim",
    "rank": "rank",
    "round": "round",
    "step": "step",
    "gpu_busy": "share",
    "gpu_memory": "share",
}
"""Columns that the app shows as soon as one pod has their field: of metric records, of GPUs, of its place."""
RUNS: Final[View[Document]] = View(
    "run",
    (
        Column("RUN", "run", app=TableColumn("run", "run", most=40)),
        _NAMESPACE,
        Column("OWNER", "owner"),
        Column("KIND", "kind", is_wide=True),
        Column("SEED", "seed", is_number=True),
        # The grid writes only this letter into its slots, and its legend often has no room for the names.
        app_only(TableColumn("letter", "", most=1, rank=3)),
        Column("STATE", "state", level=_level, app=TableColumn("state", "state", most=16)),
        Column(
            "LEARNING",
            "learning",
            level=lambda document: Level(document["learning_level"]),
            app=TableColumn("learning", "learning", most=10),
        ),
        app_only(TableColumn("return", "return", most=8, right=True, rank=1)),
        app_only(TableColumn("trend", "over time", most=12, rank=3)),
        Column(
            "READY", _ready_replicas, is_number=True, app=TableColumn("ready", "pods", most=7, right=True, rank=1)
        ),
        # Steps of a job, size of a process group: shown if some run reports it.
        app_only(TableColumn("at", "at", most=28, rank=1)),
        app_only(TableColumn("rate", "steps/s", most=8, right=True, rank=2)),
        app_only(TableColumn("updates", "updates/s", most=9, right=True, rank=5)),
        app_only(TableColumn("policy", "policy", most=11, right=True, rank=6)),
        app_only(TableColumn("lag", "lag", most=6, right=True, rank=7)),
        app_only(TableColumn("steps", "env steps", most=14, right=True, rank=10)),
        app_only(TableColumn("trial", "trial", most=6, right=True, rank=6)),
        app_only(TableColumn("values", "values", most=36, rank=6)),
        app_only(TableColumn("seed", "seed", most=6, right=True, rank=8)),
        # Mainly for filters: the name of a run starts with it.
        app_only(TableColumn("experiment", "experiment", most=24, rank=12)),
        app_only(TableColumn("owner", "owner", most=12, rank=11)),
        _created_column(4),
        Column("SETS", sets_text, is_wide=True),
        Column("WHY", "learning_reason", is_wide=True, is_volatile=True),
        Column("WHAT", "message", is_wide=True),
    ),
)
