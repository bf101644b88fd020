"""How documents look as tables: columns, colours by meaning, and the name of each object."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from l2rtui.cli.output import Column, Document, View
from l2rtui.domain.quantity import format_bytes, format_cores
from l2rtui.domain.status import Level

_SLOT_LEVELS = {"free": Level.OK, "unknown": Level.WARN, "off": Level.DONE, "failed": Level.BAD}
_WEIGHT_LEVELS = {"ok": Level.OK, "warning": Level.WARN, "refusal": Level.BAD}
_STEP_LEVELS = {"done": Level.OK, "skipped": Level.DONE, "running": Level.WAIT, "failed": Level.BAD}


def _field(key: str) -> Callable[[Document], object]:
    return lambda document: document[key]


def _column(header: str, key: str, *, is_wide: bool = False, is_number: bool = False) -> Column:
    return Column(header, _field(key), is_wide, is_number)


def _name(key: str) -> Callable[[Document], str]:
    return lambda document: str(document[key])


def _age(document: Document) -> str | None:
    if document["created"] is None:
        return None
    return format_age(time.time() - datetime.fromisoformat(document["created"]).timestamp())


def format_age(seconds: float) -> str:
    """Write a span as kubectl does, with one or two units: ``45s``, ``12m``, ``3h20m``, ``5d``."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 120:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60}m" if hours < 24 else f"{days}d"


def _state_of_node(document: Document) -> str:
    words = ["Ready" if document["ready"] else "NotReady"]
    if not document["schedulable"]:
        words.append("cordoned")
    if not document["use_known"]:
        words.append("use unknown")
    return ",".join(words)


def _level_of_node(document: Document) -> Level:
    return Level.OK if _state_of_node(document) == "Ready" else Level.WARN if document["ready"] else Level.BAD


def _used(document: Document) -> str:
    cores = document["cpu_cores"]
    used = document["cpu_used"]
    return format_cores(cores) if used is None else f"{used:.1f}/{format_cores(cores)}"


def _memory(document: Document) -> str:
    total, used = format_bytes(document["memory_bytes"]), document["memory_used_bytes"]
    return total if used is None else f"{format_bytes(used)}/{total}"


def _gpus(document: Document) -> str:
    devices = [gpu["device"] for gpu in document["gpus"]]
    return str(len(devices)) if devices != ["cpu"] else "cpu"


def _gpu_use(document: Document) -> str:
    found = [gpu["use_percent"] for gpu in document["gpus"]]
    if all(one is None for one in found):
        return ""
    return " ".join("-" if one is None else f"{one:.0f}" for one in found)


def _models(document: Document) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in document["gpus"] if gpu["model"]))


def _slots(document: Document) -> str:
    return " ".join(document["slots"])


def _sets(document: Document) -> str:
    return " ".join(f"{one['set']} {one['ready']}/{one['replicas']}" for one in document["sets"])


def _word_of_run(document: Document) -> str:
    return str(document["state"])


def _level_of_run(document: Document) -> Level:
    return Level(document["level"])


NODES = View(
    _name("node"),
    (
        _column("NODE", "node"),
        Column("STATE", _state_of_node, level=_level_of_node),
        Column("GPUS", _gpus, is_number=True),
        _column("SLOTS", "slots", is_number=True),
        _column("FREE", "free", is_number=True),
        Column("CPU", _used, is_number=True),
        Column("MEMORY", _memory, is_number=True),
        Column("GPU%", _gpu_use, is_wide=True),
        Column("MODEL", _models, is_wide=True),
        _column("MESSAGE", "message", is_wide=True),
    ),
)
SLOTS = View(
    _name("id"),
    (
        _column("SLOT", "id"),
        _column("DEVICE", "device"),
        Column("STATE", _field("state"), level=lambda document: _SLOT_LEVELS.get(document["state"])),
        _column("OWNER", "owner"),
        _column("RUN", "run"),
        _column("SET", "set"),
        _column("POD", "pod"),
        _column("GPU%", "gpu_use_percent", is_wide=True, is_number=True),
    ),
)
PODS = View(
    _name("pod"),
    (
        _column("POD", "pod"),
        _column("NODE", "node"),
        Column("SLOTS", _slots, is_wide=True),
        _column("OWNER", "owner"),
        _column("RUN", "run"),
        _column("ROLE", "role"),
        Column("STATUS", _field("status"), level=lambda document: Level(document["level"])),
        _column("RESTARTS", "restarts", is_number=True),
        Column("AGE", _age, is_number=True),
        _column("PID", "pid", is_wide=True, is_number=True),
        _column("WHAT", "sentence", is_wide=True),
    ),
)
RUNS = View(
    _name("run"),
    (
        _column("RUN", "run"),
        _column("OWNER", "owner"),
        _column("KIND", "kind", is_wide=True),
        _column("SEED", "seed", is_number=True),
        Column("STATE", _word_of_run, level=_level_of_run),
        Column("READY", lambda document: f"{document['ready']}/{document['pods']}", is_number=True),
        Column("AGE", _age, is_number=True),
        Column("SETS", _sets, is_wide=True),
        _column("WHAT", "message", is_wide=True),
    ),
)
LAUNCHED = View(
    _name("run"),
    (
        _column("RUN", "run"),
        _column("SEED", "seed", is_number=True),
        Column("PODS", lambda document: len(document["pods"]), is_number=True),
        Column("SETS", _sets),
    ),
)
PLANNED = View(
    _name("pod"),
    (
        _column("POD", "pod"),
        _column("RUN", "run"),
        _column("ROLE", "role"),
        _column("NODE", "node"),
        Column("SLOTS", _slots),
        Column("COMMAND", lambda document: " ".join(document["command"]), is_wide=True),
    ),
)
FINDINGS = View(
    _name("subject"),
    (
        Column("", _field("weight"), level=lambda document: _WEIGHT_LEVELS[document["weight"]]),
        _column("SUBJECT", "subject"),
        Column("WHAT", lambda document: ". ".join(filter(None, (document["sentence"], document["hint"])))),
    ),
)
SCALED = View(
    lambda document: f"{document['run']}/{document['set']}",
    (
        _column("RUN", "run"),
        _column("SET", "set"),
        _column("REPLICAS", "replicas", is_number=True),
        Column("ADDED", lambda document: " ".join(document["added"])),
        Column("REMOVED", lambda document: " ".join(document["removed"])),
    ),
)
RECEIPTS = View(
    _name("run"),
    (
        _column("RUN", "run"),
        _column("OBJECTS", "objects", is_number=True),
        Column(
            "LEFT", _field("left"), is_number=True, level=lambda document: Level.BAD if document["left"] else None
        ),
        _column("SECONDS", "seconds", is_number=True),
        _column("KEPT", "kept"),
    ),
)
LEAKS = View(
    _name("name"),
    (_column("RUN", "run"), _column("KIND", "kind"), _column("NAME", "name"), _column("REASON", "reason")),
)
METRICS = View(
    _name("run"),
    (
        _column("RUN", "run"),
        _column("STEPS", "env_steps", is_number=True),
        _column("UPDATES", "updates", is_number=True),
        _column("VERSION", "policy_version", is_number=True),
        _column("LAG", "policy_lag", is_number=True),
        _column("RETURN", "mean_return", is_number=True),
        _column("EVAL", "eval_return", is_number=True),
        _column("PROGRESS", "eval_progress", is_number=True),
        _column("STEPS/S", "env_steps_per_second", is_number=True),
        _column("UPDATES/S", "updates_per_second", is_number=True),
        _column("WORKERS", "workers", is_number=True),
        _column("TIME", "time", is_wide=True),
    ),
)
STEPS = View(
    _name("step"),
    (
        _column("STEP", "step"),
        Column("STATE", _field("state"), level=lambda document: _STEP_LEVELS.get(document["state"])),
        _column("EXIT", "exit_code", is_number=True),
        _column("SECONDS", "seconds", is_number=True),
        _column("WHAT", "detail"),
    ),
)
ELASTIC = View(
    _name("pod"),
    (
        _column("POD", "pod"),
        _column("STATE", "state"),
        _column("RANK", "rank", is_number=True),
        _column("WORLD", "world_size", is_number=True),
        _column("ROUND", "round", is_number=True),
        _column("EPOCH", "epoch", is_number=True),
        _column("STEP", "step", is_number=True),
        _column("LOSS", "loss", is_number=True),
        _column("ACCURACY", "accuracy", is_number=True),
    ),
)
PEERS = View(
    _name("pod"),
    (
        _column("POD", "pod"),
        _column("ROLE", "role"),
        _column("INDEX", "index", is_number=True),
        _column("GLOBAL STEP", "global_step", is_number=True),
        _column("LOCAL STEP", "local_step", is_number=True),
        _column("LOSS", "loss", is_number=True),
    ),
)
ACCURACY = View(_name("class"), (_column("CLASS", "class"), _column("ACCURACY", "accuracy", is_number=True)))
