"""Export to MLflow: one MLflow run for each of our runs, in the MLflow experiment of its experiment.

MLflow's setting ``MLFLOW_TRACKING_URI`` names the destination: a server, an SQLite file or a folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from l2rtui.domain.history.record import RunOutcome
from l2rtui.services.history.exports.tracked_run import TrackedRun
from runtime.base.trackers import LIVE_TAG, RUN_ID_TAG

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
        """Write a run; return False if MLflow has it with its end, or gets it from the learner."""
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
