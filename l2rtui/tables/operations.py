"""Plans, launches, the queue, receipts, metrics and progress of runs: columns of the CLI."""

from __future__ import annotations

from collections.abc import Callable

from l2rtui.domain.status import Level
from l2rtui.tables.cluster import age_of, bytes_of, format_age, percent_of, sets_text, slots_text
from l2rtui.tables.column import Column, Document, View

_WEIGHT_LEVELS = {"ok": Level.OK, "warning": Level.WARN, "refusal": Level.BAD}
_STEP_LEVELS = {"done": Level.OK, "skipped": Level.DONE, "running": Level.WAIT, "failed": Level.BAD}


def _since(document: Document) -> str | None:
    return age_of({"created": document["since"]})


def _record_age(document: Document) -> str | None:
    seconds = document["age_seconds"]
    return None if seconds is None else format_age(seconds)


def _while_live(field: str) -> Callable[[Document], object]:
    """Return a rate, or None if its record is old or its learner no longer exists."""
    return lambda document: document[field] if document["is_live"] else None


def _counted(receipt: Document) -> str | None:
    return ", ".join(f"{number} {kind}" for kind, number in receipt["counted"].items()) or None


LAUNCHED = View(
    "run",
    (
        Column("RUN", "run"),
        Column("SEED", "seed", is_number=True),
        Column("PODS", lambda document: len(document["pods"]), is_number=True),
        Column("SETS", sets_text),
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
        Column("SLOTS", slots_text),
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
        Column("GONE", lambda document: age_of({"created": document["destroyed"]}), is_volatile=True),
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
        Column("GPU%", percent_of("gpu_percent"), is_number=True),
        Column("TIME", "time", is_wide=True),
        Column("DEVICE", "device", is_wide=True),
        Column("GPU MEMORY", bytes_of("gpu_memory_bytes"), is_wide=True, is_number=True),
        Column("RESERVED", bytes_of("gpu_reserved_bytes"), is_wide=True, is_number=True),
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
