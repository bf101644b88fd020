"""Trackers by name: each library is imported at its first export, and its errors become sentences here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Protocol

from l2rtui.domain.history.record import HistoryRecord
from l2rtui.domain.quantity import counted
from l2rtui.domain.redact import redact
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import BackendError, UsageError
from l2rtui.services.history.exports.to_mlflow import MlflowExport
from l2rtui.services.history.exports.to_wandb import WandbExport
from l2rtui.services.history.exports.tracked_run import TrackedRun, tracked_run
from runtime.base.trackers import set_quiet

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
