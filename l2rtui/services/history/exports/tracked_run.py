"""A recorded run in terms common to experiment trackers: parameters, tags, a curve, a summary and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.history.difference import flat_fields
from l2rtui.domain.history.record import HistoryRecord, RunOutcome
from l2rtui.services.history.lookup import spec_document


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean figures of one interval of a run.

    Attributes:
        step: Env steps at its end. time: seconds since the epoch.
    """

    step: int
    time: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run for a tracker.

    Attributes:
        group: Experiment; for a single run its own name.
        parameters: Leaves of the spec by their paths, such as ``train.gamma``.
        tags: Other facts; ``l2rtui.run_id`` is always present.
        points: In the order of env steps, each step once.
        texts: Contents of files by their names.
        started, ended: Seconds since the epoch; ended is None while the end is unknown.
    """

    name: str
    run_id: str
    group: str
    state: RunOutcome
    started: float
    ended: float | None
    parameters: Mapping[str, Any]
    tags: Mapping[str, str]
    points: tuple[CurvePoint, ...]
    summary: Mapping[str, float]
    texts: Mapping[str, str]


def tracked_run(record: HistoryRecord) -> TrackedRun:
    """Return a record for a tracker; the record does not contain values that looked like a secret."""
    entry = record.entry
    figures = {name: getattr(entry, name) for name in ("env_steps", "best_return", "final_return")}
    return TrackedRun(
        entry.run,
        entry.run_id,
        entry.experiment or entry.run,
        entry.state,
        entry.started,
        entry.ended,
        dict(flat_fields(spec_document(record))),
        dict(_tags(record)),
        tuple(_points(record)),
        {name: value for name, value in figures.items() if value is not None},
        dict(_texts(record)),
    )


def _tags(record: HistoryRecord) -> Iterator[tuple[str, str]]:
    entry, launch, ending = record.entry, record.launch, record.ending
    facts = {
        "run_id": entry.run_id,
        "experiment": entry.experiment,
        "seed": str(entry.seed),
        "state": str(entry.state),
        "owner": entry.owner,
        "backend": entry.backend,
        "context": entry.context,
        "namespace": entry.namespace,
        "image": entry.image,
        "revision": entry.revision,
        "dirty": "" if entry.is_dirty is None else str(entry.is_dirty).lower(),
        "branch": launch.source.branch,
        "command": launch.command,
        "checkpoints": ending.checkpoints if ending else "",
        "receipt": ending.receipt if ending else "",
        **{f"version.{name}": version for name, version in launch.versions},
    }
    return ((f"l2rtui.{name}", value) for name, value in facts.items() if value)


def _points(record: HistoryRecord) -> Iterator[CurvePoint]:
    columns = dict(record.ending.curve) if record.ending else {}
    steps, times = columns.pop(Axis.ENV_STEPS, ()), columns.pop(Axis.TIME, ())
    last = -1
    for index, (step, time) in enumerate(zip(steps, times, strict=False)):
        if step is None or time is None or int(step) <= last:
            continue  # trackers accept the figures of a step once, in order
        values = {name: values[index] for name, values in columns.items() if index < len(values)}
        last = int(step)
        yield CurvePoint(last, time, {name: value for name, value in values.items() if value is not None})


def _texts(record: HistoryRecord) -> Iterator[tuple[str, str]]:
    yield "spec.json", record.launch.spec
    if record.launch.source.diff:
        yield "changes.diff", record.launch.source.diff
    for pod, lines in record.ending.logs if record.ending else ():
        # Names of pods become names of files; `RUN/SET/INDEX` has slashes.
        yield f"logs/{pod.replace('/', '_')}.txt", "\n".join((*lines, ""))
