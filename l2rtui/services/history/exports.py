"""Export of recorded runs to experiment trackers, in terms common to them: parameters, tags, curve, summary,
texts.

Each tracker's library is imported at its first export, and its errors become sentences here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.history import HistoryRecord, RunOutcome, flat_fields
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.secret import redact
from l2rtui.errors import BackendError, UsageError
from l2rtui.services.history.lookup import spec_document
from runtime.base.trackers import LIVE_TAG, RUN_ID_TAG, STEP, TIME, WANDB_PROJECT, WANDB_QUIET, set_quiet


class CurvePoint(Struct, frozen=True):
    """Mean figures of one interval of a run.

    Attributes:
        step: Env steps at its end. time: seconds since the epoch.
    """

    step: int
    time: float
    figures: Mapping[str, float]


class TrackedRun(Struct, frozen=True):
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


MAX_METRICS: Final = 1_000
"""Metrics of one request, as `MAX_PARAMETERS` for parameters: limits of MLflow's REST API."""
MAX_PARAMETERS: Final = 100
MAX_PARAMETER_CHARS: Final = 6_000
MAX_TAG_CHARS: Final = 5_000
_STATUS: Final = {RunOutcome.DONE: "FINISHED", RunOutcome.FAILED: "FAILED", RunOutcome.RUNNING: "RUNNING"}
_T = TypeVar("_T")


class MlflowExport:
    """Writes runs to MLflow.

    Args:
        mlflow: The imported package.
        project: MLflow experiment of all runs; empty for each run's own experiment.
    """

    def __init__(self, mlflow: Any, project: str) -> None:
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient()
        self._project = project
        self.place = str(mlflow.get_tracking_uri())

    def put(self, run: TrackedRun) -> bool:
        """Write a run; return False if MLflow has all of it already, or the learner itself sends it."""
        name = self._project or run.group
        experiment = self._client.get_experiment_by_name(name)
        folder = experiment.experiment_id if experiment else self._client.create_experiment(name)
        # A run without an end, or whose export was interrupted, is written again.
        for earlier in self._client.search_runs([folder], f"tags.`{RUN_ID_TAG}` = '{run.run_id}'"):
            if earlier.info.status != "RUNNING" or LIVE_TAG in earlier.data.tags:
                return False
            self._client.delete_run(earlier.info.run_id)
        tags = {name: text[:MAX_TAG_CHARS] for name, text in run.tags.items()}
        began = round(run.started * 1e3)
        key = self._client.create_run(folder, start_time=began, run_name=run.name, tags=tags).info.run_id
        parameters = [
            self._entities.Param(name, str(value)[:MAX_PARAMETER_CHARS]) for name, value in run.parameters.items()
        ]
        for params in _batches(parameters, MAX_PARAMETERS):
            self._client.log_batch(key, params=params)
        for metrics in _batches(list(self._metrics(run)), MAX_METRICS):
            self._client.log_batch(key, metrics=metrics)
        for file, text in run.texts.items():
            self._client.log_text(key, text, file)
        if run.ended is not None:
            self._client.set_terminated(key, _STATUS.get(run.state, "KILLED"), round(run.ended * 1e3))
        return True

    def _metrics(self, run: TrackedRun) -> Iterator[Any]:
        for point in run.points:
            for name, value in point.figures.items():
                yield self._entities.Metric(name, value, round(point.time * 1e3), point.step)
        end, step = round((run.ended or run.started) * 1e3), int(run.summary.get("env_steps", 0))
        for name, value in run.summary.items():
            yield self._entities.Metric(f"summary.{name}", value, end, step)


def _batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class WandbExport:
    """Writes runs to Weights & Biases.

    Args:
        wandb: The imported package.
        project: Project of all runs; empty for `WANDB_PROJECT`.
    """

    def __init__(self, wandb: Any, project: str) -> None:
        self._wandb = wandb
        self._project = project or WANDB_PROJECT
        self.place = f"project {self._project}"

    def put(self, run: TrackedRun) -> bool:
        """Write a run; if it was exported before, the service accepts only the missing steps."""
        copy = self._wandb.init(
            project=self._project,
            id=run.run_id,
            name=run.name,
            group=run.group,
            resume="allow",
            config={**run.parameters, "l2rtui": dict(run.tags)},
            settings=self._wandb.Settings(**WANDB_QUIET),
        )
        try:
            # W&B's own step must be an integer that rises with each call; charts use env steps through their
            # metric.
            copy.define_metric("*", step_metric=STEP)
            for point in run.points:
                copy.log({STEP: point.step, TIME: point.time, **point.figures}, step=point.step)
            copy.summary.update(dict(run.summary))
            for name, text in run.texts.items():
                file = Path(copy.dir) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        finally:
            copy.finish(exit_code=int(run.state is RunOutcome.FAILED))
        return True


MAX_REASON_CHARS: Final = 300
_log = logging.getLogger(__name__)


class Tracker(StrEnum):
    """Other tools that a run can be exported to, by the names of their packages."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


class RunExport(Protocol):
    """Writer of runs to one tracker.

    Attributes:
        place: Destination, for display.
    """

    place: str

    def put(self, run: TrackedRun) -> bool:
        """Write a run; return False if it is already there."""


_EXPORTS: Final[Mapping[Tracker, Callable[[Any, str], RunExport]]] = MappingProxyType(
    {Tracker.MLFLOW: MlflowExport, Tracker.WANDB: WandbExport}
)


def export_runs(
    tracker: Tracker, records: Iterable[HistoryRecord], project: str = ""
) -> tuple[str, list[str], list[str]]:
    """Write records to a tracker; call it in a thread, since it blocks.

    Args:
        project: MLflow experiment or W&B project; empty for each run's own, or the default.

    Returns:
        Destination, names of the runs that were written, and of those that were already there.

    Raises:
        UsageError: the tracker is not installed. BackendError: it failed; earlier runs are written.
    """
    set_quiet()
    try:
        package = import_module(tracker)
    except ImportError as error:
        _log.debug("export: %s", error)
        sentence = f"{tracker} is not installed in l2rtui's environment, or cannot be imported: {error}."
        raise UsageError(sentence, f"`pip install {tracker}` in its environment, or use `-o csv`.") from error
    written: list[str] = []
    present: list[str] = []
    name = ""
    try:
        export = _EXPORTS[tracker](package, project)
        for record in records:
            name = record.entry.run
            (written if export.put(tracked_run(record)) else present).append(name)
    except Exception as error:
        # Any exception: the library has a hundred classes for an unreachable server.
        _log.warning("export to %s", tracker, exc_info=True)
        lines = str(error).splitlines() or [type(error).__name__]
        reason = sanitize(redact(lines[0]))[:MAX_REASON_CHARS].rstrip(".")
        sentence = f"{tracker} did not take {name or 'the runs'}: {reason}."
        before = f" {counted(len(written), 'run')} before it went there." if written else ""
        raise BackendError(sentence, f"See its settings and the log file.{before}") from error
    return export.place, written, present
