"""Tables of documents: columns, colours by meaning, and the name of each object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from l2rtui.domain.quantity import age, format_bytes, format_cores
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.selection.filter_language import GPU_COLUMNS, gpu_cells
from l2rtui.domain.status import Level
from l2rtui.tables.column import Column, Document, View

_SLOT_LEVELS = {
    "free": Level.OK,
    "unknown": Level.WARN,
    "off": Level.DONE,
    "failed": Level.BAD,
    "reserved": Level.WAIT,
}
_WEIGHT_LEVELS = {"ok": Level.OK, "warning": Level.WARN, "refusal": Level.BAD}
_STEP_LEVELS = {"done": Level.OK, "skipped": Level.DONE, "running": Level.WAIT, "failed": Level.BAD}


def _age(document: Document) -> str | None:
    if document["created"] is None:
        return None
    return format_age(time.time() - datetime.fromisoformat(document["created"]).timestamp())


def _since(document: Document) -> str | None:
    return _age({"created": document["since"]})


def format_age(seconds: float) -> str:
    """Write an age as the app does, but below a minute to the second."""
    return age(seconds, second_step=1)


def _record_age(document: Document) -> str | None:
    seconds = document["age_seconds"]
    return None if seconds is None else format_age(seconds)


def _while_live(field: str) -> Callable[[Document], object]:
    """Return a rate, or None if its record is old or its learner no longer exists."""
    return lambda document: document[field] if document["is_live"] else None


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


def _gpu_use(document: Document) -> str:
    percents = [gpu["use_percent"] for gpu in document["gpus"]]
    if all(percent is None for percent in percents):
        return ""
    return " ".join("-" if percent is None else f"{percent:.0f}" for percent in percents)


def _gpu_memory(document: Document) -> str:
    used = [gpu["memory_used_bytes"] for gpu in document["gpus"]]
    if all(count is None for count in used):
        return ""
    return " ".join("-" if count is None else format_bytes(count) for count in used)


def _share_percent(document: Document) -> str | None:
    """Share of each GPU that a pod uses; ``-`` for an unknown one if another is known."""
    percents = [share["use_percent"] for share in document.get("gpu_shares", ())]
    if all(percent is None for percent in percents):
        return None
    return " ".join("-" if percent is None else f"{percent:.0f}" for percent in percents)


def _share_memory(document: Document) -> str | None:
    sizes = [share["memory_bytes"] for share in document.get("gpu_shares", ())]
    if all(size is None for size in sizes):
        return None
    return " ".join("-" if size is None else format_bytes(size) for size in sizes)


def _bytes_of(field: str) -> Callable[[Document], str | None]:
    """Return the function that reads a number of bytes of a document; None if unknown."""
    return lambda document: None if document[field] is None else format_bytes(document[field])


def _percent_of(field: str) -> Callable[[Document], str | None]:
    return lambda document: None if document[field] is None else f"{document[field]:.0f}"


def _models(document: Document) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in document["gpus"] if gpu["model"]))


def _gpu_facts(gpus: Iterable[Document]) -> Iterable[tuple[int, str, int]]:
    """Return free slots, model and memory of the GPUs of a node, without its CPU."""
    of_gpus = (gpu for gpu in gpus if gpu["device"] != "cpu")
    return ((gpu["free"], sanitize(gpu["model"] or ""), gpu["memory_bytes"] or 0) for gpu in of_gpus)


def _gpu_of_slot(document: Document) -> tuple[int, str, int]:
    return document["gpu_free"], sanitize(document["gpu_model"] or ""), document["gpu_memory_bytes"] or 0


def _slots(document: Document) -> str:
    return " ".join(document["slots"])


def _sets(document: Document) -> str:
    return " ".join(f"{row['set']} {row['ready']}/{row['replicas']}" for row in document["sets"])


def _counted(receipt: Document) -> str | None:
    return ", ".join(f"{number} {kind}" for kind, number in receipt["counted"].items()) or None


def _level(document: Document) -> Level:
    return Level(document["level"])


NODES = View(
    "node",
    (
        Column("NODE", "node"),
        Column("STATE", _state_of_node, level=_level_of_node),
        Column("GPUS", _gpus, is_number=True),
        Column("SLOTS", "slots", is_number=True),
        Column("FREE", "free", is_number=True),
        Column("BY PLUGIN", _by_plugin),
        Column("CPU", _used, is_number=True),
        Column("MEMORY", _memory, is_number=True),
        Column("CPU SLOTS", _cpu_slots, is_number=True),
        Column("PODS", "pods", is_number=True),
        Column("AGE", _age, is_number=True, is_volatile=True),
        Column("GPU%", _gpu_use, is_wide=True),
        Column("GPU MEMORY", _gpu_memory, is_wide=True),
        Column("IP", "ip", is_wide=True),
        Column("MODEL", _models, is_wide=True),
        Column("MESSAGE", "message", is_wide=True),
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
        Column("GPU%", _percent_of("gpu_use_percent"), is_wide=True, is_number=True),
        Column("GPU MEMORY", _bytes_of("gpu_memory_used_bytes"), is_wide=True, is_number=True),
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


PODS = View(
    "pod",
    (
        Column("POD", "pod"),
        _NAMESPACE,
        Column("NODE", "node"),
        Column("SLOTS", _slots, is_wide=True),
        Column("OWNER", "owner"),
        Column("RUN", "run"),
        Column("ROLE", "role"),
        Column("STATUS", "status", level=_level),
        Column("READY", _ready_containers, is_number=True),
        Column("RESTARTS", "restarts", is_number=True),
        Column("AGE", _age, is_number=True, is_volatile=True),
        Column("IP", "ip", is_wide=True),
        Column("PID", "pid", is_wide=True, is_number=True),
        Column("GPU%", _share_percent, is_wide=True, is_number=True),
        Column("GPU MEMORY", _share_memory, is_wide=True, is_number=True),
        Column("WHAT", "sentence", is_wide=True),
        Column("MISMATCH", lambda document: "; ".join(document["mismatches"]), is_wide=True),
    ),
)
RUNS = View(
    "run",
    (
        Column("RUN", "run"),
        _NAMESPACE,
        Column("OWNER", "owner"),
        Column("KIND", "kind", is_wide=True),
        Column("SEED", "seed", is_number=True),
        Column("STATE", "state", level=_level),
        Column("LEARNING", "learning", level=lambda document: Level(document["learning_level"])),
        Column("READY", _ready_replicas, is_number=True),
        Column("AGE", _age, is_number=True, is_volatile=True),
        Column("SETS", _sets, is_wide=True),
        Column("WHY", "learning_reason", is_wide=True, is_volatile=True),
        Column("WHAT", "message", is_wide=True),
    ),
)
LAUNCHED = View(
    "run",
    (
        Column("RUN", "run"),
        Column("SEED", "seed", is_number=True),
        Column("PODS", lambda document: len(document["pods"]), is_number=True),
        Column("SETS", _sets),
    ),
)
QUEUE = View(
    "run",
    (
        Column("POSITION", "position", is_number=True),
        Column("RUN", "run"),
        Column("WAITS FOR", "waits_for", is_volatile=True),
        Column("SINCE", _since, is_number=True, is_volatile=True),
    ),
)
PLANNED = View(
    "pod",
    (
        Column("POD", "pod"),
        Column("RUN", "run"),
        Column("ROLE", "role"),
        Column("NODE", "node"),
        Column("SLOTS", _slots),
        Column("COMMAND", lambda document: " ".join(document["command"]), is_wide=True),
    ),
)
FINDINGS = View(
    "subject",
    (
        Column("", "weight", level=lambda document: _WEIGHT_LEVELS[document["weight"]]),
        Column("SUBJECT", "subject"),
        Column("WHAT", lambda document: ". ".join(filter(None, (document["sentence"], document["hint"])))),
    ),
)
DESTROYED_RUNS = View(
    "name",
    (
        Column("RUN", "name"),
        Column("EXPERIMENT", "experiment"),
        Column("SEED", "seed", is_number=True),
        Column("PODS", "pods", is_number=True),
        Column("GONE", lambda document: _age({"created": document["destroyed"]}), is_volatile=True),
    ),
)
TEMPLATES = View("name", (Column("NAME", "name"), Column("ABOUT", "about"), Column("FILE", "path", is_wide=True)))
SCALED = View(
    lambda document: f"{document['run']}/{document['set']}",
    (
        Column("RUN", "run"),
        Column("SET", "set"),
        Column("REPLICAS", "replicas", is_number=True),
        Column("ADDED", lambda document: " ".join(document["added"])),
        Column("REMOVED", lambda document: " ".join(document["removed"])),
    ),
)
RECEIPTS = View(
    "run",
    (
        Column("RUN", "run"),
        Column("OBJECTS", "objects", is_number=True),
        Column("LEFT", "left", is_number=True, level=lambda document: Level.BAD if document["left"] else None),
        Column("SECONDS", "seconds", is_number=True),
        Column("KEPT", "kept"),
        Column("COUNTED", _counted, is_wide=True),
        Column("NOT SEEN", "not_seen", is_wide=True),
    ),
)
METRICS = View(
    "run",
    (
        Column("RUN", "run"),
        Column("STEPS", "env_steps", is_number=True),
        Column("UPDATES", "updates", is_number=True),
        Column("VERSION", "policy_version", is_number=True),
        Column("LAG", "policy_lag", is_number=True),
        Column("RETURN", "return", is_number=True),
        Column("TRAINING", "mean_return", is_number=True, is_wide=True),
        Column("EVAL", "eval_return", is_number=True, is_wide=True),
        Column("PROGRESS", "eval_progress", is_number=True),
        Column("STEPS/S", _while_live("env_steps_per_second"), is_number=True),
        Column("UPDATES/S", _while_live("updates_per_second"), is_number=True),
        Column(
            "AGE",
            _record_age,
            is_number=True,
            level=lambda row: None if row["is_live"] else Level.WARN,
            is_volatile=True,
        ),
        Column("WORKERS", "workers", is_number=True),
        Column("GPU%", _percent_of("gpu_percent"), is_number=True),
        Column("TIME", "time", is_wide=True),
        Column("DEVICE", "device", is_wide=True),
        Column("GPU MEMORY", _bytes_of("gpu_memory_bytes"), is_wide=True, is_number=True),
        Column("RESERVED", _bytes_of("gpu_reserved_bytes"), is_wide=True, is_number=True),
    ),
)
STEPS = View(
    "step",
    (
        Column("STEP", "step"),
        Column("STATE", "state", level=lambda document: _STEP_LEVELS.get(document["state"])),
        Column("EXIT", "exit_code", is_number=True),
        Column("SECONDS", "seconds", is_number=True),
        Column("WHAT", "detail"),
    ),
)
ELASTIC = View(
    "pod",
    (
        Column("POD", "pod"),
        Column("STATE", "state"),
        Column("RANK", "rank", is_number=True),
        Column("WORLD", "world_size", is_number=True),
        Column("ROUND", "round", is_number=True),
        Column("EPOCH", "epoch", is_number=True),
        Column("STEP", "step", is_number=True),
        Column("LOSS", "loss", is_number=True),
        Column("ACCURACY", "accuracy", is_number=True),
        Column("FROM STEP", "resumed_step", is_wide=True, is_number=True),
        Column("OF NODE", "resumed_from", is_wide=True),
    ),
)
PEERS = View(
    "pod",
    (
        Column("POD", "pod"),
        Column("ROLE", "role"),
        Column("INDEX", "index", is_number=True),
        Column("GLOBAL STEP", "global_step", is_number=True),
        Column("LOCAL STEP", "local_step", is_number=True),
        Column("LOSS", "loss", is_number=True),
    ),
)
ACCURACY = View("class", (Column("CLASS", "class"), Column("ACCURACY", "accuracy", is_number=True)))
